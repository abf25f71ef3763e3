"""Where an evaluation writes what it finds: nowhere that something else stands."""

import os
from collections.abc import Mapping
from pathlib import Path

from txl.config import require
from txl.files import begins_with, is_stream, require_writable
from txl.runtime.records import read_json

STANDARD = "-"
"""The name of standard output."""
_TITLE = b"<title>Does memory help?"
_HEAD = 2000
"""Of a page of `txl report`, in its first bytes."""


def require_outputs(
    outputs: Mapping[str, str | None], inputs: Mapping[str | None, str] | None = None
) -> None:
    """Check, before an evaluation starts, that its files can be written and destroy nothing.

    Args:
        outputs: paths by their flags; None: the flag is not given.
        inputs: the flags of files that are read, by their paths.
    Raises:
        UsageError: if a file is read, written by another flag, too, or there and nothing that the
            flag writes.
        OSError: if it cannot be written.
    """
    taken = {}
    for path, flag in (inputs or {}).items():
        if path and Path(path).is_file():
            taken[os.path.realpath(path)] = taken[_place(path)] = flag
    for flag, path in outputs.items():
        if not path or (path == STANDARD and flag == "--per_token"):
            continue
        require(path != STANDARD, f"{flag} {path}: the table goes to standard output; name a file")
        if is_stream(Path(path)) and not Path(path).is_dir():
            continue
        other = taken.setdefault(_place(path), flag)
        require(other == flag, f"{flag} {path}: is the file of {other}, too; name another one")
        require(
            _may_be_replaced(flag, Path(path)),
            f"{flag} {path}: is there, and is nothing that this flag writes; name another file, or"
            " remove it",
        )
        require_writable(Path(path))


def _place(path: str) -> str:
    """Where a file of this name is put: a link is replaced, and not what it names."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def is_free(path: Path) -> bool:
    """True if there is no file, an empty one, or a link, which alone is replaced."""
    return path.is_symlink() or not path.is_file() or not path.stat().st_size


def _may_be_replaced(flag: str, path: Path) -> bool:
    """True if nothing is lost: the place is free, or has a file as the flag writes it."""
    if is_free(path):
        return True
    if flag == "--json" or (flag == "--per_token" and path.suffix == ".json"):
        return begins_with(path, b"{") and _is_json(path)
    if flag == "--out":
        with path.open("rb") as file:
            return _TITLE in file.read(_HEAD)
    begins = {"--per_token": b"position\ttoken\t", "--token_losses": b"PK"}
    return begins_with(path, begins.get(flag, b""))


def _is_json(path: Path) -> bool:
    """True for an object; a text of them, one in each line, is none."""
    try:
        return isinstance(read_json(path), dict)
    except ValueError:
        return False
