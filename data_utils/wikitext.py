"""WikiText's tokenisation and headings."""

import re

import numpy as np

from .files import DataError
from .vocabulary import EOS, Vocab

_INSIDE_WORD = re.compile(r"(?<=\w)-(?=\w)")
_INSIDE_NUMBER = re.compile(r"(?<=\d)([.,])(?=\d)")
_WORD = re.compile(
    r"""
      @[-.,]@               # an inner hyphen, point or comma that is already marked
    | <unk> | <eos>
    | (?:[^\W\d_]\.){2,}    # U.S., e.g.
    | (?<=\w)'\w+           # the second half of didn 't
    | (?<=\s)'(?:s|t|re|ve|ll|d|m)\b  # the same where it is already split off
    | \w+(?:\.\w+)*         # a word, an os.path
    | \.{2,}
    | \S
    """,
    re.VERBOSE,
)


def tokenise(text: str) -> list[str]:
    """Words of running text, tokenised as WikiText is: `a two-part, 1.5` becomes `a two @-@ part , 1 @.@ 5`.

    Punctuation is split off, inner hyphens and the points and commas of numbers are marked with @, abbreviations such
    as U.S. stay whole. Tokenised text stays as it is, up to white space.
    """
    text = _INSIDE_WORD.sub(" @-@ ", text)
    text = _INSIDE_NUMBER.sub(r" @\1@ ", text)
    return _WORD.findall(text)


def article_starts(ids: np.ndarray, vocab: Vocab) -> np.ndarray:
    """Indices of the first tokens of articles: level-one headings, lines like `= Title =`.

    If the text has blank lines, a heading is between two of them, unlike formulas that begin and end with =.

    Raises:
        DataError: if there is no such line.
    """
    eos, equals = vocab.index[EOS], vocab.index.get("=", -1)
    end_L = np.flatnonzero(ids == eos)
    begin_L = np.append(0, end_L[:-1] + 1)
    first_L, second_L, last_L = (ids[place_L] for place_L in (begin_L, np.minimum(begin_L + 1, end_L), end_L - 1))
    heading_L = (end_L - begin_L > 2) & (first_L == equals) & (second_L != equals) & (last_L == equals)
    blank_L = begin_L == end_L
    if blank_L.any():
        heading_L &= np.append(True, blank_L[:-1]) & np.append(blank_L[1:], True)
    if not heading_L.any():
        raise DataError(
            "--reset document: the text has no line like '= Title =' that begins a document; leave the flag out"
        )
    return begin_L[heading_L]
