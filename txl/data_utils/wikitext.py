"""WikiText's tokenisation, and its inverse."""

import itertools
import re
import string
import unicodedata
from collections.abc import Iterator, Sequence

from .tokens import EOS

_INSIDE_WORD = re.compile(r"(?:(?<=\w)|(?<=<unk>))-(?=\w|<unk>)")
_NUMBER = re.compile(r"(?<![\w.,])\d++(?:[.,](?:\d++|<unk>))++(?!\w)")
_WORD = re.compile(
    r"""
      @[-.,]@               # an inner hyphen, point or comma that is already marked
    | <unk> | <eos> | <formula>
    | (?<=[\w>])'\w+        # the second half of didn 't
    | (?<=\s)'(?:s|t|re|ve|ll|d|m)\b  # the same where it is already split off
    | \.{2,} | -{2,}
    | (?: (?<![\w.)>-]) [.-] )?  # .5, -3
      \w+(?:\.\w+)*           # a word, an os.path
      (?: -(?![\w-]) | \.(?!\.) )?  # 18- and 19-year-olds, U.S.
    | \S
    """,
    re.VERBOSE,
)
_TITLES = (
    "Adm Bros Capt Cmdr Col Corp Cpl Dr Gen Gov Hon Lt Maj Messrs Mr Mrs Ms Op Prof Pvt Rep Rev "
    "Sen Sgt Sr St ssp v vs"
)
_ABBREVIATIONS = {*_TITLES.split(), *string.ascii_uppercase}
_BEFORE_NUMBERS = {"No", "Nos", "Nr", "Art", "pp"}


def tokenise(text: str) -> list[str]:
    """Words of a line of running text, tokenised as WikiText is: `a two-part, 1.5` becomes `a two
    @-@ part , 1 @.@ 5`.

    Punctuation is split off, inner hyphens and the points and commas of numbers are marked with @.
    A full stop stays with abbreviations (`U.S.`, `Dr.`, the initial `J.`), with `No.` before a
    number, and before a lower-case word. Tokenised text stays as it is, up to white space. The
    inverse is `Detokeniser`."""
    text = _INSIDE_WORD.sub(" @-@ ", text)
    text = _NUMBER.sub(lambda number: re.sub("([.,])", r" @\1@ ", number[0]), text)
    split_off = _WORD.findall(text)
    words: list[str] = []
    for word, after in itertools.pairwise([*split_off, ""]):
        stem = word.removesuffix(".")
        is_whole = stem in ("", word) or stem.endswith(".") or _keeps_stop(stem, after)
        if is_whole:
            words.append(word)
        else:
            words += [stem, "."]
    return words


def _keeps_stop(stem: str, after: str) -> bool:
    """Whether WikiText leaves a full stop with the word before it, by the rules of the Moses
    tokeniser."""
    is_dotted = "." in stem and any(map(str.isalpha, stem))
    is_number = stem in _BEFORE_NUMBERS and after[:1].isdigit()
    return is_dotted or is_number or stem in _ABBREVIATIONS or after[:1].islower()


_BLACK = re.compile(r"\S")


def places(line: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Begin and end of each word in a line, in order.

    A WikiText mark that the line does not contain, such as `@-@`, stands for the character inside
    it."""
    end = 0
    for word in words:
        black = _BLACK.search(line, end)
        assert black is not None, f"{word!r} is not in the line"
        begin = black.start()
        end = begin + 1
        if line.startswith(word, begin):
            end = begin + len(word)
        yield begin, end


_MARKED = {"@-@": "-", "@,@": ",", "@.@": "."}
_JOINS_LEFT = re.compile(
    r"[,.;:!?%)\]}\u2019\u201d\u00b0\u2032\u2033]|\.{2,}|'\w+"
)  # curly quotes, degrees, minutes
_OPENS = {"(", "[", "{", "#", "\u201c", "\u2018"}
_EN_DASH = "\u2013"
_EM_DASH = "\u2014"
_HYPHEN = "\u2011"
_FRACTION = "\u2044"
_JOINS_BOTH = {"/", _EM_DASH, _HYPHEN, _FRACTION}


class Detokeniser:
    """Turns the words of a text into running text, one after the other: `a two @-@ part , 1 @.@ 5`
    becomes `a two-part, 1.5`, `= = Title = =` becomes `== Title ==`.

    What the words do not tell is guessed: straight quotes open and close in turn, slashes and
    dashes between numbers have no spaces."""

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
        is_joined = joins_left or self._joins_next
        self._joins_next = joins_right
        self._words.append(word)
        spelled = _MARKED.get(word, word)
        if is_joined:
            return spelled
        return f" {spelled}"

    def _joins(self, word: str) -> tuple[bool, bool]:
        """Whether a word is joined to the one before it, and to the one after it."""
        last_word = ""
        if self._words:
            last_word = self._words[-1]
        if word in _MARKED or word in _JOINS_BOTH:
            return True, True
        if word == "=":  # a heading
            return last_word == "=" == self._words[0], False
        if word in ('"', "'"):
            return self._quote(word, last_word)
        if word in (_EN_DASH, ":") and last_word[-1:].isdigit():
            return True, word == _EN_DASH
        if (
            word[0].isdigit()
            and last_word == ":"
            and self._words[-2:-1]
            and self._words[-2][-1].isdigit()
        ):
            return True, False  # 10:30
        if _JOINS_LEFT.fullmatch(word):
            return not (
                word[0] == "." and last_word.endswith(".")
            ), False  # dots would run together
        return False, word in _OPENS or unicodedata.category(word[0]) == "Sc"

    def _quote(self, mark: str, last_word: str) -> tuple[bool, bool]:
        if mark in self._open:
            self._open.remove(mark)
            return True, False
        if mark == "'" and last_word.endswith("s"):  # the dogs' house
            return True, False
        self._open.add(mark)
        return False, True
