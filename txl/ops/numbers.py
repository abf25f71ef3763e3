"""Dtypes of matrix products under autocast, and sums in float64."""

import torch
from torch import Tensor

AUTOCAST_DEVICES = frozenset(d for d in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(d))
"""Looked up on import: torch.compile cannot trace `is_autocast_available` in every supported version."""


def is_autocast_on(device: torch.device) -> bool:
    """True inside an enabled autocast context for the device."""
    return device.type in AUTOCAST_DEVICES and torch.is_autocast_enabled(device.type)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a matrix product with x: under autocast its dtype, unless x is float64; else that of x."""
    if x.dtype == torch.float64 or not is_autocast_on(x.device):
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)


def float64_sum(x: Tensor) -> Tensor:
    """The sum in float64; on the CPU for devices without float64."""
    return (x.cpu() if x.device.type == "mps" else x).double().sum()
