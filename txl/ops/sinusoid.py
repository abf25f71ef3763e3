"""Sines and cosines of positions or distances."""

import torch
from torch import Tensor

from txl.ops.numbers import at_least_float32


def sinusoid(position: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """[sin(p w_0) ... sin(p w_k), cos(p w_0) ... cos(p w_k)] with w_i = 10000^(-2i/dim), shape
    (len(position), dim).

    Vaswani et al. 2017, sec. 3.5, but sines first, then cosines, instead of alternating, as in the
    original. The frequencies are rounded to float32 for every dtype, because the original stores
    them in a float32 buffer; a float64 model matches it only this way. Angles are computed in
    float32 or wider.
    """
    freq = 1 / (
        10000 ** (torch.arange(0.0, dim, 2.0, device=position.device, dtype=torch.float32) / dim)
    )
    wide = at_least_float32(dtype)
    angle = position.to(wide)[:, None] * freq.to(wide)
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(dtype)
