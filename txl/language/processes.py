"""Work in a process of its own, bounded in memory and time."""

import os
import resource
import signal
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from txl.data_utils.errors import DataError

MEMORY = 2 << 30
"""Bytes that a process may take besides those that it begins with."""
_A_THREAD = 128 << 20
"""Bytes of addresses that a thread reserves."""


class Apart:
    """Calls methods of what `make` returns, in a forked process that begins with the first call and
    ends with this object, or with the process that has begun it.

    Args:
        name: of the thing, in errors.
    """

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._make = make
        self._name = name
        self._pipe: Connection | None = None
        self._pid = self._owner = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_pipe": None}  # a copy has a process of its own

    def call(self, method: str, *args: Any, seconds: int) -> Any:
        """The answer of a method, pickled and back.

        Args:
            seconds: of processor time that it may take.
        Raises:
            ValueError: that the method raises, or in place of another error.
            DataError: if it takes more memory or time.
        """
        if self._pipe is None or self._owner != os.getpid():  # a fork must not share the pipe
            self._begin()
        assert self._pipe is not None
        try:
            self._pipe.send((method, args, seconds))
            answer, error = self._pipe.recv()
        except (EOFError, OSError):
            raise DataError(
                f"{self._name}: {self._why_it_ended(seconds)}; give another, or another text"
            ) from None
        if error is not None:
            raise ValueError(error)
        return answer

    def _begin(self) -> None:
        self._pipe, theirs = Pipe()
        self._owner = os.getpid()
        with warnings.catch_warnings():  # of threads, none of which this process needs
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            self._pipe.close()
            _serve(self._make, theirs)
        theirs.close()
        weakref.finalize(self, _end, self._pipe, self._pid, self._owner)  # also as Python ends

    def _why_it_ended(self, seconds: int) -> str:
        assert self._pipe is not None
        self._pipe.close()
        self._pipe = None
        _, status = os.waitpid(self._pid, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            return f"takes more than {seconds} s of processor time"
        return f"takes more than {MEMORY >> 20} MiB of memory, or fails"


def _end(pipe: Connection, pid: int, owner: int) -> None:
    """End a process that this one has begun.

    That the pipe is closed does not end it: processes that were forked since hold the same end, and
    may wait for this one, which is in any line of the program when an object is collected.
    """
    if owner == os.getpid() and not pipe.closed:
        pipe.close()
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _serve(make: Callable[[], Any], pipe: Connection) -> NoReturn:
    """Answer until the other end is closed. Ctrl-C is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # of what libraries print when they abort
        os.dup2(nowhere, descriptor)
    os.closerange(3, pipe.fileno())  # locks of the parent among them
    os.closerange(pipe.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(resource.RLIMIT_AS, _addresses() + MEMORY + _A_THREAD * (os.cpu_count() or 1))
    served: Any = None
    with suppress(EOFError, OSError):
        while True:
            method, args, seconds = pipe.recv()
            used = resource.getrusage(resource.RUSAGE_SELF)
            _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds)
            try:
                if served is None:
                    served = make()
                answer = getattr(served, method)(*args), None
            except BaseException as error:  # a panic of a library in Rust is no Exception
                answer = None, (str(error).splitlines() or [type(error).__name__])[0][:300]
            pipe.send(answer)
    os._exit(0)


def _limit(what: int, most: int) -> None:
    """Set a soft limit of the system, as far as the hard one allows it."""
    hard = resource.getrlimit(what)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(what, (most, hard))


def _addresses() -> int:
    """Bytes of addresses that this process has reserved."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux
        return 64 << 30
