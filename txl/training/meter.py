"""Loss and speed of a training."""

import math
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from txl.config import Context
from txl.model.transformer import TransformerXL
from txl.ops.numbers import float64_sum
from txl.runtime.distributed import Ranks
from txl.runtime.log import perplexity
from txl.training.estimate import flops_per_token, measured_peak_flops


class Meter:
    """Loss and speed of a training, over all processes.

    Sums stay on the device; only `read` synchronises it.
    """

    def __init__(
        self, model: TransformerXL, context: Context, ranks: Ranks, dtype: torch.dtype
    ) -> None:
        self._ranks = ranks
        self._nats = float64_sum(torch.zeros(1, device=ranks.device))
        self._memory_loss: Tensor | None = None
        self._flops_per_token = flops_per_token(model, context)
        self._peak = measured_peak_flops(ranks.device, dtype)
        self._n_step = self._n_token = 0
        self._n_skipped_step = self._n_skipped_token = 0
        self._paused_s = self._paused_cpu_s = 0.0
        self._start = self._last = self._now()

    @property
    def tok_per_s(self) -> float:
        """Tokens per second since the start."""
        _, n_token, seconds, _ = self._since(self._start)
        return n_token / seconds

    def add(
        self, nll_BT: Tensor, memory_loss: Tensor | None = None, *, was_skipped: bool = False
    ) -> None:
        """Add the nats of a step, and what the memory added to its loss. If its update was skipped
        they are left out, since they need not be finite: the step counts for the speed alone.
        """
        n_token = nll_BT.numel() * self._ranks.world
        self._n_token += n_token
        self._n_step += 1
        if was_skipped:
            self._n_skipped_token += n_token
            self._n_skipped_step += 1
            return
        self._nats += float64_sum(nll_BT)
        if memory_loss is not None:
            self._memory_loss = float64_sum(memory_loss) + (
                0 if self._memory_loss is None else self._memory_loss
            )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time spent inside this context does not count."""
        since = time.perf_counter()
        cpu_since = time.process_time()
        yield
        self._paused_s += time.perf_counter() - since
        self._paused_cpu_s += time.process_time() - cpu_since

    def read(self) -> dict[str, float]:
        """What `so_far` returns; the next reading counts from here."""
        measured = self.so_far()
        self._nats.zero_()
        self._memory_loss = None
        self._n_skipped_step = self._n_skipped_token = 0
        self._last = self._now()
        return measured

    def so_far(self) -> dict[str, float]:
        """Loss, speed and peak memory since the last reading, by their names in metrics.jsonl; the
        loss is NaN if all updates were skipped. All ranks call it together. The share of operations
        is relative to `measured_peak_flops`.
        """
        # synchronises, so before the clock is read
        total = float(self._ranks.total(self._nats.clone()))
        n_step, n_token, seconds, cpu_s = self._since(self._last)
        cpu_s = float(self._ranks.total(torch.tensor(cpu_s, device=self._ranks.device)))
        if self._memory_loss is None:
            of_memory = {}
        else:
            total_of_memory = float(self._ranks.total(self._memory_loss.clone()))
            of_memory = {"train/memory_loss": total_of_memory / (n_step - self._n_skipped_step)}
        n_counted = n_token - self._n_skipped_token
        if n_counted:
            nats = total / n_counted
        else:
            nats = math.nan
        return {
            "train/nll_nats": nats,
            "train/ppl": perplexity(nats),
            **{name: value / self._ranks.world for name, value in of_memory.items()},
            "speed/tok_per_s": n_token / seconds,
            "speed/ms_per_step": 1000 * seconds / n_step,
            "speed/cpu_ms_per_step": 1000 * cpu_s / n_step,
            "speed/mfu_share": n_token
            / seconds
            / self._ranks.world
            * self._flops_per_token
            / self._peak,
            "mem/peak_gib": peak_bytes(self._ranks.device) / 2**30,
        }

    def _now(self) -> tuple[int, int, float, float]:
        """Steps, tokens, seconds, and seconds of all cores in this process until now."""
        seconds = time.perf_counter() - self._paused_s
        cpu_s = time.process_time() - self._paused_cpu_s
        return self._n_step, self._n_token, seconds, cpu_s

    def _since(self, then: tuple[int, int, float, float]) -> tuple[int, int, float, float]:
        n_step, n_token, seconds, cpu_s = self._now()
        return n_step - then[0], n_token - then[1], seconds - then[2], cpu_s - then[3]


def peak_bytes(device: torch.device) -> int:
    """Peak memory of this process, in bytes: on the GPU, or its resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "darwin":
        unit = 1
    else:
        unit = 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
