"""What was found in whole files, kept with their sizes and times: they are read again only when
these change."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from txl.files import sha256

from .raw_text import read_record, reading, write_record

CHECKED = "checked.json"
_SETTLED_NS = 2 * 10**9
"""A younger file may change again without a new modification time."""


class Checks:
    """The results of checks on files, kept in checked.json of a cache folder."""

    def __init__(self, cache: Path) -> None:
        self._path = cache / CHECKED
        self._known = read_record(self._path)
        self._new: dict[str, Any] = {}
        self._young: set[str] = set()

    def result(self, path: Path, what: str, find: Callable[[], str]) -> str:
        """The result of `find`, a check named `what` of the content of a file."""
        with reading(path):
            state = path.stat()
            stamp = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
            name = f"{what} {path.resolve()}"
            match self._known.get(name):
                case [then, str(answer)] if then == stamp:
                    return answer
            age = time.time_ns() - state.st_mtime_ns
            answer = find()
        self._known[name] = [stamp, answer]
        if age > _SETTLED_NS:
            self._new[name] = [stamp, answer]
        else:
            self._young.add(name)
        return answer

    def forget_young(self) -> None:
        """Find again, when asked, what was found in files so young that they may have changed
        without a new time."""
        for name in self._young:
            self._known.pop(name, None)
        self._young.clear()

    def digest(self, path: Path) -> str:
        """The SHA-256 of a file."""
        return self.result(path, "sha256", lambda: sha256(path))

    def save(self) -> None:
        """Keep the new results; a read-only folder is no error."""
        if self._new:
            with suppress(OSError):
                write_record(self._path, {**read_record(self._path), **self._new})
            self._new = {}
