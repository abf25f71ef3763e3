"""The characters of a training text."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from .any_files import AnyText
from .datasets import DataSet
from .raw_text import text_of
from .tokenizer import (
    UNK,
    Batch,
    Block,
    Encoded,
    Numbering,
    RunningTokenizer,
    Tokenizer,
    codes_of,
    escaped,
    sizes_of,
)

_N_CODE = 0x110000


class Characters(RunningTokenizer):
    """The characters of a training text, the line break and `<unk>`, which stands for others."""

    unit = "characters"
    names_line_ends = True

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)
        for needed in ("\n", UNK):
            if needed not in self.index:
                raise ValueError(f"has no {needed!r}")
        self._unk = self.index[UNK]
        self._id_of_code = np.full(_N_CODE, self._unk, dtype=np.uint32)
        for i, word in enumerate(self.words):
            if len(word) == 1:
                self._id_of_code[ord(word)] = i

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`. Raises `ValueError` if it is damaged."""
        escaped = [line.replace('"', '\\"') for line in text.removesuffix("\n").split("\n")]
        return cls([json.loads(f'"{line}"') for line in escaped])

    @property
    def eos_id(self) -> int:
        return self.index["\n"]

    def to_text(self) -> str:
        """One character per line, line ends and backslashes escaped as in JSON."""
        return escaped(self.words)

    def encode(self, text: str) -> Encoded:
        ids = self._id_of_code[codes_of(text)]
        return Encoded(ids, np.arange(1, len(ids) + 1))

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        for batch in batches:
            block = _numbered(batch)
            ids = self._id_of_code[block.ids]
            yield block._replace(ids=ids, n_unknown=int((ids == self._unk).sum()))

    def text_of(self, ids: Sequence[int]) -> str:
        return "".join(map(self.words.__getitem__, ids))

    def decoder(self) -> Callable[[int], str]:
        """A token is a whole character, also the one that stands for what is none."""
        return self.words.__getitem__


class CharacterNumbers(Numbering):
    """Characters of splits, counted; their numbers are their codes."""

    def __init__(self) -> None:
        self._counts: dict[str, np.ndarray] = {}

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        for batch in batches:
            block = _numbered(batch)
            counts_V = self._counts.setdefault(batch.split, np.zeros(_N_CODE, dtype=np.int64))
            codes, n = np.unique(block.ids, return_counts=True)
            counts_V[codes] += n
            yield block

    def tokenizer(self, splits: Sequence[str], **limits: Any) -> Tokenizer:
        """The most frequent first, then by code."""
        counts_V = np.zeros(_N_CODE, dtype=np.int64)
        for split in splits:
            if split in self._counts:
                counts_V += self._counts[split]
        codes = np.flatnonzero(counts_V)
        frequent = codes[np.lexsort((codes, -counts_V[codes]))]  # type: ignore[index]
        return Characters(list(dict.fromkeys(["\n", UNK, *map(chr, frequent.tolist())])))

    def table(self, split: str, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
        ids_V = tokenizer._id_of_code
        return ids_V, ids_V == tokenizer.index[UNK]


def _numbered(batch: Batch) -> Block:
    text = text_of(batch.content)
    byte_B = np.frombuffer(batch.content, dtype=np.uint8)
    begins_B = byte_B & 0xC0 != 0x80  # bytes that begin a character
    ends = np.append(0, np.cumsum(begins_B))[list(batch.ends)]
    sizes = None
    if batch.measured:
        sizes = sizes_of(text, np.arange(1, len(text) + 1))
    return Block(codes_of(text), ends, sizes=sizes)


CHARACTERS = DataSet(AnyText, Characters, ("train",), CharacterNumbers)
