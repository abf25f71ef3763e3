"""Requests from outside to stop: signals and the clock."""

import itertools
import signal
import time
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import TypeVar

from txl.runtime.distributed import Ranks, Vote

T = TypeVar("T")

TIME_UP, CLEAN, INTERRUPT, TERMINATE = 1, 2, 3, 4
"""The time limit, SIGUSR1, Ctrl-C, SIGTERM, in order of weight."""
STATUS = {TIME_UP: 0, CLEAN: 0, INTERRUPT: 130, TERMINATE: 143}
"""Exit statuses."""
WORDS = {
    TIME_UP: "stopped by --max_hours",
    CLEAN: "stopped by SIGUSR1",
    INTERRUPT: "interrupted",
    TERMINATE: "stopped by SIGTERM",
}
_SIGNALS = {signal.SIGUSR1: CLEAN, signal.SIGINT: INTERRUPT, signal.SIGTERM: TERMINATE}


class StopNow(Exception):
    """A request arrived where waiting for the next step would take long; its argument is what was asked."""


class StopRequest:
    """Notes SIGTERM, SIGUSR1, Ctrl-C and the end of the time allowed, for the training to act on between two steps.

    A context manager; outside it signals do what they did before.

    Args:
        max_hours: the time allowed, from now.
    """

    def __init__(self, max_hours: float | None = None) -> None:
        self._noted = 0
        self._deadline = None if max_hours is None else time.monotonic() + 3600 * max_hours
        self._before: dict[signal.Signals, object] = {}
        self.at_once = False
        """Raise `StopNow` as soon as a signal arrives; for stretches in which nothing is half done."""

    @property
    def noted(self) -> int:
        """The weightiest request so far; 0: none."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            return max(self._noted, TIME_UP)
        return self._noted

    def __enter__(self) -> "StopRequest":
        try:
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
            self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # train.py puts SIGUSR1 off until now
        except ValueError:  # not in the main thread, where signals do not arrive
            self._before = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = max(self._noted, _SIGNALS[signal.Signals(number)])
        if self.at_once:
            self.at_once = False  # once: whoever catches it must not be interrupted again
            raise StopNow(self._noted)


def until_asked(items: Iterable[T], request: StopRequest, ranks: Ranks, *, every: int = 8) -> Iterator[T]:
    """The items, unless one of several ranks is asked to stop meanwhile; all ranks iterate together.

    They vote every few items, also those that have none left, until none has.

    Raises:
        StopNow: on all ranks alike.
    """
    if ranks.world == 1:  # `StopRequest.at_once` is quicker
        yield from items
        return
    vote, left = Vote(ranks), iter(items)
    for n_vote in itertools.count():
        some = list(itertools.islice(left, every))
        agreed = vote.agree(2 * request.noted + bool(some))  # of the vote before
        if agreed > 1:
            vote.close()
            raise StopNow(agreed // 2)
        if n_vote and not agreed:
            vote.close()
            return
        yield from some
