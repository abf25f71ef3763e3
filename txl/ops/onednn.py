"""Linear layers by oneDNN: in float32 on AMD processors with AVX-512, and with a bias in bfloat16
without gradients.

PyTorch multiplies float32 matrices with MKL, which uses half the width of the vector registers
there. One thread of an AMD EPYC (Zen 5) multiplies 2,048 x 128 by 128 x 384 at 100 GFLOP/s with MKL
and at 235 with oneDNN; the gradient of x likewise, that of W at 170. PyTorch has oneDNN's product
as the operator that its compiler uses. Results agree up to rounding. Other processors, dtypes and
devices, autocast, compiled graphs and small products keep PyTorch's own. In bfloat16 that is
oneDNN's too, but with a bias in two passes over the result: 1,024 x 256 by 256 x 10,000 in 9.0 ms
with two threads, 6.3 by the operator, which adds it at once.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.ops.packed import CAN_PACK, product
from txl.ops.processor import HAS_AVX512, IS_AMD

PAYS = 2**22
"""Multiplications from which oneDNN takes less time with the Python code of an
autograd Function.
"""

TRANSPOSED_PAYS = 512
"""Rows from which a transposed gradient takes less time, storing it anew included: 64 x 10,000 x
256 in 3.2 ms for 1.8, 1,024 rows in 16 for 23 (AMD EPYC, Zen 5, two threads).
"""

AVAILABLE = IS_AMD and HAS_AVX512 and torch.backends.mkldnn.is_available()


def serves(x: Tensor, weight: Tensor) -> bool:
    """A product that is large enough, in float32 on such a processor."""
    is_made_for = AVAILABLE and x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    return (
        is_made_for
        and x.numel() * len(weight) >= PAYS
        and not torch.compiler.is_compiling()
        and not _is_changed()
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, (..., in) to (..., out), by the library that takes less time."""
    if serves(x, weight):
        return _Linear.apply(x, weight, bias)
    if bias is not None and _joins_bias(x, weight):
        return product(x, weight, bias)
    return F.linear(x, weight, bias)


def _joins_bias(x: Tensor, weight: Tensor) -> bool:
    """A product in bfloat16 without gradients.

    PyTorch writes the bias into all of the result first, and reads it.
    """
    is_made_for = CAN_PACK and x.device.type == "cpu" and x.dtype == weight.dtype == torch.bfloat16
    return (
        is_made_for
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not _is_changed()
    )


def _is_changed() -> bool:
    """Something around the operator gives products another meaning: autocast, or a switch of the
    user's.
    """
    return torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.enabled


class _Linear(torch.autograd.Function):
    """The operator has no derivative of its own.

    This one's is made of products too, so it has one again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        ctx.has_bias = bias_O is not None
        return product(x, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight_OI = ctx.saved_tensors
        dy_RO = grads[0].flatten(0, -2)
        x_RI = x.flatten(0, -2)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        if needs_x:
            dx = linear(dy_RO, weight_OI.T).view(x.shape)
        else:
            dx = None
        if needs_weight:
            dweight_OI = of_weight(dy_RO, x_RI)
        else:
            dweight_OI = None
        return dx, dweight_OI, dy_RO.sum(0) if needs_bias else None


def of_weight(dy_RO: Tensor, x_RI: Tensor) -> Tensor:
    """dy.T @ x, (O, I). Both are stored anew with rows last. Of many rows, the operator reads the
    smaller one as the input; the transposed result is stored anew by whoever adds it up, which
    takes longer than the product of few.
    """
    if len(dy_RO) >= TRANSPOSED_PAYS and dy_RO.shape[1] > x_RI.shape[1]:
        return linear(x_RI.T, dy_RO.T).T
    return linear(dy_RO.T, x_RI.T)
