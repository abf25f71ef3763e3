"""When a training prints and saves besides its intervals: at the beginning, and by the clock."""

import math
import time

FIRST_LINE = 10
"""Updates of a start until its first line."""
LINE_S = 60.0
"""Seconds without a line until one is printed between two intervals."""
FIRST_SAVE_S = 60.0
"""Seconds of a start until its first checkpoint, where none was due before."""

LINE = 1
SAVE = 2
_NUMBERS = 4


class Pace:
    """What is due by the clock of rank 0. The ranks agree on it by a vote, into which it is packed
    beside a request to stop.
    """

    def __init__(self, *, is_main: bool) -> None:
        self._next_line_s = math.inf
        self._next_save_s = math.inf
        if is_main:
            self._next_line_s = time.monotonic() + LINE_S
            self._next_save_s = time.monotonic() + FIRST_SAVE_S

    def ballot(self, request: int) -> int:
        """A number that holds a request to stop and what is due, each time once: with several ranks
        it is read a step later. See `read_ballot`.
        """
        now = time.monotonic()
        due = 0
        if now >= self._next_line_s:
            due |= LINE
            self._next_line_s = now + LINE_S
        if now >= self._next_save_s:
            due |= SAVE
            self._next_save_s = math.inf
        return _NUMBERS * request + due

    def note_line(self) -> None:
        """A line was printed."""
        if self._next_line_s < math.inf:
            self._next_line_s = time.monotonic() + LINE_S

    def note_save(self) -> None:
        """A checkpoint was written: later ones have their interval."""
        self._next_save_s = math.inf


def read_ballot(number: int) -> tuple[int, int]:
    """The request to stop, and what is due: `LINE` and `SAVE`, or both added."""
    return divmod(number, _NUMBERS)
