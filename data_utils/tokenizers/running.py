"""What tokenizers of running text share: any text becomes ids and comes back."""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence

from .base import Tokenizer

_LONGEST_CHARACTER = 8
"""Tokens after which what is not yet a character is given up on."""


def escaped(words: Iterable[str]) -> str:
    """One token per line, line ends and backslashes escaped as in JSON."""
    return "".join(json.dumps(word, ensure_ascii=False)[1:-1].replace('\\"', '"') + "\n" for word in words)


class RunningTokenizer(Tokenizer):
    """Pieces of running text, white space included."""

    @abstractmethod
    def text_of(self, ids: Sequence[int]) -> str:
        """The text of ids; inverse of `encode` where the tokenizer loses nothing."""

    def decoder(self) -> Callable[[int], str]:
        """As `Tokenizer.decoder`; a character in several tokens comes with its last."""
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
