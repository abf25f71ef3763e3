"""The numbers that matrix products are made in."""

import torch
from torch import Tensor


def product_dtype(x: Tensor) -> torch.dtype:
    """That of a product with x here: autocast's where it is on, which leaves float64 alone; else that of x."""
    device = x.device.type
    if x.dtype == torch.float64 or not torch.amp.is_autocast_available(device):
        return x.dtype
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def wide_sum(x: torch.Tensor) -> torch.Tensor:
    """The sum in float64; on the CPU where the device has no such numbers."""
    return (x.cpu() if x.device.type == "mps" else x).double().sum()
