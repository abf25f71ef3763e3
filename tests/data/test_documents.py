"""Any text: files of every kind, documents, splits."""

import bz2
import gzip
import json
import lzma
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl.data_utils import formats
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.documents import documents_in, documents_of, rule_of, signs_of
from txl.data_utils.errors import DataError

try:
    from backports import zstd as zstd_library
except ImportError:
    zstd_library = None
HASHED = {"held_out_by": "document"}
TEXTS = [f"the document number {i} has words\nin two lines {i % 7}\n" for i in range(60)]


def zstd(text: bytes) -> bytes:
    return zstd_library.compress(text) if zstd_library else b""


def jsonl(field: str = "text") -> bytes:
    return "".join(json.dumps({"id": 1, field: text}) + "\n" for text in TEXTS).encode()


def blank() -> bytes:
    return "\n".join(TEXTS).encode()


def write_parquet(path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": TEXTS}), path, row_group_size=7)


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("my.txt", blank())


def zstd_of_long_window(text: bytes) -> bytes:
    """As `zstd --long=28` writes it, which readers refuse unless they are told."""
    compressor = zstd_library.ZstdCompressor(
        options={zstd_library.CompressionParameter.window_log: 28}
    )
    return compressor.compress(text) + compressor.flush()


FILES: dict[str, Callable[[Path], object]] = {
    "my.txt": lambda path: path.write_bytes(blank()),
    "my.txt.gz": lambda path: path.write_bytes(gzip.compress(blank())),
    "my.txt.xz": lambda path: path.write_bytes(lzma.compress(blank())),
    "my.txt.zst": lambda path: path.write_bytes(zstd(blank())),
    "my.txt.bz2": lambda path: path.write_bytes(bz2.compress(blank())),
    "my.txt.zip": write_zip,
    "my.long.txt.zst": lambda path: path.write_bytes(zstd_of_long_window(blank())),
    "my.jsonl": lambda path: path.write_bytes(jsonl()),
    "my.jsonl.gz": lambda path: path.write_bytes(gzip.compress(jsonl())),
    "my.parquet": write_parquet,
}


def open_any(*names: object, **settings: object) -> Corpus:
    data = str(names[0]) if len(names) == 1 else tuple(map(str, names))
    return Corpus(DataConfig(data=data, **{"dataset": "text", "held_out": 0.1, **settings}))


def documents(corpus: Corpus, *splits: str) -> list[str]:
    """Of these splits, or of all."""
    found = splits or ("train", "valid", "test")
    return [document.decode().strip() for split in found for document in corpus.documents(split)]


ALL = sorted(text.strip() for text in TEXTS)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_every_kind_gives_its_documents(tmp_path: Path, name: str) -> None:
    pytest.importorskip("backports.zstd" if name.endswith("zst") else "json")
    FILES[name](tmp_path / name)
    corpus = open_any(tmp_path / name)
    assert sorted(documents(corpus)) == ALL
    assert all(documents(corpus, split) for split in ("train", "valid", "test"))
    words = [corpus.vocab.decode(corpus.split(split)) for split in ("train", "valid", "test")]
    assert sum(word != "<eos>" for split in words for word in split) == len("".join(TEXTS).split())


def test_a_text_of_few_documents_has_all_splits_and_one_of_fewer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("\n".join(TEXTS[:4]))
    corpus = open_any(tmp_path, held_out=0.001)
    assert [len(documents(corpus, split)) for split in ("train", "valid", "test")] == [2, 1, 1]
    (tmp_path / "my.txt").write_text("one\n\ntwo\n")
    with pytest.raises(
        DataError, match=r"my\.txt: the text has 2 document\(s\), found by blank.*--documents"
    ):
        open_any(tmp_path)


HEADINGS = " \n = One = \n \n text = x = \n \n = = Part = = \n \n more \n \n = Two = \n \n text \n"
RULES = {
    "headings": (HEADINGS, "heading", 2),
    "blank lines": ("a\nb\n\n\nc\n", "blank", 2),
    "lines": ("a b\nc\nd\n", "row", 3),
}


@pytest.mark.parametrize(("text", "rule", "n"), RULES.values(), ids=RULES)
def test_the_rule_is_found_and_documents_make_up_the_text(
    tmp_path: Path, text: str, rule: str, n: int
) -> None:
    path = tmp_path / "my.txt"
    path.write_text(text)
    assert rule_of([path], lambda path: signs_of(path, ""))[0] == rule
    found = [one.text.decode() for one in documents_in(path, rule, "")]
    assert "".join(found) == text
    assert len(found) == n


@pytest.mark.parametrize(("text", "rule", "n"), RULES.values(), ids=RULES)
def test_the_documents_of_a_text_in_memory_are_those_of_its_file(
    tmp_path: Path, text: str, rule: str, n: int
) -> None:
    found, by = documents_of(text, "auto")
    assert ("".join(found), by) == (text, rule)
    (tmp_path / "a.txt").write_text(text)
    pieces = [one.text.decode() for one in documents_in(tmp_path / "a.txt", rule, "")]
    assert [one if one.endswith("\n") else f"{one}\n" for one in found] == pieces
    assert documents_of(text, "file") == ([text], "file")


@pytest.mark.parametrize("rows", ["documents", "lines"])
def test_rows_with_headings_are_documents_or_lines(tmp_path: Path, rows: str) -> None:
    """As WikiText's parquet files have a line a row, and others an article, which may end with a heading."""
    articles = [f" \n = Title {i} = \n \n text {i} \n \n = = Links = = \n" for i in range(6)]
    texts = articles if rows == "documents" else "".join(articles).splitlines(keepends=True)
    (tmp_path / "my.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = open_any(tmp_path)
    assert corpus.note.startswith(
        "documents by row" if rows == "documents" else "documents by heading"
    )
    for one in (corpus, open_any(tmp_path, documents="heading")):
        assert len(documents(one)) == 6


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("my.jsonl", '{"text": "one"}\n{"text": null}\n{"text": ""}\n{"text": "two"}\n'),
        ("my.csv", 'text,n\none,1\n,2\n"",3\ntwo,4\n'),
    ],
)
def test_rows_without_text_are_counted_in_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert list(formats.rows_of(path, "text", "")) == [b"one\n", b"two\n"]
    assert caplog.messages == [
        f"{path}: 2 of 4 rows hold no text in 'text' (null, or empty) and are left out"
    ]


