"""Words and ids."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.free_text import encode_text
from txl.data_utils.tokenizers.base import UnknownWordError
from txl.data_utils.tokenizers.words import Vocab

BUILT: dict[str, tuple[dict[str, int], dict[str, Any], str]] = {  # counts, limits, words after <eos>
    "the most frequent first, then in the order of the text": (Counter("b a c c a d a".split()), {}, "a c b d"),
    "special words once": ({"x": 5, "<unk>": 9, "<eos>": 2}, {"special": ("<eos>", "<unk>")}, "<unk> x"),
    "min_freq is inclusive": ({"a": 3, "b": 2, "c": 1}, {"min_freq": 2}, "a b"),
    "max_size does not count special words": ({"a": 3, "b": 2, "c": 1}, {"max_size": 2}, "a b"),
}


@pytest.mark.parametrize("what", BUILT)
def test_which_words_make_a_vocabulary(what: str) -> None:
    counts, limits, expected = BUILT[what]
    assert Vocab.build(Counter(counts), **limits).words == ["<eos>", *expected.split()]


def test_words_are_separated_by_every_kind_of_white_space(tmp_path: Path) -> None:
    corpus = corpus_of("a\u00a0b\u2009c\u3000d\te\n", tmp_path)
    assert corpus.vocab.words == ["<eos>", "<unk>", *"abcde"]


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


def corpus_of(text: str, folder: Path) -> Corpus:
    for split in ("train", "valid"):
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")
    return Corpus(DataConfig(data=str(folder), dataset="text"))


TEXTS = {
    "other scripts": " ein sch\u00f6ner Tag\n\n <unk> \u6771\u4eac \u20ac\n",
    "WikiText": " \n = \u00c6r\u00f8 = \n \n \u00c6r\u00f8 is an island . \n",
    "running text": "one two\nthree\n\nfour\n",
    "white space": "one\u00a0two\u3000 three\t\r\nfour\rfive",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_characters_and_bytes_are_those_of_the_file(tmp_path: Path, text: str) -> None:
    sizes = {name: int(size_N.sum()) for name, size_N in corpus_of(text, tmp_path).sizes("valid").items()}
    text = text if text.endswith("\n") else text + "\n"  # as a document ends
    assert (sizes["characters"], sizes["bytes"]) == (len(text), len(text.encode()))
    assert (sizes["words"], sizes["lines"]) == (len(text.split()), len(io.StringIO(text, newline=None).readlines()))


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
    assert read.surfaces == ["A", "two", "-", "part", ",", "1", ".", "5", "@-@", '"', "word", '"', "", "a"]
    for surface, offset in zip(read.surfaces, read.offsets, strict=True):
        assert text[offset : offset + len(surface)] == surface
    assert read.sizes["bytes"].sum() == len(text.encode())
