"""A file lock that ends with its process and names it."""

import contextlib
import errno
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from txl.config import UsageError
from txl.files import content_of, errors_naming, not_through_a_link, take_lock
from txl.runtime.records import parse_json

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Lock:
    """A file locked with flock(2), also across hosts on NFS. The system releases the lock when the
    process ends. The file stays until `remove`, so that the next process sees that one was killed.

    Args:
        wait_s: seconds to wait for the lock; may be infinite.
        gives_up: asked while waiting, whether to wait no longer.
    Raises:
        UsageError: if another process holds it, or the file holds something else, which stays.
        OSError: if the file cannot be written, or a link stands in its place.
    """

    def __init__(
        self, path: Path, *, wait_s: float = 0.0, gives_up: Callable[[], object] = bool
    ) -> None:
        self.path = path
        end = time.monotonic() + wait_s
        while not self._taken():
            if time.monotonic() >= end or gives_up():
                raise UsageError(
                    f"--work_dir {path.parent}: {self._holder()} is training in it; wait for it, or"
                    " name another folder"
                )
            time.sleep(0.1)
        with errors_naming(path):
            self.before = os.read(self._file, 4096).decode(errors="replace")
            """The content that a killed process has left; else empty."""
            self._require_own()
            os.ftruncate(self._file, 0)
            me = {
                "host": platform.node(),
                "pid": os.getpid(),
                "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            }
            os.pwrite(self._file, json.dumps(me).encode() + b"\n", 0)

    @property
    def descriptor(self) -> int:
        """Of the open file: a child process that inherits it holds the lock too."""
        return self._file

    def remove(self) -> None:
        """Release the lock and remove the file, unless its folder was renamed and another has the
        name now.
        """
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._file), self.path.lstat()):
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Release the lock; the file stays."""
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _taken(self) -> bool:
        with errors_naming(self.path):
            self._file = not_through_a_link(str(self.path), os.O_RDWR | os.O_CREAT)
            try:
                if not take_lock(self._file, wait=False):
                    self.close()
                    return False
            except OSError as error:
                if error.errno not in _NO_LOCKS:  # a file system without locks is accepted
                    raise
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(self._file).st_ino == self.path.stat().st_ino:
                return True
        self.close()  # the file was removed between the two calls
        return self._taken()

    def _require_own(self) -> None:
        """Raise `UsageError` unless the file is new, or holds what a lock holds: who had it, and
        lines of one word.
        """
        first, *rest = self.before.split("\n")
        try:
            if self.before:
                holder = parse_json(first.encode())
            else:
                holder = {"pid": None}
        except ValueError:
            holder = None
        if (
            not isinstance(holder, dict)
            or "pid" not in holder
            or any(len(line.split()) > 1 for line in rest)
        ):
            self.close()
            raise UsageError(
                f"{self.path}: no lock of txl, which belongs there; move the file, or name another"
                " folder"
            )

    def _holder(self) -> str:
        try:
            who = parse_json(content_of(self.path).partition(b"\n")[0])
            return f"process {who['pid']} on {who['host']}, since {who['since']},"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"
