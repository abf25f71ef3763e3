"""Vocabularies whose tokens are not words: any text becomes ids and comes back."""

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .files import DataError
from .vocabulary import UNK, Vocab

_BREAKS = (10, 13)
_SPACES = np.array([i for i in range(0x3001) if chr(i).isspace()])
_LONGEST_CHARACTER = 8
"""Tokens after which what is not yet a character is given up on."""


class Tokens(NamedTuple):
    """The tokens of a text: ids, and for each the number of characters up to its end, (N,)."""

    ids: np.ndarray
    ends: np.ndarray


class RunningVocab(Vocab):
    """A vocabulary of pieces of running text. `words` names them; `eos_id` is the token before the first of a text."""

    @abstractmethod
    def tokens(self, text: str) -> Tokens:
        """The tokens of a text."""

    @abstractmethod
    def text_of(self, ids: Sequence[int]) -> str:
        """The text of ids; inverse of `tokens` where the tokenizer loses nothing."""

    def prompt(self, text: str) -> str:
        """All of the text: white space is tokens too."""
        return text

    end_id: int | None = None
    """The token that ends each document of a corpus, if there is one."""

    def encoded(self, documents: Iterable[bytes]) -> Iterator[np.ndarray]:
        """The ids of each document, with the token that ends it, on all threads if the tokenizer has them."""
        for document in documents:
            yield self.tokens(document.decode()).ids

    def decoder(self) -> Callable[[int], str]:
        """A function that turns ids into text, one after the other; a character in several tokens comes with its
        last."""
        before: list[int] = []
        held: list[int] = []

        def piece(token: int) -> str:
            nonlocal before, held
            held = [*held, token]
            text = self.text_of(before + held)
            if text.endswith("\ufffd") and len(held) < _LONGEST_CHARACTER:
                return ""
            known = len(self.text_of(before))
            before, held = held, []
            return text[known:]

        return piece

    def sizes(self, text: str, tokens: Tokens) -> dict[str, np.ndarray]:
        """Words, lines, characters, bytes and `<unk>` that each token counts for, (N,) each, as a vocabulary of words
        counts them: a word belongs to the token it ends in, and a last line without a line end counts."""
        code_C = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        space_C = np.isin(code_C, _SPACES)
        break_C = np.isin(code_C, _BREAKS)
        break_C[:-1] &= ~((code_C[:-1] == 13) & (code_C[1:] == 10))  # of \r\n the second counts
        n_byte_C = 1 + (code_C > 0x7F) + (code_C > 0x7FF) + (code_C > 0xFFFF)
        n_byte_C[(code_C >= 0xDC80) & (code_C <= 0xDCFF)] = 1  # a byte that is no text
        word_ends_C = ~space_C & np.append(space_C[1:], True)
        if len(break_C) and not break_C[-1]:
            break_C[-1] = True
        counted = {"words": word_ends_C, "lines": break_C, "characters": np.ones_like(n_byte_C), "bytes": n_byte_C}
        ends_N = np.maximum.accumulate(tokens.ends)
        if len(ends_N):
            ends_N[-1] = len(text)
        sums = {name: np.append(0, np.cumsum(each_C))[ends_N] for name, each_C in counted.items()}
        unknown = np.asarray(tokens.ids) == self.index.get(UNK, -1)
        return {name: np.diff(sum_N, prepend=0) for name, sum_N in sums.items()} | {"unknown": unknown}

    def to_text(self) -> str:
        """One token per line, line ends and backslashes escaped as in JSON."""
        return "".join(f"{_escaped(word)}\n" for word in self.words)


def _escaped(word: str) -> str:
    return json.dumps(word, ensure_ascii=False)[1:-1].replace('\\"', '"')


class Characters(RunningVocab):
    """The characters of a training text, the line break and `<unk>`."""

    @classmethod
    def of(cls, documents: Iterable[bytes]) -> "Characters":
        """The characters of documents, the most frequent first, then by code."""
        counts: Counter[str] = Counter()
        for document in documents:
            counts.update(document.decode())
        frequent = sorted(counts, key=lambda c: (-counts[c], c))
        return cls(list(dict.fromkeys(["\n", UNK, *frequent])))

    @classmethod
    def from_text(cls, text: str) -> "Characters":
        """Inverse of `to_text`. Raises `ValueError` if it is damaged."""
        escaped = [line.replace('"', '\\"') for line in text.removesuffix("\n").split("\n")]
        return cls([json.loads(f'"{line}"') for line in escaped])

    @property
    def eos_id(self) -> int:
        return self.index["\n"]

    def tokens(self, text: str) -> Tokens:
        code_N = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        codes, place_N = np.unique(code_N, return_inverse=True)
        unk = self.index[UNK]
        ids = np.array([self.index.get(chr(code), unk) for code in codes], dtype=np.uint32)
        return Tokens(ids[place_N], np.arange(1, len(code_N) + 1))

    def text_of(self, ids: Sequence[int]) -> str:
        return "".join(self.words[i] for i in ids)


class Integers(RunningVocab):
    """Numbers from 0 on that stand for anything; as text, between spaces. A text begins after the number 0."""

    @property
    def eos_id(self) -> int:
        return 0

    def tokens(self, text: str) -> Tokens:
        words = text.split()
        if unknown := [word for word in words if word not in self]:
            raise DataError(f"{unknown[0]!r}: no number from 0 to {len(self) - 1}; give ids separated by white space")
        ends = np.cumsum([len(word) + 1 for word in words])
        return Tokens(np.array(self.encode(words), dtype=np.int64), np.minimum(ends, len(text)))

    def text_of(self, ids: Sequence[int]) -> str:
        return "".join(f" {i}" for i in ids)
