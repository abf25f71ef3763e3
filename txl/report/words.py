"""Words of a text and of command lines: how long ago one was said, and names without the folders of
a machine.
"""

import re
from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

_FOLDERS = re.compile(r"(?:file://|(?<![\w.:/…]))(?:/|~[\w.-]*/)(?:[^/\s'\"=,;]+/)*([^/\s'\"=,;]*)")


def last_said(pieces: Sequence[str], ends_N: np.ndarray) -> np.ndarray:
    """How many tokens back the word that each token is part of was said last, (N,); 0: not before;
    -1: the token is part of no word, but a line end or white space.

    Args:
        pieces: the tokens as text.
        ends_N: words and line ends that end in each token.
    """
    back_N = np.full(len(pieces), -1, dtype=np.int64)
    last: dict[str, int] = {}
    begin = 0
    for end in np.flatnonzero(ends_N).tolist():
        word = "".join(pieces[begin : end + 1]).strip()
        if word:
            back = 0
            if word in last:
                back = end - last[word]
            back_N[begin : end + 1] = back
            last[word] = end
        begin = end + 1
    return back_N


def without_folders(text: str) -> str:
    """A text whose absolute paths are only their last part, after an ellipsis: what is passed on
    tells no home.
    """
    return _FOLDERS.sub(lambda found: f"…/{found[1]}", text)


def short_word(word: str) -> str:
    """A word of a command line or the value of a setting, without the folders of a path that it is
    or sets.
    """
    flag = ""
    value = word
    if word.startswith("-") and "=" in word:
        name, _, value = word.partition("=")
        flag = f"{name}="
    path = PurePath(value.removeprefix("file://"))
    leads_out = path.is_absolute() or ".." in path.parts or value.startswith("~")
    if len(path.parts) > 1 and leads_out:
        value = f"…/{path.name}"
    return without_folders(f"{flag}{value}")