ZSTD = zstd("".join(f"{i * i}\n" for i in range(9999)).encode())
BAD: dict[str, tuple[str, bytes, str]] = {
    "not UTF-8": ("a.txt", b"fine\ncaf\xe9\n", r"a\.txt, line 2: not UTF-8"),
    "NUL": ("a.txt", b"fine\n\nb\0c\n", r"a\.txt, line 3: .*NUL"),
    "UTF-16": (
        "a.txt",
        "text\n".encode("utf-16"),
        r"a\.txt, line 1: not UTF-8 but UTF-16; .*iconv -f utf-16 -t",
    ),
    "cut gzip": (
        "a.txt.gz",
        gzip.compress(b"a\n" * 9999)[:-9],
        r"a\.txt\.gz: damaged .*bring the file again",
    ),
    "no gzip": ("a.txt.gz", b"text", r"a\.txt\.gz: damaged"),
    "no zip": ("a.txt.zip", b"text", r"a\.txt\.zip: damaged"),
    "no bzip2": ("a.txt.bz2", b"text", r"a\.txt\.bz2: damaged"),
    "cut xz": ("a.txt.xz", lzma.compress(b"a\n" * 9999)[:-9], r"a\.txt\.xz: damaged"),
    "cut zstd": ("a.txt.zst", ZSTD[:-9], r"a\.txt\.zst: damaged .*bring the file again"),
    "cut zstd, second frame": (
        "a.txt.zst",
        ZSTD + ZSTD[:20],
        r"a\.txt\.zst: damaged .*bring the file again",
    ),
    "no JSON": ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2: no JSON"),
    "no field": (
        "a.jsonl",
        jsonl("body"),
        r"a\.jsonl, line 1: no field 'text', there is id, body; .*--text_field",
    ),
    "no text": ("a.jsonl", b'{"text": 7}\n', r"a\.jsonl, row 1: the field 'text' holds no text"),
    "half a character": (
        "a.jsonl",
        b'{"text": "\\ud800"}\n',
        r"a\.jsonl, row 1: holds half of a surrogate pair",
    ),
    "NUL in a string": (
        "a.jsonl",
        b'{"text": "a\\u0000"}\n' * 9,
        r"a\.jsonl, row 1: holds a NUL .*out of the string$",
    ),
    "latin1 in JSON": (
        "a.jsonl",
        b'{"text": "caf\xe9"}\n',
        r"a\.jsonl, line 1: not UTF-8 .*iconv -f windows-1252",
    ),
    "a JSON array, cut": (
        "a.json",
        b'[\n  {"text": "a"},\n',
        r"a\.json: no JSON array .*; bring the file again",
    ),
    "UTF-16LE": (
        "a.txt",
        "text of some words\n".encode("utf-16-le"),
        r"line 1: not UTF-8 but UTF-16LE; .*-f utf-16le",
    ),
    "UTF-16BE": (
        "a.txt",
        "text of some words\n".encode("utf-16-be"),
        r"line 1: not UTF-8 but UTF-16BE; .*-f utf-16be",
    ),
    "UTF-32": (
        "a.txt",
        "text\n".encode("utf-32"),
        r"line 1: not UTF-8 but UTF-32; .*iconv -f utf-32 ",
    ),
    "UTF-16 as latin1": (
        "a.txt",
        "text\n".encode("utf-16").decode("latin1").encode(),
        r"line 1: not UTF-8: it was UTF-16 and has been converted as if it were Latin-1; bring the original",
    ),
    "GB18030": (
        "a.txt",
        "\u6211\u4eec\u8d70\u3002 the text\n".encode("gb18030"),
        r"-f ENCODING .*\(gb18030, .*\)$",
    ),
    "Shift-JIS": ("a.txt", "\u6771\u4eac\u30bd\u9078\n".encode("shift_jis"), r"iconv -f ENCODING"),
    "Russian": (
        "a.txt",
        "the \u0442\u0435\u043a\u0441\u0442\n".encode("koi8-r"),
        r"iconv -f ENCODING",
    ),
    "French": (
        "a.txt",
        "un \u00e9t\u00e9 \u00e0 No\u00ebl\n".encode("latin1"),
        r"iconv -f windows-1252 -t utf-8$",
    ),
    "no parquet": ("a.parquet", b"PAR1 no", r"a\.parquet: damaged"),
    "nothing": ("a.pdf", b"", r"no files of text \(\.txt .*--data"),
    "empty": ("a.txt", b"", r"a\.txt: the text has 0 document"),
}


