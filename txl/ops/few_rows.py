"""Linear layers for one to four rows, as in generation and in tail clusters of the softmax.

With so few rows, reading the weights takes the time. For x W^T, PyTorch's CPU BLAS (MKL) on AMD processors first packs
W or runs on one thread; for W x^T with at least two columns it reads W once with all threads. On 2 cores of an AMD EPYC
this is 2.1 to 2.6 times as fast with one row, 2 to 7 times with two to four (`docs/speed.md`). On an Intel Xeon x W^T
is the faster one, 2.7 times for a row and 2,100 x 410 weights, so the processor's vendor decides. Results agree up to
rounding.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.ops import packed
from txl.ops.numbers import is_autocast_on
from txl.ops.processor import IS_AMD

FEW = 4
CAST_PAYS = 64
"""Rows from which a product in 16 bits makes up for the cast of its weights. On an AMD EPYC, one thread, a weight takes
1.0 ns to cast, and 25 or 9 ps a row to multiply in float32 or bfloat16."""


REVERSED = IS_AMD
"""Few rows are multiplied as W x^T."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, (..., in) to (..., out); without gradients by the faster of the two products."""
    if packed.is_packed(weight):
        return packed.linear(x, weight, bias)
    n_row = x.shape[:-1].numel()
    is_few = REVERSED and x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and 0 < n_row <= FEW
    if not is_few or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    y = product(x.reshape(n_row, -1), weight)
    return (y if bias is None else y + bias).view(*x.shape[:-1], -1)


def linear_in_part(x: Tensor, part: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` for a part of a table. Autocast caches the casts of parameters, not those of their parts; on a CPU,
    fewer than `CAST_PAYS` rows are multiplied in float32, which takes less time than to cast the weights."""
    is_short = x.device.type == "cpu" and part.dtype == torch.float32 and x.shape[:-1].numel() < CAST_PAYS
    if not is_short or not is_autocast_on(x.device):
        return linear(x, part, bias)
    with torch.autocast("cpu", enabled=False):
        return linear(x.float(), part, bias)


def product(x_RI: Tensor, weight_OI: Tensor) -> Tensor:
    """x @ weight.T, (R, O), computed as (weight @ x.T).T; contiguous for one row."""
    if len(x_RI) == 1:
        return (weight_OI @ torch.cat([x_RI, x_RI]).T)[:, 0].contiguous()[None]
    return (weight_OI @ x_RI.T).T.contiguous()


class Linear(nn.Linear):
    """`nn.Linear` computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return linear(input, self.weight, self.bias)
