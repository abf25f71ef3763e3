"""Subwords, bytes, characters and streams of ids."""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.tokenizer_files import write_folder
from txl.config import UsageError
from txl.data_utils import formats
from txl.data_utils.config import tokenizer_of
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.documents import Document
from txl.data_utils.errors import DataError
from txl.data_utils.free_text import encode_text, read_text
from txl.data_utils.ids import Integers
from txl.data_utils.subwords import Subwords, _without_long_runs
from txl.data_utils.tokens import (
    ALL_BYTES,
    MEASURES,
    Characters,
    RunningTokenizer,
    Symbols,
    sizes_of,
)
from txl.settings.flags import refuse_idle_flags

TEXT = (
    "Ein sch\u00f6ner Tag, \u6771\u4eac \U0001f600!\nthe word <eos> is a word\n\nthe word the word\r\nthe end\n"
    * 9
)
ANY_TEXT = st.text(st.characters(codec="utf-8"), min_size=1)
KINDS = ["bytes", "characters", "bpe"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_bytes(TEXT.encode())
    return tmp_path


def open_text(folder: Path, dataset: str, **flags: Any) -> Corpus:
    if dataset == "bpe":
        pytest.importorskip("tokenizers")
        if "tokenizer" not in flags:
            flags = {"vocab_size": 300, **flags}
    return Corpus(DataConfig(data=str(folder), dataset=dataset, **flags))


@pytest.fixture(scope="module", params=KINDS)
def vocab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> RunningTokenizer:
    folder = tmp_path_factory.mktemp("text")
    for split in ("train", "valid"):
        (folder / f"{split}.txt").write_bytes(TEXT.encode())
    vocab = open_text(folder, request.param).vocab
    assert isinstance(vocab, RunningTokenizer)
    return vocab


@settings(max_examples=20)
@given(text=ANY_TEXT)
def test_any_text_comes_back_and_its_tokens_stand_for_all_of_it(
    vocab: RunningTokenizer, text: str
) -> None:
    encoded = vocab.encode(text)
    ids = encoded.ids.tolist()
    known = (
        "".join(c if c in vocab else "<unk>" for c in text)
        if isinstance(vocab, Characters)
        else text
    )
    assert vocab.text_of(ids) == known
    shown = "".join(map(vocab.decoder(), ids))  # U+FFFD at the end may be half of a character
    assert shown.rstrip("\ufffd") == known.rstrip("\ufffd")
    sums = dict(zip(MEASURES, sizes_of(text, encoded.ends).sum(axis=0).tolist(), strict=True))
    n_line = text.replace("\r\n", "\n").replace("\r", "\n").count("\n")
    of_text = {
        "words": len(text.split()),
        "lines": n_line,
        "characters": len(text),
        "bytes": len(text.encode()),
    }
    assert sums == of_text


def test_the_vocabulary_comes_back_from_a_checkpoint(vocab: RunningTokenizer) -> None:
    dataset = {"Symbols": "bytes", "Characters": "characters", "Subwords": "bpe"}[
        type(vocab).__name__
    ]
    again = tokenizer_of(dataset, vocab.files().__getitem__)
    assert (again.words, again.eos_id, again.fingerprint()) == (
        vocab.words,
        vocab.eos_id,
        vocab.fingerprint(),
    )
    assert vocab.files()["vocab.txt"].count("\n") == len(vocab)


def test_the_sign_for_what_is_no_character_is_one() -> None:
    """As the last of a text, too: half a character is waited for among bytes only."""
    characters = Characters(["\n", "<unk>", "a", "\ufffd"])
    ids = characters.encode("a\ufffda\ufffd").ids.tolist()
    assert "".join(map(characters.decoder(), ids)) == "a\ufffda\ufffd"


@pytest.mark.parametrize(("content", "missing"), [("a\nb\n", r"'\\n'"), ("\\n\nb\n", "'<unk>'")])
def test_characters_without_a_line_break_or_unk_are_damaged(content: str, missing: str) -> None:
    with pytest.raises(ValueError, match=f"has no {missing}"):
        tokenizer_of("characters", lambda name: content)


def test_a_file_is_read_with_one_line_end_unless_its_bytes_are_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\r\nb\rc\n")
    assert read_text(str(tmp_path / "a.txt"), Characters(["\n", "<unk>"])) == "a\nb\nc\n"
    assert read_text(str(tmp_path / "a.txt"), Symbols(ALL_BYTES)) == "a\r\nb\rc\n"
    (tmp_path / "a.txt").write_bytes(b"a\0b\n")
    assert read_text(str(tmp_path / "a.txt"), Symbols(ALL_BYTES)) == "a\0b\n"
    with pytest.raises(
        DataError, match=r"a\.txt: holds a NUL character at byte 1, which is no text; take it out"
    ):
        read_text(str(tmp_path / "a.txt"), Characters(["\n", "<unk>"]))
    (tmp_path / "a.txt").write_bytes("a text\n".encode("utf-16"))
    with pytest.raises(
        DataError, match=r"a\.txt: not UTF-8 but UTF-16; convert it with: iconv -f utf-16 -t utf-8$"
    ):
        read_text(str(tmp_path / "a.txt"), Symbols(ALL_BYTES))


def test_a_character_in_several_tokens_is_shown_whole() -> None:
    shown = list(map(Symbols(ALL_BYTES).decoder(), "a\u00f6\u6771".encode()))
    assert shown == ["a", "", "\u00f6", "", "", "\u6771"]


def test_a_text_that_is_one_word_is_cut_for_the_training_of_subwords() -> None:
    """Else a merge goes through all of it: a million letters take minutes, ten million hours."""
    words = Subwords.trained([b"AB" * 15_000], 300).words
    assert 256 < max(map(len, words)) <= 1000
    text = f"some words {'x' * 2500} and {'y' * 1000}\n"
    parts = list(_without_long_runs([text, "others\n"]))
    assert "".join(parts) == f"{text}others\n"
    assert parts[0] == "some words "
    assert parts[-1] == "others\n"
    assert max(map(len, " ".join(parts).split())) == 1000


def test_a_byte_that_the_vocabulary_lacks_is_named() -> None:
    """Not where it is: a batch does not know its place in the text."""
    with pytest.raises(
        DataError, match=r"^byte 122 of the text is not in the vocabulary; take it out$"
    ):
        Symbols(["97", "98"]).encode_batch([Document(b"ab"), Document(b"abz")])


def test_bytes_need_not_be_text(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_bytes(b"\0\xff\xc3\n" * 3)
    corpus = open_text(tmp_path, "bytes")
    assert corpus.split("valid").tolist() == list(b"\0\xff\xc3\n" * 3)
    assert corpus.sizes("valid")["bytes"].sum() == 12


def test_a_character_that_train_lacks_is_unk_with_a_notice(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "valid.txt").write_text("the z\n")
    corpus = open_text(folder, "characters")
    assert corpus.vocab.decode(corpus.split("valid")) == ["t", "h", "e", " ", "<unk>", "\n"]
    assert "1 of 6 characters are not in the vocabulary" in caplog.text
    assert encode_text("z", corpus.vocab, name="text").surfaces == ["z"]
    for text, n_line in (("the", 0), ("the\nth", 1), ("the\n", 1)):  # as among words
        read = encode_text(text, corpus.vocab, name="text")
        assert read.sizes["lines"].sum() == n_line


def test_a_trained_vocabulary_is_kept_and_made_anew_for_another_size(folder: Path) -> None:
    one = open_text(folder, "bpe", vocab_size=280)
    assert len(one.vocab) == 280
    (kept,) = (folder / "txl-cache").glob("bpe-vocabulary-*/tokenizer.json")
    stamp = kept.stat().st_mtime_ns
    assert open_text(folder, "bpe", vocab_size=280).vocab.fingerprint() == one.vocab.fingerprint()
    assert kept.stat().st_mtime_ns == stamp
    assert len(open_text(folder, "bpe", vocab_size=290).vocab) == 290


def test_any_tokenizer_is_taken(folder: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "the": 1, "word": 2}, unk_token="[UNK]")
    )
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    theirs.enable_padding(length=50)
    theirs.enable_truncation(3)
    theirs.save(str(tmp_path / "tokenizer.json"))
    corpus = open_text(folder, "bpe", tokenizer=str(tmp_path / "tokenizer.json"))
    assert corpus.vocab.words == ["[UNK]", "the", "word"]
    assert corpus.split("valid")[-5:].tolist() == [2, 1, 2, 1, 0]
    assert corpus.sizes("valid")["bytes"].sum() == len(TEXT.replace("\r\n", "\n").encode())


