"""WikiText's way of writing text as words."""

import re

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
    """Words of running text, in WikiText's manner: `a two-part, 1.5` becomes `a two @-@ part , 1 @.@ 5`.

    Punctuation stands alone, inner hyphens and the points and commas of numbers are marked with @, abbreviations such
    as U.S. stay whole. Text that is already so written stays as it is, up to white space.
    """
    text = _INSIDE_WORD.sub(" @-@ ", text)
    text = _INSIDE_NUMBER.sub(r" @\1@ ", text)
    return _WORD.findall(text)
