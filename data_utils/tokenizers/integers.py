"""Numbers that stand for anything."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Self

import numpy as np

from ..raw_text import DataError
from .base import Batch, Block, Encoded
from .running import RunningTokenizer

LARGEST = 2**24
"""Tokens of a vocabulary."""


class Integers(RunningTokenizer):
    """Numbers from 0 on; as text, between spaces. A text begins after the number 0."""

    def __init__(self, n_token: int) -> None:
        self.words = _Names(n_token)
        self.index = _Numbers(n_token)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`. Raises `ValueError` if it is damaged."""
        n_token = text.count("\n")
        if not text.endswith(f"{n_token - 1}\n") or not text.startswith("0\n"):
            raise ValueError("holds something else than the numbers from 0 on")
        return cls(n_token)

    @property
    def eos_id(self) -> int:
        return 0

    def files(self) -> dict[str, str]:
        return {"vocab.txt": self.to_text()}

    def to_text(self) -> str:
        """One number per line."""
        return "".join(f"{i}\n" for i in range(len(self)))

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for begin in range(0, len(self), 1 << 20):
            digest.update("".join(f"{i}\n" for i in range(begin, min(begin + (1 << 20), len(self)))).encode())
        return digest.hexdigest()

    def encode(self, text: str) -> Encoded:
        words = text.split()
        if unknown := [word for word in words if word not in self]:
            raise DataError(f"{unknown[0]!r}: no number from 0 to {len(self) - 1}; give ids separated by white space")
        ends = np.cumsum([len(word) + 1 for word in words])
        return Encoded(np.array([int(word) for word in words], dtype=np.int64), np.minimum(ends, len(text)))

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        raise NotImplementedError("ids are read as they are")

    def text_of(self, ids: Iterable[int]) -> str:
        return "".join(f" {i}" for i in ids)

    def decoder(self) -> Callable[[int], str]:
        return lambda token: f" {token}"


class _Names(Sequence[str]):
    """The names of numbers, a sequence that needs no memory."""

    def __init__(self, n_token: int) -> None:
        self._numbers = range(n_token)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, i: int) -> str:  # type: ignore[override] (no slices)
        return str(self._numbers[i])

    def __iter__(self) -> Iterator[str]:
        return map(str, self._numbers)


class _Numbers(Mapping[str, int]):
    """The number of each name."""

    def __init__(self, n_token: int) -> None:
        self._n_token = n_token

    def __getitem__(self, name: str) -> int:
        if name.isascii() and name.isdigit() and str(int(name[:20])) == name and int(name) < self._n_token:
            return int(name)
        raise KeyError(name)

    def __len__(self) -> int:
        return self._n_token

    def __iter__(self) -> Iterator[str]:
        return map(str, range(self._n_token))