def test_special_tokens_that_a_text_names_are_noticed_and_read_as_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "the": 1, "word": 2}, unk_token="[UNK]")
    )
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    theirs.add_special_tokens(["<s>", "<s>2"])
    theirs.add_tokens(["of"])  # not special: it is a token of the text
    theirs.save(str(tmp_path / "tokenizer.json"))
    text = {
        "train": "the word of\n",
        "valid": "<s>2 the word\n\n<s> <s> of\n",
        "test": "the word\n",
    }
    for split, content in text.items():
        (tmp_path / f"{split}.txt").write_text(content)
    corpus = open_text(tmp_path, "bpe", tokenizer=str(tmp_path / "tokenizer.json"))
    said = "names special tokens of the tokenizer (3 in all: <s>2 <s>), which are read as text"
    for _ in range(2):  # also of a store that is there
        caplog.clear()
        for split in text:
            corpus.split(split)
        assert [
            said in line and "valid.txt" in line for line in caplog.messages if "special" in line
        ] == [True]
        corpus = open_text(tmp_path, "bpe", tokenizer=str(tmp_path / "tokenizer.json"))
    assert not {corpus.vocab.index["<s>"], corpus.vocab.index["<s>2"]} & set(
        corpus.split("valid").tolist()
    )
    caplog.clear()
    encode_text("the <s>", corpus.vocab, name="prompt")
    assert caplog.messages[0].startswith(
        "prompt: names special tokens of the tokenizer (1 in all: <s>)"
    )


