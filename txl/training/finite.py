"""Numbers that are not finite are noticed, and neither saved nor kept in memory."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from txl.errors import RunFailed
from txl.model.streams import Memory, of_rows, per_row
from txl.runtime.distributed import Ranks, local


class NonFiniteError(RunFailed):
    """A gradient is not finite (its update was not made), or a weight is not."""


class BadStep(NamedTuple):
    """A step whose gradient was not finite.

    Attributes:
        has_bad_loss: the loss of the streams of this process was not finite.
    """

    step: int
    epoch: int
    segment: int
    has_bad_loss: bool


class GradientWatch:
    """Notes the first step whose gradient is not finite. The note is on the device: `read` waits
    for it, `note` does not.

    Its tensors keep their places, so that a CUDA graph can write into them.

    Attributes:
        step: the step, a number on the device; -1: none.
    """

    def __init__(self, device: torch.device) -> None:
        self.step = torch.full((), -1, device=device)
        self._now = torch.zeros_like(self.step)
        self._has_bad_loss = torch.zeros((), dtype=torch.bool, device=device)
        self._places: dict[int, tuple[int, int]] = {}
        """Epoch and segment of the steps since the last reading."""

    def begin(self, step: int, epoch: int, segment: int) -> None:
        """A step begins; all are counted from 1."""
        self._now.fill_(step)
        self._places[step] = (epoch, segment)

    def note(self, grad_norm: Tensor, nll_BT: Tensor) -> None:
        """Note the step if its gradient is not finite and none was noted yet."""
        is_first = (self.step < 0) & ~grad_norm.isfinite()
        is_bad = ~nll_BT.mean().isfinite()
        self._has_bad_loss.copy_(torch.where(is_first, is_bad, self._has_bad_loss))
        self.step.copy_(torch.where(is_first, self._now, self.step))

    def read(self) -> BadStep | None:
        """The step that was noted since the last reading; None if all gradients were finite."""
        step = int(self.step)
        places = self._places
        self._places = {}
        if step < 0:
            return None
        self.step.fill_(-1)
        epoch, segment = places[step]
        return BadStep(step, epoch, segment, bool(self._has_bad_loss))


def require_finite_weights(model: nn.Module, ranks: Ranks, step: int) -> None:
    """Raise `NonFiniteError` on all ranks if a weight of any rank is not finite."""
    mine = [weight for p in model.parameters() if (weight := local(p)).numel()]
    largest = torch.nn.utils.get_total_norm(mine, norm_type=math.inf)
    if any(ranks.gathered(not bool(largest.isfinite()))):
        raise NonFiniteError(
            f"step {step}: a weight is not finite; not saved; continue from the last checkpoint"
            " with --resume, or start over with a lower --lr"
        )


def without_bad_rows(memory: Memory) -> Memory:
    """The memory with zeros for streams where it is not finite, which would make all their later
    losses NaN.
    """
    good_B = torch.stack(
        [of_rows(tensor.isfinite()).all(1) for tensor in memory.named().values()]
    ).all(0)
    return memory.map(lambda tensor: tensor.where(per_row(good_B, tensor), 0))