@pytest.mark.parametrize(("name", "content", "message"), BAD.values(), ids=BAD)
def test_what_is_no_text_is_refused_by_name_and_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    pytest.importorskip(
        {".parquet": "pyarrow", ".zst": "backports.zstd"}.get(Path(name).suffix, "json")
    )
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_any(tmp_path)
    assert not list(tmp_path.rglob("store.json"))


def test_a_column_or_a_library_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, library in {"a.txt.zst": "backports.zstd", "a.parquet": "pyarrow"}.items():
        (tmp_path / name).write_bytes(b"any")
        with monkeypatch.context() as patch:
            for module in (library, "compression.zstd"):
                patch.setitem(sys.modules, module, None)
            with pytest.raises(
                DataError, match=rf"{name}: reading .* needs {library}: pip install"
            ):
                open_any(tmp_path / name)
    write_parquet(tmp_path / "a.parquet")
    with pytest.raises(
        DataError, match=r"a\.parquet: no column 'body', there is text; name it with --text_field"
    ):
        open_any(tmp_path / "a.parquet", text_field="body")


@pytest.mark.parametrize("name", ["0.txt", "0.txt.bz2", "0.txt.zip", "0.parquet"])
def test_an_empty_shard_is_left_out_with_a_notice(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it is not even an archive, or a table without columns."""
    (tmp_path / name).write_bytes(b"")
    (tmp_path / "1.txt").write_bytes(blank())
    assert open_any(tmp_path).note.startswith("documents by blank (there are blank lines)")
    assert f"{name}: is empty, left out" in caplog.text


def test_mixed_line_ends_and_a_byte_order_mark_are_no_words(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_bytes(b"\xef\xbb\xbfa b\r\n\r\nc\rd\n\n" + blank())
    assert not {"\ufeffa", "b\r", "c\rd"} & set(open_any(tmp_path).vocab.words)


@settings(max_examples=4)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30),
        min_size=1,
        max_size=8,
    )
)
def test_a_documents_ids_do_not_depend_on_its_shard(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    """Also: documents begin where the corpus says, and decode gives the tokens of the text."""
    folder = tmp_path_factory.mktemp("text")
    texts = [f"{i} {text}" for i, text in enumerate(texts)] + TEXTS[:3]
    for split, order in {"train": texts, "valid": texts[::-1], "test": texts}.items():
        (folder / f"{split}.jsonl").write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in order)
        )
    for dataset in ("text", "characters", "bytes"):
        corpus = open_any(folder, dataset=dataset, documents="row")
        found = {}
        for split in ("train", "valid"):
            parts = np.split(corpus.split(split), corpus.document_starts(split)[1:])
            found[split] = [part.tolist() for part in parts]
        assert found["train"] == found["valid"][::-1]
        if dataset == "text":
            words = [corpus.vocab.decode(ids) for ids in found["train"]]
            assert [[w for w in part if w != "<eos>"] for part in words] == [
                text.split() for text in texts
            ]


# documents dealt to splits


def test_white_space_around_a_document_does_not_decide_where_it_goes(tmp_path: Path) -> None:
    """Equal paragraphs with other blank lines, line ends and trailing spaces stay together."""
    ways = ["\n", "\n\n\n", "\r\n \r\n", " \n\n"]
    texts = [
        text.replace("\n", "\r\n" if "\r" in end else "\n") + end for end in ways for text in TEXTS
    ]
    (tmp_path / "my.txt").write_bytes("".join(texts).encode())
    corpus = open_any(tmp_path, documents="blank", **HASHED)
    found = {
        split: {" ".join(text.split()) for text in documents(corpus, split)}
        for split in ("train", "valid")
    }
    assert len(documents(corpus, "valid")) % len(ways) == 0 < len(found["valid"])
    assert not found["train"] & found["valid"]


def test_the_rule_does_not_depend_on_the_order_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(TEXTS[:9]))  # without blank lines
    (tmp_path / "b.txt").write_bytes(blank())
    orders = (["a.txt", "b.txt"], ["b.txt", "a.txt"])
    one, two = (open_any(*(tmp_path / name for name in names), **HASHED) for names in orders)
    assert one.note == two.note
    assert one.note.startswith("documents by blank")
    for split in ("train", "valid", "test"):
        assert sorted(documents(one, split)) == sorted(documents(two, split))


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_documents_that_are_in_train_too_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str
) -> None:
    for split, texts in {
        "train": TEXTS,
        "valid": [*TEXTS[:7], "new\n"],
        "test": ["other\n"],
    }.items():
        content = (
            "\n".join(texts)
            if suffix == "txt"
            else "".join(json.dumps({"text": t}) + "\n" for t in texts)
        )
        (tmp_path / f"{split}.{suffix}").write_text(content)
    corpus = open_any(tmp_path)
    for split in ("valid", "train", "test", "valid"):
        corpus.split(split)
    assert caplog.text.count("also stand in train") == 1
    assert f"valid.{suffix}: 7 of its 8 documents also stand in train" in caplog.text


def test_a_missing_valid_split_is_made(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(blank())
    (tmp_path / "test.txt").write_text("the test\n")
    corpus = open_any(tmp_path)
    assert documents(corpus, "test") == ["the test"]
    assert sorted(documents(corpus, "train", "valid")) == ALL
    assert documents(corpus, "valid")


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_lines_end_alike_however_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line_end: str
) -> None:
    """Also where two blocks share a line end of two bytes."""
    monkeypatch.setattr(formats, "_BLOCK", 7)
    (tmp_path / "my.txt").write_bytes("\n".join(TEXTS).replace("\n", line_end).encode())
    for rule, n in {"blank": 60, "row": 179}.items():
        assert len(documents(open_any(tmp_path, documents=rule))) == n


TABLE = 'id;text\n1;"a ""quoted"" one; of two\nlines"\n2;\n' + "".join(
    f"{i};row {i}\n" for i in range(3, 60)
)


@pytest.mark.parametrize(
    ("name", "delimiter"), [("my.csv", ";"), ("my.csv", ","), ("my.tsv", "\t")]
)
def test_a_table_is_read_as_rows_of_a_column(tmp_path: Path, name: str, delimiter: str) -> None:
    (tmp_path / name).write_text(TABLE.replace(";", delimiter), encoding="utf-8-sig")
    corpus = open_any(tmp_path / name)
    expected = [f'a "quoted" one{delimiter} of two\nlines', *(f"row {i}" for i in range(3, 60))]
    assert documents(corpus) == expected
    assert f"{name} has rows" in corpus.note
    with pytest.raises(
        DataError, match=r"no column 'body', there is id, text; name it with --text_field"
    ):
        open_any(tmp_path / name, text_field="body")


def test_a_row_of_a_table_with_more_cells_than_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("text\nno comma\nHello, dear world\n")
    said = (
        r"my\.csv, row 2: has more cells than the 1 that the first row names; put cells in quotes"
    )
    with pytest.raises(DataError, match=said):
        open_any(tmp_path / "my.csv")


def test_a_row_of_a_table_that_ends_before_the_text_is_refused(tmp_path: Path) -> None:
    """A line end without quotes makes two rows of one, and the second had its text in another column."""
    (tmp_path / "my.csv").write_text("id,text\n1,Hello\nworld\n2,\n")
    with pytest.raises(
        DataError, match=r"my\.csv, row 2: ends before the column 'text'; put cells"
    ):
        open_any(tmp_path / "my.csv")


def test_two_columns_of_the_name_of_the_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("text,text\na,b\n")
    with pytest.raises(DataError, match=r"my\.csv: 2 columns are named 'text'; name them apart"):
        open_any(tmp_path / "my.csv")


def test_tables_beside_texts_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(TABLE)
    (tmp_path / "my.txt").write_bytes(blank())
    assert documents(open_any(tmp_path)) == [text.strip() for text in TEXTS]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_array_is_read_as_rows(tmp_path: Path, indent: int | None) -> None:
    rows = [{"text": f"row {i}"} for i in range(40)]
    (tmp_path / "my.json").write_text(json.dumps([*rows, "a string"], indent=indent))
    assert documents(open_any(tmp_path / "my.json")) == [
        *(f"row {i}" for i in range(40)),
        "a string",
    ]
    (tmp_path / "my.json").write_text('[{"text": "cut"}, ')
    with pytest.raises(DataError, match=r"my\.json: no JSON array"):
        open_any(tmp_path / "my.json")


def test_text_without_spaces_and_many_unknown_words_are_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["".join(chr(0x4E00 + (7 * i + j) % 900) for j in range(20)) for i in range(400)]
    (tmp_path / "my.txt").write_text("\n".join(lines))
    open_any(tmp_path).split("valid")
    assert "characters on average, hardly any spaces; use --dataset characters" in caplog.text
    assert "these are many, and figures say little: use --dataset bpe" in caplog.text
    caplog.clear()
    (tmp_path / "my.txt").write_bytes(blank())
    open_any(tmp_path).split("valid")
    assert "hardly any spaces" not in caplog.text
    assert "figures say little" not in caplog.text
