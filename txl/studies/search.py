"""A search of one flag before the trainings: the same for every variant, by short trainings of one
seed.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from txl.studies.plan import Search, Task

MOST = 7
"""Values that are tried at most."""


def next_value(first: float, factor: float, losses: Mapping[float, float]) -> float | None:
    """The value to try next, given the losses of those that were tried; None: the best is known.

    The first three are `first`, and it divided by and times `factor`. While the best is the
    smallest or the largest of all, the next lies beyond it, so that the best has a worse one on
    both sides in the end.
    """
    for value in (first, first / factor, first * factor):
        if _rounded(value) not in losses:
            return _rounded(value)
    best = best_value(losses)
    if len(losses) >= MOST or math.isinf(losses[best]):
        return None
    if best == min(losses):
        return _rounded(best / factor)
    if best == max(losses):
        return _rounded(best * factor)
    return None


def best_value(losses: Mapping[float, float]) -> float:
    """The value of the smallest loss; of equal ones the smallest."""
    return min(sorted(losses), key=lambda value: losses[value])


def _rounded(value: float) -> float:
    """To six digits, as it is written on a command line and in a table."""
    return float(f"{value:.6g}")


def task_of(task: Task, search: Search, value: float, runs: Path) -> Task:
    """The short training of a variant with a value. Its folder is named by its flags, so that
    variants which differ in nothing else than their length share it.
    """
    flags = {**task.flags, **search.flags, search.of: value, "seed": search.seed}
    digest = hashlib.sha256(json.dumps(flags, sort_keys=True).encode()).hexdigest()[:16]
    return Task(
        f"{task.variant}, {search.of} {value:g}", search.seed, flags, runs / "search" / digest
    )


def with_value(task: Task, search: Search, value: float) -> Task:
    """The training with the value that was found."""
    return replace(task, flags={**task.flags, search.of: value})


def loss_of(done: Mapping[str, Any]) -> float | None:
    """The loss of a short training that is done: infinite if it did not stay finite; None: it is
    not done.
    """
    if "valid_nats" not in done:
        return None
    if done["valid_nats"] is None:
        return math.inf
    return done["valid_nats"]
