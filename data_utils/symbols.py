"""Vocabularies of bytes: all of them, or those that occur in enwik8 and text8, in the order of the 2019 code."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .files import DataError
from .running import RunningVocab, Tokens

ALL_BYTES = tuple(map(str, range(256)))


class Symbols(RunningVocab):
    """Bytes by their number, `32` is a space. A text begins after a line end or a space. What is not UTF-8 is shown as
    U+FFFD."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)
        codes = [self.byte_of(word) for word in words]
        if not all(0 <= code < 256 for code in codes):
            raise ValueError("a word is no byte")
        self.code_V = np.array(codes, dtype=np.uint8)
        self.id_of_byte = np.full(256, -1, dtype=np.int16)
        self.id_of_byte[self.code_V] = np.arange(len(words))

    @staticmethod
    def byte_of(word: str) -> int:
        """The byte that a word of the vocabulary names."""
        return int(word)

    @staticmethod
    def name_of(byte: int) -> str:
        """Inverse of `byte_of`."""
        return str(byte)

    @classmethod
    def of(cls, texts: Iterable[bytes]) -> "Symbols":
        """The bytes of texts, the most frequent first, ties by first occurrence."""
        counts, first = np.zeros(256, dtype=np.int64), np.full(256, -1, dtype=np.int64)
        n_before = 0
        for text in texts:
            counts += np.bincount(np.frombuffer(text, dtype=np.uint8), minlength=256)
            for byte in np.flatnonzero((counts > 0) & (first < 0)).tolist():
                first[byte] = n_before + text.index(byte)
            n_before += len(text)
        there = np.flatnonzero(counts)
        return cls([cls.name_of(byte) for byte in there[np.lexsort((first[there], -counts[there]))].tolist()])

    @property
    def eos_id(self) -> int:
        return next((int(self.id_of_byte[byte]) for byte in (10, 32) if self.id_of_byte[byte] >= 0), 0)

    def ids(self, content: bytes) -> np.ndarray:
        """The ids of bytes. Raises `DataError` at a byte that is not in the vocabulary."""
        id_N = self.id_of_byte[np.frombuffer(content, dtype=np.uint8)]
        if (id_N < 0).any():
            at = int(np.argmax(id_N < 0))
            raise DataError(f"byte {content[at]} of the text (offset {at}) is not in the vocabulary; take it out")
        return id_N

    def tokens(self, text: str) -> Tokens:
        return Tokens(self.ids(text.encode("utf-8", "surrogateescape")), ends_of_bytes(text))

    def text_of(self, ids: Sequence[int]) -> str:
        return self.code_V[np.asarray(ids, dtype=np.int64)].tobytes().decode("utf-8", "replace")

    def encoded(self, documents: Iterable[bytes]) -> Iterator[np.ndarray]:
        return (self.ids(document) for document in documents)


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


def ends_of_bytes(text: str) -> np.ndarray:
    """The number of characters of a text up to the end of each of its bytes, (N,): a character ends with its last."""
    if text.isascii():
        return np.arange(1, len(text) + 1)
    lengths_C = np.array([len(c.encode("utf-8", "surrogateescape")) for c in text], dtype=np.int64)
    last_N = np.zeros(lengths_C.sum(), dtype=bool)
    last_N[np.cumsum(lengths_C) - 1] = True
    return np.cumsum(last_N)
