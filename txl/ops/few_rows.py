"""Linear layers for one to four rows, as in generation and in tail clusters of the softmax.

With so few rows, reading the weights takes the time. For x W^T, PyTorch's CPU BLAS (MKL) on AMD processors first packs
W or runs on one thread; for W x^T with at least two columns it reads W once with all threads. On 2 cores of an AMD EPYC
this is 2.1 to 2.6 times as fast with one row, 2 to 7 times with two to four (`docs/speed.md`). On an Intel Xeon x W^T
is the faster one, 2.7 times for a row and 2,100 x 410 weights, so the processor's vendor decides. Results agree up to
rounding.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.ops import packed
from txl.ops.processor import IS_AMD

FEW = 4
PAYS = 2**16
"""Weights from which that takes less time: a row of 40 x 40 weights takes 14 us and 2 by PyTorch, of 410 x 410 57 and
62 (AMD EPYC, Zen 3, two threads)."""

REVERSED = IS_AMD
"""Few rows are multiplied as W x^T."""


def serves(x: Tensor, weight: Tensor) -> bool:
    """Without gradients, few rows in float32 on such a processor."""
    is_alike = x.device.type == "cpu" and x.dtype == weight.dtype and _pays(weight, x.shape[:-1].numel())
    return is_alike and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def _pays(weight: Tensor, n_row: int) -> bool:
    is_large = weight.dtype == torch.float32 and weight.numel() >= PAYS
    return REVERSED and is_large and 0 < n_row <= FEW


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, (..., in) to (..., out)."""
    y = product(x.reshape(x.shape[:-1].numel(), -1), weight)
    return (y if bias is None else y + bias).view(*x.shape[:-1], -1)


def product_with(weight_OI: Tensor, bias_O: Tensor | None, n_row: int) -> Callable[[Tensor], Tensor]:
    """`txl.ops.linear.linear` of n_row rows, (R, I) to (R, O), with fixed weights: for use without gradients and
    autocast, so that nothing is asked in each call."""
    if packed.is_packed(weight_OI):
        return lambda x_RI: packed.product(x_RI, weight_OI, bias_O)
    if not _pays(weight_OI, n_row):
        return lambda x_RI: F.linear(x_RI, weight_OI, bias_O)
    if bias_O is None:
        return lambda x_RI: product(x_RI, weight_OI)
    return lambda x_RI: product(x_RI, weight_OI) + bias_O


def product(x_RI: Tensor, weight_OI: Tensor) -> Tensor:
    """x @ weight.T, (R, O), computed as (weight @ x.T).T; contiguous for one row."""
    if len(x_RI) == 1:
        return (weight_OI @ torch.cat([x_RI, x_RI]).T)[:, 0].contiguous()[None]
    return (weight_OI @ x_RI.T).T.contiguous()