def test_special_tokens_are_tokens_where_that_is_asked_for(folder: Path, tmp_path: Path) -> None:
    theirs = write_folder(tmp_path / "model", "smollm")
    (folder / "valid.txt").write_text("<|im_end|> the word\n")
    path = str(tmp_path / "model" / "tokenizer.json")
    marked = open_text(folder, "bpe", tokenizer=path, special_tokens=True)
    whole = theirs.encode("<|im_end|> the word\n").ids
    again = type(marked.vocab).from_files(marked.vocab.files().__getitem__)
    for vocab in (marked.vocab, again):  # the one of a checkpoint
        assert vocab.encode("<|im_end|> the word\n").ids.tolist() == whole
    assert marked.split("valid").tolist() == [*whole, marked.vocab.end_id]
    with pytest.raises(DataError, match="--special_tokens: are those of a --tokenizer"):
        open_text(folder, "bpe", special_tokens=True)


def test_long_texts_are_encoded_in_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocab = open_text(folder, "bpe").vocab
    monkeypatch.setattr(formats, "LONGEST", 50)
    for text in (TEXT, "short\n", "word " * 99, "unbroken" * 20):
        ids, ends, _ = vocab.encode(text)
        assert vocab.text_of(ids.tolist()) == text  # type: ignore[attr-defined]
        assert ends[-1] == len(text)


def test_a_tokenizer_that_cannot_be_had_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = folder / "tokenizer.json"
    for content in ("", "{", '{"model": 1}', "\0"):
        theirs.write_text(content)
        with pytest.raises(
            DataError, match=r"--tokenizer .*: no tokenizer.json that tokenizers can read"
        ):
            open_text(folder, "bpe", tokenizer=str(theirs))
    with pytest.raises(DataError, match=r"--vocab_size 100: must be at least 257"):
        open_text(folder, "bpe", vocab_size=100)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        DataError, match=r"--dataset bpe: needs Hugging Face tokenizers: pip install tokenizers"
    ):
        Corpus(DataConfig(data=str(folder), dataset="bpe"))


# streams of ids


def write_ids(folder: Path, **arrays: Any) -> Path:
    rows = {
        "train": np.arange(50) % 9,
        "valid": np.arange(20) % 9,
        "test": np.arange(20) % 9,
        **arrays,
    }
    for name, ids in rows.items():
        np.save(folder / f"{name}.npy", ids)
    return folder


def test_streams_of_ids_are_memory_mapped_with_their_documents(tmp_path: Path) -> None:
    write_ids(tmp_path, **{"valid.documents": np.array([0, 7])})
    corpus = open_text(tmp_path, "ids")
    assert len(corpus.vocab) == 9
    assert isinstance(corpus.split("train"), np.memmap)
    assert corpus.split("valid").tolist() == [i % 9 for i in range(20)]
    assert corpus.document_starts("valid").tolist() == [0, 7]
    assert corpus.sizes("valid")["words"].sum() == 0, "nobody knows"
    assert not list(tmp_path.rglob("ids.bin"))
    assert len(open_text(tmp_path, "ids", vocab_size=100).vocab) == 100
    with pytest.raises(DataError, match=r"train\.documents\.npy: no such file"):
        corpus.document_starts("train")


