"""WikiText's words as running text, the inverse of `wikitext.tokenise`."""

import re
import unicodedata
from collections.abc import Callable

from .tokenizers.base import EOS, Tokenizer
from .tokenizers.words import Spaced

_MARKED = {"@-@": "-", "@,@": ",", "@.@": "."}
_JOINS_LEFT = re.compile(r"[,.;:!?%)\]}\u2019\u201d\u00b0\u2032\u2033]|\.{2,}|'\w+")  # curly quotes, degrees, minutes
_OPENS = {"(", "[", "{", "#", "\u201c", "\u2018"}
_EN_DASH, _EM_DASH, _HYPHEN, _FRACTION = "\u2013", "\u2014", "\u2011", "\u2044"
_JOINS_BOTH = {"/", _EM_DASH, _HYPHEN, _FRACTION}


class Detokeniser:
    """Turns the words of a text into running text, one after the other: `a two @-@ part , 1 @.@ 5` becomes
    `a two-part, 1.5`, `= = Title = =` becomes `== Title ==`.

    What the words do not tell is guessed: straight quotes open and close in turn, slashes and dashes between numbers
    have no spaces.
    """

    def __init__(self) -> None:
        self._begin_line()

    def _begin_line(self) -> None:
        self._words: list[str] = []  # of the line
        self._joins_next = True
        self._open: set[str] = set()  # quotes

    def __call__(self, word: str) -> str:
        """The text of the next word, with the white space before it."""
        if word == EOS:
            self._begin_line()
            return "\n"
        joins_left, joins_right = self._joins(word)
        space = "" if joins_left or self._joins_next else " "
        self._joins_next = joins_right
        self._words.append(word)
        return space + _MARKED.get(word, word)

    def _joins(self, word: str) -> tuple[bool, bool]:
        """Whether a word is joined to the one before it, and to the one after it."""
        before = self._words[-1] if self._words else ""
        if word in _MARKED or word in _JOINS_BOTH:
            return True, True
        if word == "=":  # a heading
            return before == "=" == self._words[0], False
        if word in ('"', "'"):
            return self._quote(word, before)
        if word in (_EN_DASH, ":") and before[-1:].isdigit():
            return True, word == _EN_DASH
        if word[0].isdigit() and before == ":" and self._words[-2:-1] and self._words[-2][-1].isdigit():
            return True, False  # 10:30
        if _JOINS_LEFT.fullmatch(word):
            return not (word[0] == "." and before.endswith(".")), False  # dots would run together
        return False, word in _OPENS or unicodedata.category(word[0]) == "Sc"

    def _quote(self, mark: str, before: str) -> tuple[bool, bool]:
        if mark in self._open:
            self._open.remove(mark)
            return True, False
        if mark == "'" and before.endswith("s"):  # the dogs' house
            return True, False
        self._open.add(mark)
        return False, True


def decoder(vocab: Tokenizer, *, tokenised: bool) -> Callable[[int], str]:
    """A function that turns the ids of a text into text, one after the other, each with the white space before it. This
    is the only place where ids become text.

    Args:
        tokenised: the words are tokenised as WikiText's are, and become running text; else they, or the names of other
            tokens, are separated by spaces. `<eos>` is a line break.
    """
    if tokenised and not vocab.is_of_words:
        return vocab.decoder()
    spelled = Detokeniser() if tokenised else Spaced()
    return lambda token: spelled(vocab.decode([token])[0])
