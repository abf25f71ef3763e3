"""Faster dropout on CPUs: one 64-bit random number masks four elements.

PyTorch draws one Bernoulli variable per element there, 5 % to 10 % of a training step. Here an element is dropped if
its 16 random bits, read as a number, lie below p 2^16. p is rounded to a multiple of 2^-16 and the scale with it, so
the mean is unchanged. On other devices and in compiled graphs, PyTorch's own dropout runs.

The bits are those of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"), begun
at a number of PyTorch's generator: each word is computed from its index alone, so all threads do. PyTorch's generator
works in one thread, and the others then read what it wrote from its cache: a mask of 2^20 elements took 1.3 ms with two
threads of an AMD EPYC, and takes 0.5.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 2**16
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIXED = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
_LAST_SHIFT = 31
"""Of SplitMix64: what a word's index is multiplied by, then shifts and factors; as signed numbers."""
_IN_CACHE = 2**17
"""Words that are mixed at once."""


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
    bits = random_words(-(-out.numel() // 4), generator=generator).view(torch.int16)
    first_kept = round(as_drawn(p) * _LEVELS) - _LEVELS // 2
    return torch.ge(bits[: out.numel()].view(out.shape), first_kept, out=out)


def random_words(n: int, *, generator: torch.Generator | None = None) -> Tensor:
    """n numbers of 64 random bits, int64, by one number of the generator."""
    seed = torch.empty((), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    words = torch.arange(n).mul_(_STEP).add_(seed)
    for part in words.split(_IN_CACHE):
        for shift, factor in _MIXED:
            part.bitwise_xor_(_shifted(part, shift)).mul_(factor)
        part.bitwise_xor_(_shifted(part, _LAST_SHIFT))
    return words


def _shifted(words: Tensor, n: int) -> Tensor:
    """To the right, with zeros from the left in place of the sign."""
    return words.bitwise_right_shift(n).bitwise_and_(2 ** (64 - n) - 1)


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
