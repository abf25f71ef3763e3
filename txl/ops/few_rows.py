"""Linear maps of a few rows, as generation and the tail clusters need them.

A matrix product of one to four rows is bound by reading the weights. Asked for x W^T with so few rows, the BLAS behind
PyTorch's CPU build (MKL) packs W first or falls back to one thread; asked for W x^T, with two columns at least, it
reads W once with all threads. Measured on 2 cores of an AMD EPYC: 2.1 to 2.6 times as fast with one row, 2 to 7 times
with two to four (`docs/speed.md`). The result is the same but for rounding.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW = 4


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, (..., in) to (..., out); by whichever product is faster where no gradient is asked for."""
    n_row = x.shape[:-1].numel()
    is_few = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and 0 < n_row <= FEW
    if not is_few or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    y = product(x.reshape(n_row, -1), weight)
    return (y if bias is None else y + bias).view(*x.shape[:-1], -1)


def product(x_RI: Tensor, weight_OI: Tensor) -> Tensor:
    """x @ weight.T, (R, O), computed as (weight @ x.T).T; contiguous for one row."""
    if len(x_RI) == 1:
        return (weight_OI @ torch.cat([x_RI, x_RI]).T)[:, 0].contiguous()[None]
    return (weight_OI @ x_RI.T).T.contiguous()


class Linear(nn.Linear):
    """`nn.Linear` by way of `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return linear(x, self.weight, self.bias)
