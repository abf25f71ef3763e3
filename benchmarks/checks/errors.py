"""How far a result is from what is expected, and memory that shows what nobody has written."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

Errors = dict[str, float]
LIMITS = {"float64": 1e-9, "float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}
"""By the numbers that products are made in: what their rounding makes of a few operations one after another."""


class Check(NamedTuple):
    """Errors that must not be above a limit; what raises is wrong."""

    name: str
    dtype: str
    find: Callable[[], Errors]
    limit: float


def error(found: Tensor, expected: Tensor, *, floor: float = 1e-30) -> float:
    """|found - expected| / |expected|, where |expected| counts as at least `floor`."""
    expected = expected.detach().double()
    return float((found.detach().to(expected) - expected).norm() / expected.norm().clamp_min(floor))


@contextmanager
def poisoned() -> Iterator[None]:
    """Within, memory that is not filled holds NaN, so that a kernel that forgets to write is found out."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # only then PyTorch fills it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of products that may sum in another order each time
            yield
    finally:
        torch.use_deterministic_algorithms(False)
