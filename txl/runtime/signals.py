"""Requests to stop: signals and the time limit."""

import itertools
import os
import signal
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import NoReturn, Self, TypeVar

from txl.runtime.distributed import Ranks, Vote

T = TypeVar("T")

TIME_UP, USER_1, USER_2, INTERRUPT, HANGUP, TERMINATE, ORPHANED = range(1, 8)
"""The time limit, SIGUSR1, SIGUSR2, Ctrl-C, SIGHUP, SIGTERM, the end of torchrun, in order of
priority.
"""
STATUS = {
    TIME_UP: 0,
    USER_1: 0,
    USER_2: 0,
    INTERRUPT: 130,
    HANGUP: 129,
    TERMINATE: 143,
    ORPHANED: 143,
}
"""Exit statuses."""
WORDS = {
    TIME_UP: "stopped by --max_hours",
    USER_1: "stopped by SIGUSR1",
    USER_2: "stopped by SIGUSR2",
    INTERRUPT: "interrupted",
    HANGUP: "stopped by SIGHUP",
    TERMINATE: "stopped by SIGTERM",
    ORPHANED: "torchrun has ended, so this run has too,",
}
GO_ON = "continue with --resume"
"""The end of the line in which a training says that it was stopped."""
_PARENT = os.getppid()
"""Of the process that has started, as this module is imported."""
_SIGNALS = {
    signal.SIGUSR1: USER_1,  # what Slurm scripts send before a time limit
    signal.SIGUSR2: USER_2,  # what submitit sends, because NCCL takes SIGUSR1
    signal.SIGINT: INTERRUPT,
    signal.SIGHUP: HANGUP,  # the terminal or the connection is gone
    signal.SIGTERM: TERMINATE,
}


def status_after(number: int) -> int:
    """The exit status of a training that a signal has stopped, or killed."""
    if number in _SIGNALS:
        return STATUS[_SIGNALS[signal.Signals(number)]]
    return 128 + number


def _handled() -> list[signal.Signals]:
    """The signals that are requests. nohup has SIGHUP ignored, and it stays so."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in _SIGNALS if number != signal.SIGHUP or not is_ignored]


class StopNow(Exception):
    """A request to stop during an evaluation; its argument is the request."""


class StopRequest:
    """Records SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, Ctrl-C, the end of the time limit and that of
    torchrun, which the training checks after each step. What torchrun has started would train on
    without it, and nobody could stop or restart it.

    A context manager that restores the previous signal handlers.

    Args:
        max_hours: the time limit, from the start of the program.
        before_s: seconds from that until now.
    """

    def __init__(self, max_hours: float | None = None, *, before_s: float = 0.0) -> None:
        self._noted = 0
        if "TORCHELASTIC_RUN_ID" in os.environ:
            self._agent = _PARENT
        else:
            self._agent = None
        if max_hours is None:
            self._deadline = None
        else:
            self._deadline = time.monotonic() + 3600 * max_hours - before_s
        self._before: dict[signal.Signals, object] = {}
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
        self.at_once = False
        """Raise `StopNow` as soon as a signal arrives.

        Only for code that can be interrupted anywhere.
        """

    @property
    def noted(self) -> int:
        """The request of highest priority so far; 0: none."""
        if self._agent is not None and os.getppid() != self._agent:
            return ORPHANED
        if self._deadline is not None and time.monotonic() > self._deadline:
            return max(self._noted, TIME_UP)
        return self._noted

    def __enter__(self) -> Self:
        try:
            self._before = {number: signal.signal(number, self._note) for number in _handled()}
            # launch.py blocks some until now
            self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        except ValueError:  # not in the main thread, which alone can handle signals
            self._before = {}
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = max(self._noted, _SIGNALS[signal.Signals(number)])
        if number == signal.SIGHUP:
            self._leave_terminals()
        if self.at_once:
            self.stop_now(self._noted)

    def _leave_terminals(self) -> None:
        """Send to /dev/null what a terminal that is gone would have shown: writing to it fails, and
        the run is yet to be saved.
        """
        for descriptor in self._terminals:
            if not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)

    def stop_now(self, request: int) -> NoReturn:
        """Raise `StopNow`, once: its handler must not be interrupted."""
        self.at_once = False
        raise StopNow(request)


def until_stopped(items: Iterable[T], request: StopRequest, ranks: Ranks) -> Iterator[T]:
    """The items, until any rank is asked to stop. All ranks iterate together and vote every 8
    items, until none has items left. Raises `StopNow` on all ranks.
    """
    if ranks.world == 1:  # `StopRequest.at_once` interrupts an item too
        for item in items:
            if noted := request.noted:
                request.stop_now(noted)
            yield item
        return
    vote = Vote(ranks)
    left = iter(items)
    for n_vote in itertools.count():
        some = list(itertools.islice(left, 8))
        agreed = vote.agree(2 * request.noted + bool(some))  # of the previous vote
        if agreed > 1:
            vote.close()
            request.stop_now(agreed // 2)
        if n_vote and not agreed:
            vote.close()
            return
        yield from some
