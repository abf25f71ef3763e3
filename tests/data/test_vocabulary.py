"""Words and ids."""

import io
from collections import Counter
from pathlib import Path

import pytest

from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.free_text import encode_text
from txl.data_utils.tokenizers.base import UnknownWordError
from txl.data_utils.tokenizers.words import Vocab


def test_frequent_words_come_first_and_ties_in_the_order_of_the_text() -> None:
    counts = Counter("b a c c a d a".split())
    assert Vocab.build(counts).words == ["<eos>", "a", "c", "b", "d"]


def test_a_special_word_in_the_text_stands_once_and_first() -> None:
    counts = Counter({"x": 5, "<unk>": 9, "<eos>": 2})
    assert Vocab.build(counts, special=("<eos>", "<unk>")).words == ["<eos>", "<unk>", "x"]


def test_min_freq_is_inclusive() -> None:
    assert Vocab.build(Counter(a=3, b=2, c=1), min_freq=2).words == ["<eos>", "a", "b"]


def test_max_size_does_not_count_special_words() -> None:
    assert Vocab.build(Counter(a=3, b=2, c=1), max_size=2).words == ["<eos>", "a", "b"]


def test_words_are_separated_by_every_kind_of_white_space(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text("a\u00a0b\u2009c\u3000d\te\n")
    assert Corpus(DataConfig(data=str(tmp_path), dataset="text")).vocab.words == ["<eos>", "<unk>", *"abcde"]


def test_an_unknown_word_becomes_unk() -> None:
    vocab = Vocab(["<eos>", "<unk>", "a"])
    assert vocab.ids_of(["a", "nowhere", "<eos>"]) == [2, 1, 0]


def test_an_unknown_word_without_unk_is_an_error_that_names_it() -> None:
    with pytest.raises(UnknownWordError) as error:
        Vocab(["<eos>", "a"]).ids_of(["a", "nowhere"])
    assert error.value.words == {"nowhere"}


def test_text_form_is_reversible() -> None:
    vocab = Vocab(["<eos>", "a", "\u00fc", "a#b", '"'])
    assert Vocab.from_text(vocab.to_text()).words == vocab.words


def test_decode_is_the_inverse_of_encode() -> None:
    vocab = Vocab(["<eos>", "a", "b"])
    assert vocab.decode(vocab.ids_of(["b", "a", "b"])) == ["b", "a", "b"]


def test_fingerprints_tell_orders_apart() -> None:
    assert Vocab(["a", "b"]).fingerprint() != Vocab(["b", "a"]).fingerprint()


def test_a_word_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        Vocab(["a", "a"])


def test_a_blank_line_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2 is blank"):
        Vocab.from_text("a\n\nb\n")


def sizes_of(text: str, folder: Path) -> dict[str, int]:
    """What the tokens of a text stand for, summed, as a corpus reads it."""
    for split in ("train", "valid"):
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")
    corpus = Corpus(DataConfig(data=str(folder), dataset="text"))
    return {name: int(size_N.sum()) for name, size_N in corpus.sizes("valid").items()}


TEXTS = {
    "other scripts": " ein sch\u00f6ner Tag\n\n <unk> \u6771\u4eac \u20ac\n",
    "WikiText": " \n = \u00c6r\u00f8 = \n \n \u00c6r\u00f8 is an island . \n",
    "running text": "one two\nthree\n\nfour\n",
    "white space": "one\u00a0two\u3000 three\t\r\nfour\rfive",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_characters_and_bytes_are_those_of_the_file(tmp_path: Path, text: str) -> None:
    sizes = sizes_of(text, tmp_path)
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
