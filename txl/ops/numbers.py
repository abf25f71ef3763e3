"""Dtypes: of matrix products under autocast, and those wide enough for sums; sums of what is there;
sines and cosines of positions or distances.
"""

from collections.abc import Iterable
from importlib.util import find_spec

import torch
from torch import Tensor

AUTOCAST_DEVICES = frozenset(
    d for d in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(d)
)
"""Looked up on import: torch.compile cannot trace `is_autocast_available` in every supported
version.
"""
HAS_TRITON = find_spec("triton") is not None
"""Looked up on import for the same reason."""


def is_autocast_on(device: torch.device) -> bool:
    """True inside an enabled autocast context for the device."""
    return device.type in AUTOCAST_DEVICES and torch.is_autocast_enabled(device.type)


def on_gpu(x: Tensor) -> bool:
    """True where launching a kernel takes as long as a small one does: there several are one."""
    return x.device.type == "cuda"


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a matrix product with x: under autocast its dtype, unless x is float64; else
    that of x.
    """
    if x.dtype == torch.float64 or not is_autocast_on(x.device):
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float32, or `dtype` where that is wider. In 16 bits a log-sum-exp of 10 is a hundredth off,
    the probabilities of many words do not sum to 1, and distances above 256 or 2,048 are rounded.
    """
    return torch.promote_types(dtype, torch.float32)


def widened(x: Tensor) -> Tensor:
    """x in float32 or wider."""
    return x.to(at_least_float32(x.dtype))


def float64_sum(x: Tensor) -> Tensor:
    """The sum in float64; on the CPU for devices without float64."""
    return (x.cpu() if x.device.type == "mps" else x).double().sum()


def as_multiplied(x: Tensor) -> Tensor:
    """Under autocast x in half precision: cast once, not by each projection. An operator that makes
    x in both dtypes leaves the other one with it, see `txl.ops.layer_rows`.
    """
    dtype = product_dtype(x)
    copy: Tensor | None = getattr(x, "multiplied", None)
    if copy is not None and copy.dtype == dtype:
        return copy
    return x.to(dtype)


def total(terms: Iterable[Tensor | None]) -> Tensor | None:
    """The sum of those terms that are there; None if none is."""
    given = [term for term in terms if term is not None]
    if given:
        return torch.stack(given).sum()
    return None


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


def in_one_piece(x: Tensor, y: Tensor) -> bool:
    """True if both are in one piece of memory, and have the same strides."""
    return x.stride() == y.stride() and x.untyped_storage()._cdata == y.untyped_storage()._cdata
