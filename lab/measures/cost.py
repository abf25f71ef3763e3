"""What it costs a model that its memory is perturbed: nats a token, with an interval
over documents or stretches of the text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from txl.evaluation.gain import Interval, saved_and_blocks, too_short
from txl.evaluation.rows import Row


@dataclass(frozen=True)
class Cost:
    """What one perturbed reading loses against the same one as it is.

    Attributes:
        reading: which; see `Row.label`.
        blocks: what the interval is drawn over.
        nats: a token; None where the blocks are too few.
    """

    reading: str
    blocks: str
    nats: Interval | None

    def sentence(self) -> str:
        """The cost in one sentence."""
        if self.nats is None:
            found = too_short(self.blocks)
        elif not self.nats.is_printed:
            found = f"a cost is not shown ({self.nats.ends(3)} nats a token)"
        elif self.nats.mean > 0:
            found = f"costs {self.nats.mean:.3f} nats a token ({self.nats.ends(3)})"
        else:
            saved = self.nats.negated()
            found = f"saves {saved.mean:.3f} nats a token ({saved.ends(3)})"
        return f"{self.reading}: {found}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "sentence": self.sentence()}


def costs_of(rows: Sequence[Row], *, starts: np.ndarray | None, reset: str) -> list[Cost]:
    """Of each perturbed reading of a split.

    Args:
        rows: with their `tokens`; beside each perturbed one the plain one of the same lengths and
            borders.
        starts, reset: as in `txl.evaluation.gain.gains_of`.
    """
    costs = []
    for row in rows:
        if not row.added:
            continue
        nats, blocks = saved_and_blocks(
            row, _plain(row, rows), row.context.mem_len, starts=starts, reset=reset
        )
        costs.append(Cost(row.label, blocks.what, nats if blocks.are_enough else None))
    return costs


def _plain(row: Row, rows: Iterable[Row]) -> Row:
    return next(
        one
        for one in rows
        if not one.added and (one.context, one.borders) == (row.context, row.borders)
    )
