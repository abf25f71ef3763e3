"""Loss and speed of a training."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from txl.config import Context
from txl.model.transformer import TransformerXL
from txl.ops.numbers import float64_sum
from txl.runtime.distributed import Ranks
from txl.training.estimate import flops_per_token, measured_peak_flops


class Measurement(NamedTuple):
    """Of the steps since the last reading, over all processes. `mfu_share` is relative to `measured_peak_flops`."""

    nats: float
    ms_per_step: float
    tok_per_s: float
    mfu_share: float
    peak_gib: float


class Meter:
    """Loss and speed since the last report. Sums stay on the device; only a report synchronises it."""

    def __init__(self, model: TransformerXL, context: Context, ranks: Ranks, dtype: torch.dtype) -> None:
        self._ranks = ranks
        self._nats = float64_sum(torch.zeros(1, device=ranks.device))
        self._flops_per_token = flops_per_token(model, context)
        self._peak = measured_peak_flops(ranks.device, dtype)
        self._tokens = self._batches = 0
        self._all_tokens, self._all_seconds = 0, 0.0
        self._start = time.perf_counter()

    @property
    def tok_per_s(self) -> float:
        """Since the start, over all processes."""
        seconds = self._all_seconds + time.perf_counter() - self._start
        return (self._all_tokens + self._tokens) * self._ranks.world / seconds

    def add(self, nll_BT: Tensor) -> None:
        """Add the nats of a step."""
        self._nats += float64_sum(nll_BT)
        self._tokens += nll_BT.numel()
        self._batches += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time spent inside this context does not count."""
        since = time.perf_counter()
        yield
        self._start += time.perf_counter() - since

    def read(self) -> Measurement:
        """Measure since the last reading. All ranks call it together."""
        world = self._ranks.world
        nats = float(self._ranks.total(self._nats.clone())) / (self._tokens * world)
        seconds = time.perf_counter() - self._start
        speed = self._tokens * world / seconds
        reading = Measurement(
            nats=nats,
            ms_per_step=1000 * seconds / self._batches,
            tok_per_s=speed,
            mfu_share=speed / world * self._flops_per_token / self._peak,
            peak_gib=peak_bytes(self._ranks.device) / 2**30,
        )
        self._all_tokens += self._tokens
        self._all_seconds += seconds
        self._nats.zero_()
        self._tokens = self._batches = 0
        self._start = time.perf_counter()
        return reading


def peak_bytes(device: torch.device) -> int:
    """Peak memory of this process, in bytes: on the GPU, or its resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
