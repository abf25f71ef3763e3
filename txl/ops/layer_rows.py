"""What a layer does between its products, on a GPU in one kernel each way.

    h = LayerNorm(x + dropout(y))        a = dropout(max(z, 0)), with the sum of z's gradients

By PyTorch's operators the first takes four kernels forward (dropout, sum, norm, the cast that the
next product needs) and seven back, the second three and three, with twice the traffic. Masks are
not stored: the first draws its own again from a seed on the device; of the second the gradient is 0
where a is, and elsewhere that of a over 1 - p.

Compiled code has PyTorch's operators, which Inductor joins.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from txl.ops.dropout import Dropout
from txl.ops.numbers import HAS_TRITON, as_multiplied, on_gpu

_LARGEST = 8192
"""Numbers in a row that a program holds."""


def add_norm(x_BTD: Tensor, y_BTD: Tensor, drop: Dropout, gate: Any, norm: nn.Module) -> Tensor:
    """norm(gate(x, drop(y))), (B, T, D); the gate is `torch.add` in the paper.

    On a GPU with y in half precision the result brings a copy in the dtype of y, for the products
    that read it: `as_multiplied` finds it.
    """
    is_sum = gate is torch.add and type(norm) is nn.LayerNorm
    is_mixed = x_BTD.dtype == torch.float32 and _is_half(y_BTD)
    if not is_sum or not is_mixed or not _is_fused(x_BTD):
        return norm(gate(x_BTD, drop(y_BTD)))
    p, seed = _drawn(drop, x_BTD.device)
    h_BTD, half_BTD = _AddNorm.apply(x_BTD, y_BTD, norm.weight, norm.bias, norm.eps, p, seed)
    h_BTD.multiplied = half_BTD
    return h_BTD


class TwoLayers(nn.Sequential):
    """A linear layer, an activation, dropout, and a linear layer."""

    @property
    def drop(self) -> Any:
        """The dropout of inner states."""
        return self[2]

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) to (..., D). On a GPU ReLU, dropout and, on the way back, the
        bias's gradient are one kernel."""
        modules: Any = self
        first, activation, drop, second = modules
        bias_F: Tensor | None = first.bias
        if bias_F is None or type(activation) is not nn.ReLU:
            return super().forward(input)
        if not _is_fused(input) or not _is_half(as_multiplied(input)):
            return super().forward(input)
        weight_FD, half_F = first.operands()
        assert half_F is not None
        z = F.linear(as_multiplied(input), weight_FD, half_F.detach())
        return second(bias_relu(z, bias_F, drop))


def bias_relu(z: Tensor, bias_D: Tensor, drop: Dropout) -> Tensor:
    """drop(max(z, 0)) on a GPU, in the dtype of z, half precision.

    Args:
        z: with the bias, which the product has added without a gradient.
        bias_D: gets its gradient here.
    """
    return _BiasReLU.apply(z, bias_D, *_drawn(drop, z.device))


def _is_half(x: Tensor) -> bool:
    return x.dtype in (torch.bfloat16, torch.float16)


def _is_fused(x: Tensor) -> bool:
    if not on_gpu(x) or torch.compiler.is_compiling():
        return False
    return HAS_TRITON and x.shape[-1] <= _LARGEST


def _drawn(drop: Dropout, device: torch.device) -> tuple[float, Tensor | None]:
    """The probability, and a seed on the device, without waiting for it."""
    if not drop.training or drop.p == 0:
        return 0.0, None
    if drop.seed is not None:
        return drop.p, drop.seed
    return drop.p, torch.randint(2**62, (1,), device=device)


def _launch() -> Any:
    """Imported on first use: on a CPU there need be no Triton."""
    from txl.ops import triton_layer_rows

    return triton_layer_rows


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        weight_D: Tensor,
        bias_D: Tensor,
        eps: float,
        p: float,
        seed: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        y = y.contiguous()
        h, half, stats_2L = _launch().add_norm(x, y, weight_D, bias_D, seed, eps, p)
        ctx.save_for_backward(x, y, weight_D, seed, stats_2L)
        ctx.p = p
        ctx.set_materialize_grads(False)
        return h, half

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor | None, dhalf: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        dx, dy, parts_2PD = _launch().add_norm_backward(dh, dhalf, *ctx.saved_tensors, ctx.p)
        dweight_D, dbias_D = parts_2PD.sum(1)
        return dx, dy, dweight_D, dbias_D, None, None, None


class _BiasReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, bias_D: Tensor, p: float, seed: Tensor | None) -> Tensor:
        out = _launch().relu(z.contiguous(), seed, p)
        ctx.save_for_backward(out)
        ctx.p = p
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        (out,) = ctx.saved_tensors
        dz, parts_PD = _launch().relu_backward(grads[0].contiguous(), out, ctx.p)
        return dz, parts_PD.sum(0), None, None
