"""Numbers that are not finite are neither saved nor kept in memory."""

import math

import torch
from torch import nn

from txl.model.streams import Memory, of_rows, per_row
from txl.runtime.distributed import Ranks, local


class NonFiniteError(RuntimeError):
    """A gradient is not finite (its update was not made), or a weight is not."""


def require_finite_weights(model: nn.Module, ranks: Ranks, step: int) -> None:
    """Raise `NonFiniteError` on all ranks if a weight of any rank is not finite."""
    mine = [weight for p in model.parameters() if (weight := local(p)).numel()]
    largest = torch.nn.utils.get_total_norm(mine, norm_type=math.inf)
    if any(ranks.gathered(not bool(largest.isfinite()))):
        raise NonFiniteError(
            f"step {step}: a weight is not finite; not saved; continue from the last checkpoint with --resume, or "
            f"start over with a lower --lr"
        )


def without_bad_rows(memory: Memory) -> Memory:
    """The memory with zeros for streams where it is not finite, which would make all their later losses NaN."""
    good_B = torch.stack([of_rows(tensor.isfinite()).all(1) for tensor in memory.named().values()]).all(0)
    return memory.map(lambda tensor: tensor.where(per_row(good_B, tensor), 0))
