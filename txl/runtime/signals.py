"""Requests from outside to stop: signals and the clock."""

import signal
import time
from types import FrameType, TracebackType

CLEAN = 1
"""SIGUSR1 or the time limit: save and exit with status 0. Numbers are in order of weight."""
INTERRUPT = 2
TERMINATE = 3
STATUS = {CLEAN: 0, INTERRUPT: 130, TERMINATE: 143}
_SIGNALS = {signal.SIGUSR1: CLEAN, signal.SIGINT: INTERRUPT, signal.SIGTERM: TERMINATE}


class StopNow(Exception):
    """A request arrived where waiting for the next step would take long."""


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
            return max(self._noted, CLEAN)
        return self._noted

    def __enter__(self) -> "StopRequest":
        try:
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        except ValueError:  # not in the main thread, where signals do not arrive
            self._before = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = max(self._noted, _SIGNALS[signal.Signals(number)])
        if self.at_once:
            self.at_once = False  # once: whoever catches it must not be interrupted again
            raise StopNow
