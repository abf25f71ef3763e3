"""What a text is, at a first look: how large, and whether its words stand between spaces."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .any_files import AnyFiles, AnyText
from .checks import Checks
from .datasets import DataConfig
from .files import CACHE, home_of
from .remote import with_copies

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
)
"""Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_MANY_UNSPACED = 0.2
_FEW_SPACES = 0.05
"""Shares of the characters of a text."""
_FILES_LOOKED_AT = 20
_BYTES_LOOKED_AT = 100_000


class Survey(NamedTuple):
    """A text at a first look.

    Attributes:
        n_byte: of the training text, that which will be held out of it included.
        n_char: characters of it, estimated from its beginnings.
        n_file: its files.
        has_spaces: words stand between spaces.
        is_held_out: valid or test are held out of it; else files name them.
    """

    n_byte: int
    n_char: int
    n_file: int
    has_spaces: bool
    is_held_out: bool


def survey(config: DataConfig) -> Survey:
    """Look at the text of --data, which may be any files. Raises `DataError` if there is none, or
    it cannot be read."""
    here = with_copies(config)
    checks = Checks(Path(config.cache_dir or home_of(here.data) / CACHE))
    texts = AnyText(here, checks)
    texts.require("train")
    files = texts.files("train")
    n_byte = 0
    for path in files:
        n_byte += texts.extent_of(path).n_byte
    checks.save()
    beginnings = list(_beginnings(texts, files))
    n_looked_at = sum(map(len, beginnings))
    sample = b"".join(beginnings).decode(errors="replace")
    n_char = round(n_byte * len(sample) / max(1, n_looked_at))
    return Survey(n_byte, n_char, len(files), has_spaces(sample), bool(texts.dealt))


def _beginnings(texts: AnyFiles, files: Sequence[Path]) -> Iterator[bytes]:
    """The beginnings of files from all over."""
    step = -(-len(files) // _FILES_LOOKED_AT)
    for path in files[:: max(1, step)]:
        n_left = _BYTES_LOOKED_AT
        for piece in texts.pieces_in(path):
            yield piece.content[:n_left]
            n_left -= len(piece.content)
            if n_left <= 0:
                break


def has_spaces(text: str) -> bool:
    """True if words stand between spaces, as in most scripts."""
    n_unspaced = len(_UNSPACED.findall(text))
    n_space = sum(map(str.isspace, text))
    return n_unspaced < _MANY_UNSPACED * len(text) and n_space >= _FEW_SPACES * len(text)
