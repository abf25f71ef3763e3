"""Numbers that are not finite: never saved, never remembered."""

import math

import torch
from torch import nn

from txl.memory import Memory
from txl.runtime.distributed import Ranks


class NonFiniteError(RuntimeError):
    """A gradient was not finite: the weights are as before the update it would have made. Or a weight was not."""


def require_finite_weights(model: nn.Module, ranks: Ranks, step: int) -> None:
    """Raise `NonFiniteError` on all ranks if a weight is not finite, so that it is not saved."""
    largest = torch.nn.utils.get_total_norm(model.parameters(), norm_type=math.inf)
    if any(ranks.gathered(not bool(largest.isfinite()))):
        raise NonFiniteError(
            f"step {step}: a weight is not finite; not saved; go on from the last checkpoint with --resume, or start "
            f"anew with a lower --lr"
        )


def without_bad_rows(memory: Memory) -> Memory:
    """Zeros for the streams whose memory is not finite: they would spoil every loss until it is forgotten."""
    good_B11 = torch.stack([layer.isfinite().all(-1).all(-1) for layer in memory.layers]).all(0)[:, None, None]
    return Memory(tuple(layer.where(good_B11, 0) for layer in memory.layers))
