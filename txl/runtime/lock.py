"""A lock on a folder that ends with the process that holds it, and says who that is."""

import contextlib
import errno
import fcntl
import json
import os
import platform
import time
from pathlib import Path

from txl.config import UsageError
from txl.files import naming

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Lock:
    """A file that a living process holds by flock(2), which NFS passes on to other hosts. The system lets go of it when
    the process ends, however it ends; the file stays until `remove`, so that the next one sees that there was one.

    Args:
        wait_s: seconds to wait for a process that is about to end.
    Raises:
        UsageError: if another process holds it.
        OSError: if the file cannot be written.
    """

    def __init__(self, path: Path, *, wait_s: float = 0.0) -> None:
        self.path = path
        end = time.monotonic() + wait_s
        while not self._taken():
            if time.monotonic() >= end:
                raise UsageError(
                    f"--work_dir {path.parent}: {self._holder()} is training in it; wait for it, or name another folder"
                )
            time.sleep(0.1)
        with naming(path):
            self.before = os.read(self._file, 4096).decode(errors="replace")
            """What it said when whoever held it before was cut short; empty if nobody was."""
            os.ftruncate(self._file, 0)
            me = {"host": platform.node(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            os.pwrite(self._file, json.dumps(me).encode() + b"\n", 0)

    def remove(self) -> None:
        """Let go of it, and remove the file."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of it; the file stays."""
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _taken(self) -> bool:
        with naming(self.path):
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                return False
            except OSError as error:
                if error.errno not in _NO_LOCKS:  # where a file system has no locks, the folder goes without
                    raise
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(self._file).st_ino == self.path.stat().st_ino:
                return True
        self.close()  # it was removed between the two calls
        return self._taken()

    def _holder(self) -> str:
        try:
            who = json.loads(self.path.read_text(encoding="utf-8").partition("\n")[0])
            return f"process {who['pid']} on {who['host']}, since {who['since']},"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"
