"""Seconds since a program was started, what it imports included.

Only the standard library is imported here.
"""

import time

_launched: list[float] = []
"""When the program was started, until a clock counts from then."""


def note_launch() -> None:
    """The program starts now; what it imports counts."""
    _launched[:] = [time.monotonic()]


class Clock:
    """Counts from the start of the program; if another clock has counted from there, from now."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        if _launched:
            self._begin = _launched.pop()

    def seconds(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._begin
