"""Matrix products in half precision (autocast), in training and in evaluation."""

import functools
import logging

import torch
from torch import Tensor, nn

from txl.config import require
from txl.ops.numbers import is_autocast_on
from txl.ops.processor import HAS_FAST_BFLOAT16

_LOG = logging.getLogger(__name__)


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """A context that computes matrix products on `device` in `dtype`; float32: no change.

    Cast weights are cached until the context is left. In evaluation, enter it once around all
    segments, so that weights are cast once; they must not change meanwhile.
    """
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def dtype_on(device: torch.device, name: str) -> str:
    """The name of a dtype; auto: bfloat16 if the device has instructions for it, else float32. A
    log entry says once where another takes far longer.
    """
    if name != "auto":
        if device.type == "cpu" and name != "float32" and not HAS_FAST_BFLOAT16:
            _say_that_it_is_slow(name)
        return name
    on_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    on_cpu = device.type == "cpu" and HAS_FAST_BFLOAT16
    if on_gpu or on_cpu:
        return "bfloat16"
    return "float32"


@functools.cache
def _say_that_it_is_slow(name: str) -> None:
    _LOG.warning(
        "--dtype %s: this processor has no instructions for it, and products of many rows take"
        " several times as long as in float32, which auto takes here",
        name,
    )


def dtype_for(module: nn.Module, name: str) -> torch.dtype:
    """The dtype of this name, for `autocast`.

    Raises:
        UsageError: if weights are in float64, which autocast does not cast.
    """
    require(
        name == "float32" or all(weight.dtype != torch.float64 for weight in module.parameters()),
        f"--dtype {name}: the weights are in float64, and so are their products; leave the"
        " flag out",
    )
    return getattr(torch, name)


def require_in_range(result: Tensor, device: torch.device) -> None:
    """Raise `UsageError` if products are computed in float16 and `result` is not finite.

    With other dtypes `result` is not read, because reading it synchronises a GPU.

    Args:
        result: computed by the model, any shape, on any device.
        device: of the model.
    """
    is_float16 = is_autocast_on(device) and torch.get_autocast_dtype(device.type) == torch.float16
    require(
        not is_float16 or bool(result.isfinite().all()),
        "--dtype float16: activations of this model exceed the range of float16 (65504); use"
        " bfloat16",
    )
