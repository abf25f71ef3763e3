"""Linear layers for one to four rows, as in generation and in tail clusters of the softmax, of
large weights.

With so few rows, reading the weights takes the time. For x W^T, PyTorch's CPU BLAS (MKL) on AMD
processors first packs W or runs on one thread; for W x^T with at least two columns it reads W once
with all threads. On 2 cores of an AMD EPYC this is 2.1 to 2.6 times as fast with one row, 2 to 7
times with two to four (`lab/docs/speed.md`). On an Intel Xeon x W^T is the faster one, 2.7 times
for a row and 2,100 x 410 weights, so the processor's vendor decides. Results agree up to rounding.
"""

import torch
from torch import Tensor

from txl.ops.processor import IS_AMD

FEW = 4
PAYS = 2**16
"""Weights from which that takes less time: a row of 40 x 40 weights takes 14 us and 2 by PyTorch,
of 410 x 410 57 and 62 (AMD EPYC, Zen 3, two threads).
"""

REVERSED = IS_AMD
"""Few rows are multiplied as W x^T."""


def serves(x: Tensor, weight: Tensor) -> bool:
    """Without gradients, few rows in float32 on such a processor."""
    is_alike = (
        x.device.type == "cpu" and x.dtype == weight.dtype and pays(weight, x.shape[:-1].numel())
    )
    return is_alike and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def pays(weight: Tensor, n_row: int) -> bool:
    """Few rows of large weights in float32 on such a processor. One row by one thread does not pay:
    it takes 1.65 times as long as x W^T (AMD EPYC, AVX2, torch 2.13).
    """
    is_few = 1 < n_row <= FEW or (n_row == 1 and torch.get_num_threads() > 1)
    return REVERSED and is_few and weight.dtype == torch.float32 and weight.numel() >= PAYS


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, (..., in) to (..., out)."""
    y = product(x.reshape(x.shape[:-1].numel(), -1), weight)
    return (y if bias is None else y + bias).view(*x.shape[:-1], -1)


def product(x_RI: Tensor, weight_OI: Tensor) -> Tensor:
    """x @ weight.T, (R, O), computed as (weight @ x.T).T; contiguous for one row."""
    if len(x_RI) == 1:
        return (weight_OI @ torch.cat([x_RI, x_RI]).T)[:, 0].contiguous()[None]
    return (weight_OI @ x_RI.T).T.contiguous()
