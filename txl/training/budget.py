"""What a training does by the clock: what share of --minutes is used, and when to evaluate; when it
prints and saves besides its intervals.
"""

import math
import time
from collections.abc import Callable

from txl.runtime.distributed import Ranks

_AT_FIRST = 0.03
"""Share of the time kept for the evaluation at the end while no evaluation has been timed."""
_INTERVAL = 0.1
"""Share of the time between two evaluations."""
_DEAREST = 0.1
"""Share of the time that evaluations before the last may take."""


class Budget:
    """The time of a training, of which its last evaluation, and what follows, is a part.

    Args:
        minutes: from the start of the program; of a run that is resumed, together with those of
            earlier starts.
        seconds: since the start of the program. Those until now were preparation.
        ranks: the time is that of rank 0.
        trained_s: seconds of training in earlier starts.
        after_s: seconds that are needed after the training, given those of an evaluation.
    """

    def __init__(
        self,
        minutes: float,
        seconds: Callable[[], float],
        ranks: Ranks,
        *,
        trained_s: float = 0.0,
        after_s: Callable[[float], float] | None = None,
    ) -> None:
        self._total_s = 60 * minutes
        self._seconds = seconds
        self._ranks = ranks
        self._after_s = after_s
        self._begin_s = seconds() - trained_s
        # ranks start apart, and must agree on when an evaluation is due
        self._prepared_s = ranks.gathered(seconds())[0]
        self._evaluation_s: float | None = None
        self._last_evaluation = 0.0
        self.trained_s = trained_s
        """Seconds of training until the last `read`."""
        self.share = 0.0
        """Share of the time that was used at the last `read`, 0 to 1."""
        self.read()
        self._last_evaluation = self.share

    def read(self) -> None:
        """Read the clock; all ranks call it together."""
        trained_s = self._ranks.gathered(self._seconds() - self._begin_s)[0]
        self.trained_s = trained_s
        limit_s = self._limit_s()
        self.share = 1.0
        if trained_s < limit_s:
            self.share = trained_s / limit_s

    def _limit_s(self) -> float:
        """Seconds of training in all."""
        kept_s = _AT_FIRST * self._total_s
        if self._evaluation_s is not None:
            kept_s = self._evaluation_s
            if self._after_s is not None:
                kept_s += self._after_s(self._evaluation_s)
        return self._total_s - self._prepared_s - kept_s

    @property
    def is_over(self) -> bool:
        """True if all of the time is used but for the evaluation at the end."""
        return self.share >= 1

    @property
    def left_s(self) -> float:
        """Seconds of training that are left."""
        return max(0.0, self._limit_s() - self.trained_s)

    @property
    def evaluation_is_due(self) -> bool:
        """True at the end, and before it at every tenth of the time, less often where evaluations
        take long.
        """
        interval = _INTERVAL
        if self._evaluation_s is not None and self._limit_s() > 0:
            interval = max(interval, self._evaluation_s / self._limit_s() / _DEAREST)
        return self.is_over or self.share - self._last_evaluation >= interval

    def note_evaluation(self, seconds: float) -> None:
        """An evaluation has ended, which took so long, checkpoints included; all ranks call it
        together.
        """
        seconds = self._ranks.gathered(seconds)[0]
        self._evaluation_s = max(seconds, self._evaluation_s or 0.0)
        self.read()
        self._last_evaluation = self.share


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
