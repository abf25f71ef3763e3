"""Dropout with a mask of 16-bit draws on a CPU.

PyTorch draws a Bernoulli variable per number there, which takes 5 % to 10 % of a training step. Here one 64-bit draw
serves four numbers: each is dropped if its 16 bits, read as a number, lie below p 2^16. p is rounded to a multiple of
2^-16 and the scale with it, so that the mean stays what it was. Elsewhere, and in compiled graphs, PyTorch's own is
used.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 2**16


def dropout(x: Tensor, p: float, *, training: bool = True) -> Tensor:
    """x with a share p of its numbers zeroed and the others divided by 1 - p, drawn from PyTorch's generator."""
    if not training or p == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    return _Dropout.apply(x, p)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        n_dropped = min(round(p * _LEVELS), _LEVELS - 1)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        factor = torch.empty(x.shape, dtype=x.dtype)  # straight from the comparison: by way of a bool is slower
        torch.ge(draws.view(torch.int16)[: x.numel()].view(x.shape), n_dropped - _LEVELS // 2, out=factor)
        factor.mul_(_LEVELS / (_LEVELS - n_dropped))
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return grad * factor, None


class Dropout(nn.Dropout):
    """`nn.Dropout` by way of `dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        """(...) to (...)."""
        return dropout(x, self.p, training=self.training)
