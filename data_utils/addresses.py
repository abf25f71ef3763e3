"""The addresses that this user has typed. A checkpoint or another file that names one is no reason to ask it: who made
the file would choose where requests go, and learn that it is read."""

import json
import os
from contextlib import suppress
from pathlib import Path

from txl.files import content_of, not_through_a_link

from .raw_text import DataError
from .remote import is_copied, is_remote, names_in

_OF_THIS_PROCESS = "memory://"
"""Of fsspec: what a program itself has put into its memory."""


def place_of_list() -> Path:
    """The file with one address a line, outside all runs."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "txl" / "addresses.txt"


def remember_typed(data: tuple[str, ...] | str | None) -> None:
    """Note the addresses among what the user has named with --data. Where the list cannot be written they are to be
    typed each time."""
    addresses = [name for name in names_in(data or ()) if is_remote(name)]
    if not addresses:
        return
    typed = _typed_before()
    new = [name for name in addresses if name not in typed]
    if not new:
        return
    with suppress(OSError):
        place_of_list().parent.mkdir(parents=True, exist_ok=True)
        with open(place_of_list(), "a", encoding="utf-8", opener=not_through_a_link) as file:
            file.write("".join(json.dumps(name) + "\n" for name in new))


def require_typed(data: tuple[str, ...] | str, named_in: Path) -> None:
    """Raise `DataError` if a file names an address that this user has not typed, and of which no copy is here."""
    typed = _typed_before()
    for name in names_in(data):
        if is_remote(name) and name not in typed and not name.startswith(_OF_THIS_PROCESS) and not is_copied(name):
            what = f"the address of the text, which {named_in} names and you have not typed"
            raise DataError(f"{name}: {what}; to have it copied from there, give it with --data")


def _typed_before() -> set[str]:
    typed: set[str] = set()
    with suppress(OSError, UnicodeDecodeError):
        for line in content_of(place_of_list()).decode().splitlines():
            with suppress(ValueError, TypeError):
                typed.add(json.loads(line))
    return typed
