"""Reading in fewer bits than the weights have: matrix products in half precision, all else as it is."""

import torch
from torch import Tensor, nn

from txl.config import require


def autocast(module: nn.Module, dtype: str) -> torch.autocast:
    """A context in which matrix products are made in numbers of `dtype`, as in training; "float32": as they are.

    What the weights are narrowed to is kept until the context is left, so that it is made once and not for every
    segment: the weights must not change meanwhile.

    Args:
        module: what is going to read.
    Raises:
        UsageError: if its weights would not be narrowed.
    """
    is_double = any(weight.dtype == torch.float64 for weight in module.parameters())
    require(
        dtype == "float32" or not is_double,
        f"--dtype {dtype}: the weights are in float64, and so are their products; leave the flag out",
    )
    device = next(module.parameters()).device
    return torch.autocast(device.type, getattr(torch, dtype), enabled=dtype != "float32")


def require_in_range(result: Tensor, device: torch.device) -> None:
    """Raise `UsageError` if products are made in float16 and what came of them is not finite.

    Elsewhere nothing is looked at, as on a GPU to look is to wait.

    Args:
        result: of any shape, wherever it lies by now.
        device: of the model.
    """
    is_narrow = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.float16
    require(
        not is_narrow or bool(result.isfinite().all()),
        "--dtype float16: numbers of this model lie beyond its range, which ends at 65504; give bfloat16",
    )
