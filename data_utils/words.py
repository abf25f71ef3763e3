"""Words in lower case."""

import os
import sys
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, Self

import numpy as np

from .any_files import AnyText
from .datasets import DataSet
from .processes import in_processes
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

_N_PROCESS = 4
"""What one process can take from others without waiting."""
_IN_CACHE = 1 << 15
_END = "\0"
"""Ends a document among the words of a part; no text has it."""


class Vocab(Tokenizer):
    """An ordered list of words; the id of a word is its index.

    Special words come first, then words by descending count, ties by first occurrence, as in
    kimiyoung/transformer-xl. The clusters of adaptive softmax are ranges of ids and rely on this
    order."""

    is_of_words = takes_words = True
    unit = "words"
    batch_bytes = 1 << 22

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
        for _, part in _numbered(batches):
            unknown = [i for i, word in enumerate(part.types) if word not in self]
            n_unknown = 0
            if unknown:
                n_unknown = int(np.isin(part.token_N, unknown).sum())
            ids = np.array(self.ids_of(part.types), dtype=np.uint32)[part.token_N]
            yield Block(ids, part.ends, n_unknown, part.n_eos, part.sizes)

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
        self._orders: dict[str, dict[str, int]] = {}
        self._counts: dict[str, np.ndarray] = {}
        self._n_eos: Counter[str] = Counter()

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        for split, part in _numbered(batches):
            order = self._orders.setdefault(split, {})
            place = order.setdefault
            place_V = np.fromiter(
                (place(word, len(order)) for word in part.types), np.uint32, len(part.types)
            )
            counts = self._counts.get(split, np.zeros(0, dtype=np.int64))
            counts = np.append(counts, np.zeros(len(order) - len(counts), dtype=np.int64))
            counts[place_V] += np.bincount(part.token_N, minlength=len(part.types))
            self._counts[split] = counts
            self._n_eos[split] += part.n_eos
            yield Block(place_V[part.token_N], part.ends, 0, part.n_eos, part.sizes)

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


class _Part(NamedTuple):
    """A part of a text: the types in the order of first occurrence, the tokens as indices into
    them, tokens up to the end of each document, the number of words that are `<eos>` as written,
    and what the tokens stand for."""

    types: list[str]
    token_N: np.ndarray
    ends: np.ndarray
    n_eos: int
    sizes: np.ndarray | None


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


def _number(batch: Batch) -> _Part:
    text = text_of(batch.content)
    numbers = _Numbers({_END: 0})
    tokens = array("I")
    n_eos = 0
    for begin, end in zip([0, *batch.ends], [*batch.ends, len(batch.content)], strict=True):
        for block in _blocks(batch.content, begin, end):
            if EOS in block:
                n_eos += block.split().count(EOS)
            tokens.extend(map(numbers.__getitem__, _words_of(block)))
        tokens.append(0)
    token_N = np.frombuffer(tokens, dtype=np.uint32)
    end_D = np.flatnonzero(token_N == 0)
    token_N = token_N[token_N > 0] - 1
    sizes = None
    if batch.measured:
        sizes = sizes_of(text, ends_of_words(text))
    return _Part(
        list(numbers)[1:], token_N, (end_D - np.arange(len(end_D)))[: len(batch.ends)], n_eos, sizes
    )


def _blocks(content: bytes, begin: int, end: int) -> Iterator[str]:
    """Text in blocks that end at white space and fit into a processor's cache."""
    while begin < end:
        stop = end
        if end - begin > 2 * _IN_CACHE:
            stop = content.find(b"\n", begin + _IN_CACHE, begin + 2 * _IN_CACHE) + 1
            stop = stop or content.find(b" ", begin + _IN_CACHE, end) + 1 or end  # a long line
        yield content[begin:stop].decode()
        begin = stop


def _numbered(batches: Iterable[Batch]) -> Iterator[tuple[str, _Part]]:
    """The split and the part of each batch; of many batches, numbered by several processes."""
    batches = iter(batches)
    first = list(islice(batches, 3))
    n_process = 1
    if sys.platform == "linux":
        n_process = min(_N_PROCESS, len(os.sched_getaffinity(0)))
    if len(first) < 3 or n_process == 1:
        for batch in chain(first, batches):
            yield batch.split, _number(batch)
        return
    splits = deque[str]()

    def noted() -> Iterator[Batch]:
        for batch in chain(first, batches):
            splits.append(batch.split)
            yield batch

    for part in in_processes(_number, noted(), n_process):
        yield splits.popleft(), part


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
