"""Words in lower case."""

import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from .any_files import AnyText
from .datasets import DataSet
from .raw_text import text_of
from .texts import SPLITS, Texts
from .tokenizer import (
    EOS,
    UNK,
    Batch,
    Block,
    Encoded,
    Numbering,
    Tokenizer,
    UnknownWordError,
    ends_of_words,
    sizes_of,
)


class Vocab(Tokenizer):
    """An ordered list of words; the id of a word is its index.

    Special words come first, then words by descending count, ties by first occurrence, as in
    kimiyoung/transformer-xl. The clusters of adaptive softmax are ranges of ids and rely on this
    order."""

    is_of_words = takes_words = True
    unit = "words"

    @classmethod
    def build(
        cls,
        counts: Counter[str],
        *,
        special: Sequence[str] = (EOS,),
        min_freq: int = 0,
        max_size: int | None = None,
    ) -> "Vocab":
        """The vocabulary of counted words: the special ones, then at most `max_size` others, none
        rarer than `min_freq`. The order of `counts` is that of first occurrence."""
        frequent = [word for word, n in counts.most_common(max_size) if n >= min_freq]
        return cls(list(dict.fromkeys([*special, *frequent])))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`. Raises `ValueError` if a line is blank or there twice."""
        words = text.removesuffix("\n").split("\n")
        if "" in words:
            raise ValueError(f"line {words.index('') + 1} is blank")
        return cls(words)

    @property
    def eos_id(self) -> int:
        return self.index[EOS]

    @property
    def has_eos(self) -> bool:
        return EOS in self.index

    def prompt(self, text: str) -> str:
        if not text.strip():
            return ""
        return text.rstrip(" \t")

    def ids_of(self, words: Iterable[str]) -> list[int]:
        """Ids of words; unknown words become `<unk>`. Raises `UnknownWordError` if there is no
        `<unk>`."""
        ids = list(map(self.index.get, words := list(words)))
        if None not in ids:
            return ids  # type: ignore[return-value]
        unk = self.index.get(UNK)
        if unk is None:
            raise UnknownWordError({word for word, i in zip(words, ids, strict=True) if i is None})
        return [unk if i is None else i for i in ids]

    def encode(self, text: str) -> Encoded:
        """The tokens of a text; a last line without a line end has no `<eos>`."""
        words = list(_words_of(text))
        return Encoded(np.array(self.ids_of(words), dtype=np.int64), ends_of_words(text))

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        for batch in batches:
            numbers = _Numbers()
            block = _numbered(batch, numbers)
            types = list(numbers)
            unknown = [i for i, word in enumerate(types) if word not in self]
            n_unknown = 0
            if unknown:
                n_unknown = int(np.isin(block.ids, unknown).sum())
            ids = np.array(self.ids_of(types), dtype=np.uint32)[block.ids]
            yield block._replace(ids=ids, n_unknown=n_unknown)

    def decoder(self) -> Callable[[int], str]:
        spaced = Spaced()
        return lambda token: spaced(self.decode([token])[0])


class Spaced:
    """Words with one space between them, and line breaks for `<eos>`."""

    def __init__(self) -> None:
        self._begins_line = True

    def __call__(self, word: str) -> str:
        begins_line = self._begins_line
        self._begins_line = word == EOS
        if word == EOS:
            return "\n"
        if begins_line:
            return word
        return f" {word}"


class WordNumbers(Numbering):
    """Words of splits, counted and numbered in the order of first occurrence."""

    def __init__(self, kind: type[Vocab]) -> None:
        self._kind = kind
        self._orders: dict[str, _Numbers] = {}
        self._counts: dict[str, np.ndarray] = {}
        self._n_eos: Counter[str] = Counter()

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        for batch in batches:
            split = batch.split
            order = self._orders.setdefault(split, _Numbers())
            block = _numbered(batch, order)
            counts = np.bincount(block.ids, minlength=len(order))
            before = self._counts.get(split, counts[:0])
            counts[: len(before)] += before
            self._counts[split] = counts
            self._n_eos[split] += block.n_eos
            yield block

    def tokenizer(self, splits: Sequence[str], **limits: Any) -> Tokenizer:
        """Ends of lines do not count, only words that are `<eos>` as written."""
        counts: Counter[str] = Counter()
        for split in splits:
            if order := self._orders.get(split):
                counts.update(dict(zip(order, self._counts[split].tolist(), strict=True)))
        counts[EOS] = sum(map(self._n_eos.__getitem__, splits))
        return self._kind.build(counts, **limits)

    def table(self, split: str, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
        words = self._orders.get(split, {})
        return np.array(tokenizer.ids_of(words), dtype=np.uint32), np.array(
            [word not in tokenizer for word in words]
        )


class _Numbers(dict[str, int]):
    """The number of each word in the order of first occurrence."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def _words_of(text: str) -> list[str]:
    """The words of a text, separated by white space in Python's sense, and `<eos>` for each line
    end."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\n", f" {EOS} ").split()


def _numbered(batch: Batch, numbers: _Numbers) -> Block:
    """The words of a batch as `numbers`, to which new ones are added."""
    text = text_of(batch.content)
    ids = array("I")
    ends: list[int] = []
    n_eos = 0
    for begin, end in itertools.pairwise([0, *batch.ends, len(batch.content)]):
        document = batch.content[begin:end].decode()
        if EOS in document:
            n_eos += document.split().count(EOS)
        ids.extend(map(numbers.__getitem__, _words_of(document)))
        ends.append(len(ids))
    sizes = None
    if batch.measured:
        sizes = sizes_of(text, ends_of_words(text))
    ends_D = np.array(ends[:-1], dtype=np.int64)
    return Block(np.frombuffer(ids, dtype=np.uint32), ends_D, 0, n_eos, sizes)


class LowerVocab(Vocab):
    """Words in lower case, as in the 2019 code's Penn Treebank."""

    @classmethod
    def build(cls, counts: Counter[str], **limits: Any) -> "Vocab":
        lower: Counter[str] = Counter()
        for word, n in counts.items():
            lower[word.lower()] += n
        return super().build(lower, **limits)

    def __contains__(self, word: str) -> bool:
        return word.lower() in self.index

    def ids_of(self, words: Iterable[str]) -> list[int]:
        return super().ids_of(map(str.lower, words))


TEXT = DataSet(
    AnyText,
    Vocab,
    counted=("train",),
    numbering=partial(WordNumbers, Vocab),
    special=(EOS, UNK),
    is_tokenised=False,
)
PTB = DataSet(Texts, LowerVocab, SPLITS, partial(WordNumbers, LowerVocab), special=(EOS,))
