"""Faster dropout on CPUs: one 64-bit random number masks four elements.

PyTorch draws one Bernoulli variable per element there, 5 % to 10 % of a training step. Here an element is dropped if
its 16 random bits, read as a number, lie below p 2^16. p is rounded to a multiple of 2^-16 and the scale with it, so
the mean is unchanged. On other devices and in compiled graphs, PyTorch's own dropout runs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 2**16


def dropout(x: Tensor, p: float, *, training: bool = True) -> Tensor:
    """Zero elements of x with probability p and divide the others by 1 - p, using PyTorch's generator."""
    if not training or p == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    return _Dropout.apply(x, p)


def as_drawn(p: float) -> float:
    """The multiple of 2^-16 below 1 that is nearest to p."""
    return min(round(p * _LEVELS), _LEVELS - 1) / _LEVELS


def draw_kept(p: float, *, out: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill `out` with True or 1 where an element is kept, else False or 0; on a CPU `as_drawn(p)` are dropped."""
    if out.device.type != "cpu":
        return torch.ge(torch.rand(out.shape, device=out.device, generator=generator), p, out=out)
    draws = torch.empty(-(-out.numel() // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    first_kept = round(as_drawn(p) * _LEVELS) - _LEVELS // 2
    return torch.ge(draws.view(torch.int16)[: out.numel()].view(out.shape), first_kept, out=out)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        factor = draw_kept(p, out=torch.empty(x.shape, dtype=x.dtype))  # into floats: a bool mask is slower
        factor.mul_(1 / (1 - as_drawn(p)))
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return grads[0] * factor, None


class Dropout(nn.Dropout):
    """`nn.Dropout` computed by `dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        """(...) to (...)."""
        return dropout(input, self.p, training=self.training)
