"""Relative errors, and poisoned memory that reveals missing writes."""

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
    """Errors with an upper limit; an exception counts as failure."""

    name: str
    dtype: str
    find: Callable[[], Errors]
    limit: float


def error(found: Tensor, expected: Tensor, *, floor: float = 1e-30) -> float:
    """|found - expected| / max(|expected|, floor)."""
    expected = expected.detach().double()
    return float((found.detach().to(expected) - expected).norm() / expected.norm().clamp_min(floor))


@contextmanager
def poisoned() -> Iterator[None]:
    """A context in which uninitialised memory holds NaN, to find missing writes of kernels."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # only then PyTorch fills it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of products that may sum in another order each time
            yield
    finally:
        torch.use_deterministic_algorithms(False)
