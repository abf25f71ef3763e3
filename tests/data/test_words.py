"""Words and ids; in parts they are those of a plain loop."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl.data_utils import formats
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.errors import DataError
from txl.data_utils.free_text import encode_text
from txl.data_utils.tokens import UnknownWordError, Vocab

# counts, limits, words after <eos>
BUILT: dict[str, tuple[dict[str, int], dict[str, Any], str]] = {
    "the most frequent first, then in the order of the text": (
        Counter("b a c c a d a".split()),
        {},
        "a c b d",
    ),
    "special words once": (
        {"x": 5, "<unk>": 9, "<eos>": 2},
        {"special": ("<eos>", "<unk>")},
        "<unk> x",
    ),
    "min_freq is inclusive": ({"a": 3, "b": 2, "c": 1}, {"min_freq": 2}, "a b"),
    "max_size does not count special words": ({"a": 3, "b": 2, "c": 1}, {"max_size": 2}, "a b"),
}


@pytest.mark.parametrize("what", BUILT)
def test_which_words_make_a_vocabulary(what: str) -> None:
    counts, limits, expected = BUILT[what]
    assert Vocab.build(Counter(counts), **limits).words == ["<eos>", *expected.split()]


def test_words_and_ids() -> None:
    vocab = Vocab(["<eos>", "<unk>", "a"])
    assert vocab.ids_of(["a", "nowhere", "<eos>"]) == [2, 1, 0]
    assert vocab.decode(vocab.ids_of(["a", "<eos>", "a"])) == ["a", "<eos>", "a"]
    with pytest.raises(UnknownWordError) as error:
        Vocab(["<eos>", "a"]).ids_of(["a", "nowhere"])
    assert error.value.words == {"nowhere"}


def test_the_file_of_a_vocabulary() -> None:
    vocab = Vocab(["<eos>", "a", "\u00fc", "a#b", '"'])
    assert Vocab.from_text(vocab.to_text()).words == vocab.words
    assert Vocab(["a", "b"]).fingerprint() != Vocab(["b", "a"]).fingerprint()
    with pytest.raises(ValueError, match="twice"):
        Vocab(["a", "a"])
    with pytest.raises(ValueError, match="line 2 is blank"):
        Vocab.from_text("a\n\nb\n")


def test_unknown_words_count_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a b\n")
    (tmp_path / "valid.txt").write_text("a \u00fcberaus b <unk>\n")
    sizes = Corpus(DataConfig(data=str(tmp_path), dataset="text")).sizes("valid")
    assert sizes["bytes"].tolist() == [1, 9, 2, 6, 1]
    assert sizes["characters"].tolist() == [1, 8, 2, 6, 1]
    assert sizes["unknown"].tolist() == [False, True, False, True, False]


def test_running_text_is_found_again_in_the_text() -> None:
    vocab = Vocab(["<eos>", "<unk>", "a"])
    text = 'A two-part, 1.5\u00a0@-@ "word"\r\n a'
    read = encode_text(text, vocab, name="text", running=True)
    assert read.surfaces == [
        "A",
        "two",
        "-",
        "part",
        ",",
        "1",
        ".",
        "5",
        "@-@",
        '"',
        "word",
        '"',
        "",
        "a",
    ]
    for surface, offset in zip(read.surfaces, read.offsets, strict=True):
        assert text[offset : offset + len(surface)] == surface
    assert read.sizes["bytes"].sum() == len(text.encode())


# any text

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


def plain(text: str) -> list[str]:
    """The words of each line, and `<eos>`."""
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", text)
    return [word for line in lines for word in [*line.split(), "<eos>"]]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LONGEST", 64)
    monkeypatch.setattr(formats, "_BLOCK", 50)
    monkeypatch.setattr(Vocab, "batch_bytes", 128)


@settings(max_examples=20)
@given(TEXT)
def test_decode_of_encode_gives_the_words_of_any_text(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_bytes(f"{text}\n".encode())
    text = text.removeprefix("\ufeff")
    if not text.split():
        return
    corpus = Corpus(DataConfig(data=str(folder), dataset="wt103"))
    assert corpus.vocab.decode(corpus.split("train")) == plain(f"{text}\n")
    assert corpus.vocab.decode(corpus.vocab.encode(f"{text}\n").ids) == plain(f"{text}\n")


@pytest.mark.usefixtures("small_parts")
def test_parts_do_not_show(tmp_path: Path) -> None:
    text = (
        "".join(f"w{i % 13} \u00e4{i % 7} <eos>\r\n" + "long " * (i % 40) + "\n" for i in range(60))
        + "x" * 500
        + " last"
    )
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_bytes(text.encode())
    corpus = Corpus(DataConfig(data=str(tmp_path), dataset="text"))
    counts = Counter(word for word in text.split() if word != "<eos>")
    assert corpus.vocab.words == ["<eos>", "<unk>", *(word for word, _ in counts.most_common())]
    assert [corpus.vocab.decode(corpus.split(split)) for split in ("train", "valid")] == [
        plain(text)
    ] * 2
    assert corpus.sizes("valid")["bytes"].sum() == len(
        f"{text}\n".replace("\r\n", "\n").replace("\r", "\n").encode()
    )


@pytest.mark.usefixtures("small_parts")
def test_what_cannot_be_read_is_named_by_line(tmp_path: Path) -> None:
    for bad, said in {b"caf\xe9\n": "not UTF-8", b"a\0b\n": "NUL"}.items():
        (tmp_path / "train.txt").write_bytes(b"fine words\n" * 40 + bad + b"fine words\n" * 40)
        (tmp_path / "valid.txt").write_bytes(b"fine words\n")
        with pytest.raises(DataError, match=rf"train\.txt, line 41: .*{said}"):
            Corpus(DataConfig(data=str(tmp_path), dataset="text"))


def test_an_unknown_word_is_named_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / "valid.jsonl").write_text(
        "".join(json.dumps({"text": row}) + "\n" for row in ("a a", "a \u00e4"))
    )
    said = r"valid\.jsonl, line 2: the word '\u00e4' is not .*; give a text whose words the model knows$"
    with pytest.raises(DataError, match=said):
        Corpus(
            DataConfig(data=f"{tmp_path}/valid.jsonl", dataset="text"),
            Vocab(["<eos>", "a"]),
            needed=["valid"],
        )
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text(f"of {split}\n")
    with pytest.raises(
        DataError, match=r"valid\.txt, line 1: the word 'valid' .*; use --dataset text, where"
    ):
        Corpus(DataConfig(data=str(tmp_path), dataset="wt103"), needed=["valid"])
