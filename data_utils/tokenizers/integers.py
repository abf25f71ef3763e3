"""Numbers that stand for anything."""

import re
from collections.abc import Callable, Iterable, Iterator
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
        super().__init__([str(i) for i in range(n_token)])

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

    def encode(self, text: str) -> Encoded:
        found = list(re.finditer(r"\S+", text))
        words, ends = [one[0] for one in found], [one.end() for one in found]
        if unknown := [word for word in words if word not in self]:
            raise DataError(f"{unknown[0]!r}: no number from 0 to {len(self) - 1}; give ids separated by white space")
        return Encoded(np.array(words, dtype=np.int64), np.array(ends, dtype=np.int64))

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        raise NotImplementedError("ids are read as they are")

    def text_of(self, ids: Iterable[int]) -> str:
        return "".join(f" {i}" for i in ids)

    def decoder(self) -> Callable[[int], str]:
        return lambda token: f" {token}"
