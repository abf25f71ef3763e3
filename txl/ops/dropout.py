"""Faster dropout on CPUs: one 64-bit random number masks four elements.

PyTorch draws one Bernoulli variable per element there, 5 % to 10 % of a training step. Here an
element is dropped if its 16 random bits, read as a number, lie below p 2^16. p is rounded to a
multiple of 2^-16 and the scale with it, so the mean is unchanged. On other devices and in compiled
graphs, PyTorch's own dropout runs.

The bits of a mask are the exclusive or of a stretch of one table of random words and a stretch of
another, which begin where PyTorch's generator says. Two masks have bits in common at no more than
one distance from each other, and seldom that: the stretches of one would have to be as far apart as
those of the other. The tables are the same in all processes and made by SplitMix64 (Steele, Lea and
Flood 2014, "Fast splittable pseudorandom number generators"). Words of a mask of 2^20 elements take
0.05 ms with two threads of an AMD EPYC; each by SplitMix64 they took 0.4, and by PyTorch's
generator, which works in one thread, 1.3.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.ops.numbers import on_gpu

_LEVELS = 2**16
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIXED = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
_LAST_SHIFT = 31
"""Of SplitMix64: what a word's index is multiplied by, then shifts and factors;
as signed numbers.
"""
_STRETCH = 2**17
"""Words that are taken from the tables at once; as many places where they may begin."""


def dropout(x: Tensor, p: float, *, training: bool = True) -> Tensor:
    """Zero elements of x with probability p and divide the others by 1 - p, using PyTorch's
    generator.
    """
    if not training or p == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    return _Dropout.apply(x, p)


def as_drawn(p: float) -> float:
    """The multiple of 2^-16 below 1 that is nearest to p."""
    return min(round(p * _LEVELS), _LEVELS - 1) / _LEVELS


def draw_kept(p: float, *, out: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill `out` with True or 1 where an element is kept, else False or 0; on a CPU `as_drawn(p)`
    are dropped.
    """
    if out.device.type != "cpu":
        return torch.ge(torch.rand(out.shape, device=out.device, generator=generator), p, out=out)
    bits = random_words(-(-out.numel() // 4), generator=generator).view(torch.int16)
    first_kept = round(as_drawn(p) * _LEVELS) - _LEVELS // 2
    return torch.ge(bits[: out.numel()].view(out.shape), first_kept, out=out)


def random_words(n: int, *, generator: torch.Generator | None = None) -> Tensor:
    """n numbers of 64 random bits, int64, by two numbers of the generator for each `_STRETCH` of
    them.
    """
    words = torch.empty(n, dtype=torch.int64)
    if type(words) is not Tensor:  # PyTorch's fake ones, of which the size is asked and no number
        return words
    table_a, table_b = _tables()
    parts = words.split(_STRETCH)
    begins = torch.empty(len(parts), 2, dtype=torch.int64).random_(_STRETCH, generator=generator)
    for part, (a, b) in zip(parts, begins.tolist(), strict=True):
        torch.bitwise_xor(table_a[a : a + len(part)], table_b[b : b + len(part)], out=part)
    return words


@functools.cache
def _tables() -> tuple[Tensor, Tensor]:
    words = splitmix(0, 4 * _STRETCH)
    return words[: 2 * _STRETCH], words[2 * _STRETCH :]


def splitmix(seed: int, n: int) -> Tensor:
    """The first n words of SplitMix64 begun at a seed, int64 on the CPU."""
    words = torch.arange(n, device="cpu").mul_(_STEP).add_(seed)
    for shift, factor in _MIXED:
        words.bitwise_xor_(_shifted(words, shift)).mul_(factor)
    return words.bitwise_xor_(_shifted(words, _LAST_SHIFT))


def _shifted(words: Tensor, n: int) -> Tensor:
    """To the right, with zeros from the left in place of the sign."""
    return words.bitwise_right_shift(n).bitwise_and_(2 ** (64 - n) - 1)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        # into floats: a bool mask is slower
        factor = draw_kept(p, out=torch.empty(x.shape, dtype=x.dtype))
        factor.mul_(1 / (1 - as_drawn(p)))
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return grads[0] * factor, None


class Dropout(nn.Dropout):
    """`nn.Dropout` computed by `dropout`.

    Attributes:
        seed: from which a kernel draws the next mask, see `txl.ops.layer_rows`; None: it draws one.
    """

    seed: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        """(...) to (...)."""
        return dropout(input, self.p, training=self.training)


def draw_seeds(
    n_layer: int, n_drop: int, *, like: Tensor, is_training: bool
) -> Sequence[Tensor | None]:
    """Of the dropouts of each layer, (n_drop,), drawn by one kernel on a GPU; elsewhere None."""
    if not on_gpu(like) or not is_training:
        return [None] * n_layer
    return torch.randint(2**62, (n_layer, n_drop), device=like.device).unbind()


@contextmanager
def seeded(drops: Sequence[Dropout], seeds: Tensor | None) -> Iterator[None]:
    """Inside, each of these has its seed; None: they have none."""
    if seeds is None:
        yield
        return
    for drop, seed in zip(drops, seeds.split(1), strict=True):
        drop.seed = seed
    try:
        yield
    finally:
        for drop in drops:
            drop.seed = None
