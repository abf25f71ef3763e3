"""Bytes: all of them, or those that occur in enwik8 and text8, in the order of the 2019 code."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from ..raw_text import DataError
from ..sizes import byte_lengths, codes_of, sizes_of
from .base import Batch, Block, Encoded, Numbering, Tokenizer
from .running import RunningTokenizer

ALL_BYTES = tuple(map(str, range(256)))


class Symbols(RunningTokenizer):
    """Bytes by their number, `32` is a space. A text begins after a line end or a space. What is not UTF-8 is shown as
    U+FFFD."""

    takes_words = keeps_line_ends = True

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)
        codes = [self.byte_of(word) for word in words]
        if not all(0 <= code < 256 for code in codes):
            raise ValueError("a word is no byte")
        if len(set(codes)) != len(codes):
            raise ValueError("a byte is in the vocabulary twice")
        self.code_V = np.array(codes, dtype=np.uint8)
        self.id_of_byte = np.full(256, -1, dtype=np.int16)
        self.id_of_byte[self.code_V] = np.arange(len(words))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`. Raises `ValueError` if it is damaged."""
        return cls(text.removesuffix("\n").split("\n"))

    @staticmethod
    def byte_of(word: str) -> int:
        """The byte that a word of the vocabulary names."""
        return int(word)

    @staticmethod
    def name_of(byte: int) -> str:
        """Inverse of `byte_of`."""
        return str(byte)

    @property
    def eos_id(self) -> int:
        return next((int(self.id_of_byte[byte]) for byte in (10, 32) if self.id_of_byte[byte] >= 0), 0)

    def ids(self, content: bytes) -> np.ndarray:
        """The ids of bytes. Raises `DataError` at a byte that is not in the vocabulary."""
        id_N = self.id_of_byte[np.frombuffer(content, dtype=np.uint8)]
        if (id_N < 0).any():  # where in its file is not known here: this may be one of many batches
            raise DataError(f"byte {content[np.argmax(id_N < 0)]} of the text is not in the vocabulary; take it out")
        return id_N

    def encode(self, text: str) -> Encoded:
        return Encoded(self.ids(text.encode("utf-8", "surrogateescape")), ends_of_bytes(text))

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        for batch in batches:
            yield Block(self.ids(batch.content), np.array(batch.ends, dtype=np.int64), sizes=_sizes_of(batch))

    def text_of(self, ids: Sequence[int]) -> str:
        return self.code_V[np.asarray(ids, dtype=np.int64)].tobytes().decode("utf-8", "replace")


class Text8Symbols(Symbols):
    """Characters; `_` is a space, and what text8 does not have is named by its number."""

    @staticmethod
    def byte_of(word: str) -> int:
        if len(word) == 1:
            return 32 if word == "_" else ord(word)
        return int(word.removeprefix("<").removesuffix(">"))

    @staticmethod
    def name_of(byte: int) -> str:
        return "_" if byte == 32 else chr(byte) if chr(byte).isalnum() and byte < 128 else f"<{byte}>"


class ByteNumbers(Numbering):
    """Bytes of splits, counted, with the place of the first of each."""

    def __init__(self, kind: type[Symbols]) -> None:
        self._kind = kind
        self._counts: dict[str, np.ndarray] = {}
        self._first: dict[str, np.ndarray] = {}

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        for batch in batches:
            codes = np.frombuffer(batch.content, dtype=np.uint8)
            counts_V = self._counts.setdefault(batch.split, np.zeros(256, dtype=np.int64))
            first_V = self._first.setdefault(batch.split, np.full(256, -1, dtype=np.int64))
            n_before = int(counts_V.sum())
            counts_V += np.bincount(codes, minlength=256)
            for byte in np.flatnonzero((counts_V > 0) & (first_V < 0)).tolist():
                first_V[byte] = n_before + batch.content.index(byte)
            yield Block(codes, np.array(batch.ends, dtype=np.int64), sizes=_sizes_of(batch))

    def tokenizer(self, splits: Sequence[str], **limits: Any) -> Tokenizer:
        """The most frequent first, ties by first occurrence."""
        counts_V, first_V, n_before = np.zeros(256, dtype=np.int64), np.full(256, -1, dtype=np.int64), 0
        for split in splits:
            new_V = (first_V < 0) & (self._first[split] >= 0)
            first_V[new_V] = n_before + self._first[split][new_V]
            counts_V += self._counts[split]
            n_before += int(self._counts[split].sum())
        there = np.flatnonzero(counts_V)
        ordered = there[np.lexsort((first_V[there], -counts_V[there]))]
        return self._kind([self._kind.name_of(byte) for byte in ordered.tolist()])

    def table(self, split: str, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
        return tokenizer.id_of_byte.astype(np.uint32), np.zeros(256, dtype=bool)


def _sizes_of(batch: Batch) -> np.ndarray | None:
    if not batch.measured:
        return None
    text = batch.content.decode(errors="surrogateescape")
    return sizes_of(text, ends_of_bytes(text))


def ends_of_bytes(text: str) -> np.ndarray:
    """The number of characters of a text up to the end of each of its bytes, (N,): a character ends with its last."""
    if text.isascii():
        return np.arange(1, len(text) + 1)
    lengths_C = byte_lengths(codes_of(text))
    last_N = np.zeros(lengths_C.sum(), dtype=bool)
    last_N[np.cumsum(lengths_C) - 1] = True
    return np.cumsum(last_N)
