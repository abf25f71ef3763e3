"""WikiText's tokenisation."""

import re
import string

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
    "Adm Bros Capt Cmdr Col Corp Cpl Dr Gen Gov Hon Lt Maj Messrs Mr Mrs Ms Op Prof Pvt Rep Rev Sen Sgt Sr St ssp v vs"
)
_ABBREVIATIONS = {*_TITLES.split(), *string.ascii_uppercase}
_BEFORE_NUMBERS = {"No", "Nos", "Nr", "Art", "pp"}


def tokenise(text: str) -> list[str]:
    """Words of a line of running text, tokenised as WikiText is: `a two-part, 1.5` becomes `a two @-@ part , 1 @.@ 5`.

    Punctuation is split off, inner hyphens and the points and commas of numbers are marked with @. A full stop stays
    with abbreviations (`U.S.`, `Dr.`, the initial `J.`), with `No.` before a number, and before a lower-case word.
    Tokenised text stays as it is, up to white space. The inverse is `txl.data_utils.detokenise`.
    """
    text = _INSIDE_WORD.sub(" @-@ ", text)
    text = _NUMBER.sub(lambda number: re.sub("([.,])", r" @\1@ ", number[0]), text)
    found = _WORD.findall(text)
    words: list[str] = []
    for word, after in zip(found, [*found[1:], ""], strict=False):
        stem = word.removesuffix(".")
        is_whole = stem in ("", word) or stem.endswith(".") or _keeps_stop(stem, after)
        words += [word] if is_whole else [stem, "."]
    return words


def _keeps_stop(stem: str, after: str) -> bool:
    """Whether WikiText leaves a full stop with the word before it, by the rules of the Moses tokeniser."""
    is_dotted = "." in stem and any(map(str.isalpha, stem))
    is_number = stem in _BEFORE_NUMBERS and after[:1].isdigit()
    return is_dotted or is_number or stem in _ABBREVIATIONS or after[:1].islower()