def test_a_text_of_ids_is_its_numbers_each_with_the_white_space_before_it() -> None:
    text = encode_text("1   2\n  3\n", Integers(5), name="text")
    assert (text.ids, text.offsets, text.surfaces) == ([1, 2, 3], [0, 1, 5], ["1", "   2", "\n  3"])
    assert [text.sizes[what].tolist() for what in MEASURES] == [
        [1, 1, 1],
        [0, 0, 2],
        [1, 4, 5],
        [1, 4, 5],
    ]


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_text_without_tokens_is_empty(text: str) -> None:
    with pytest.raises(DataError, match=r"^name: is empty; it needs at least one token"):
        encode_text(text, Integers(5), name="name")


BAD_IDS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "too large": (
        {"valid": np.array([3, 12])},
        {"vocab_size": 9},
        r"valid\.npy: holds ids from 3 to 12, outside .* 9",
    ),
    "negative": (
        {"valid": np.array([3, -1])},
        {"vocab_size": 9},
        r"valid\.npy: holds the id -1; ids count from 0",
    ),
    "negative from the first on": (
        {"valid": np.array([-1, 3])},
        {"vocab_size": 9},
        r"valid\.npy: holds the id -1; ids count from 0",
    ),
    "-1 as uint32": (
        {"valid": np.array([3, 2**32 - 1], np.uint32)},
        {},
        r"holds the id 4294967295; a vocabulary",
    ),
    "floats": (
        {"valid": np.ones(3)},
        {},
        r"valid\.npy: holds float64 of shape \(3,\); it needs integers",
    ),
    "a table": ({"valid": np.ones((3, 2), int)}, {}, r"of shape \(3, 2\)"),
    "empty": ({"valid": np.ones(0, int)}, {}, r"of shape \(0,\)"),
    "objects": ({"valid": np.array([{}])}, {}, r"valid\.npy: .*holds Python objects"),
    "documents": (
        {"valid.documents": np.array([5, 2])},
        {},
        r"valid\.documents\.npy: holds no ascending indices",
    ),
}


@pytest.mark.parametrize(("arrays", "flags", "message"), BAD_IDS.values(), ids=BAD_IDS)
def test_bad_streams_are_named(tmp_path: Path, arrays: Any, flags: Any, message: str) -> None:
    write_ids(tmp_path, **arrays)

    def read() -> None:
        corpus = open_text(tmp_path, "ids", **flags)
        corpus.split("valid")
        corpus.document_starts("valid")

    with pytest.raises(DataError, match=message):
        read()


def test_a_missing_or_cut_stream_is_named(tmp_path: Path) -> None:
    write_ids(tmp_path)
    (tmp_path / "valid.npy").write_bytes((tmp_path / "valid.npy").read_bytes()[:-9])
    with pytest.raises(DataError, match=r"valid\.npy: no array of numpy"):
        open_text(tmp_path, "ids")
    (tmp_path / "valid.npy").unlink()
    with pytest.raises(DataError, match=r"valid\.npy: no such file; --dataset ids needs"):
        open_text(tmp_path, "ids")


REFUSED = {
    "--vocab_size": {"dataset": "text", "vocab_size": 300},
    "--tokenizer": {"dataset": "bytes", "tokenizer": "t.json"},
    "--documents": {"dataset": "wt103", "documents": "row"},
    "--vocab_size 300: the vocabulary is that of --tokenizer": {
        "dataset": "bpe",
        "vocab_size": 300,
        "tokenizer": "t",
    },
}


def test_flags_without_effect_are_refused_and_a_saved_configuration_is_read_again() -> None:
    for message, flags in REFUSED.items():
        with pytest.raises(UsageError, match=message):
            refuse_idle_flags(flags, DataConfig(**flags))
    config = DataConfig(data=("a.txt", "b.txt"), dataset="text")
    assert DataConfig(**json.loads(json.dumps(vars(config)))) == config


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "shape", [f"({10**30},)", f"({2**60},)", f"({2**63 - 1},)", "(-1,)", "(10**30,)", "(" * 50]
)
def test_a_header_that_claims_more_numbers_than_there_can_be_is_named(
    tmp_path: Path, shape: str
) -> None:
    header = (
        f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117)
        + b"\n"
    )
    for name in ("train", "valid"):
        (tmp_path / f"{name}.npy").write_bytes(
            b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
        )
    with pytest.raises(DataError, match=r"train\.npy: no array of numpy"):
        Corpus(DataConfig(data=str(tmp_path), dataset="ids")).split("train")
