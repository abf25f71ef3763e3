"""Queries, keys and values of [memory, segment], written where attention reads them."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txl.ops.numbers import as_multiplied

Operands = tuple[Tensor, Tensor | None]
"""Weight (E, D) and bias (E,)."""


def project_with_memory(
    x_BTD: Tensor, mem_BMD: Tensor, q: Operands, k: Operands, v: Operands
) -> tuple[Tensor, Tensor, Tensor]:
    """q of the segment, (B, T, E); k and v of [memory, segment], (B, S, E), one product each.

    A memory that needs no gradient gets none. By autograd memory and segment are projected apart and
    joined, or the memory's gradient is multiplied and discarded.
    """
    operands = [None if x is None else as_multiplied(x) for x in (*q, *k, *v)]
    return _Project.apply(x_BTD, mem_BMD, *operands)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_BTD: Tensor,
        mem_BMD: Tensor,
        q_ED: Tensor,
        q_E: Tensor | None,
        k_ED: Tensor,
        k_E: Tensor | None,
        v_ED: Tensor,
        v_E: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        joined_BSD = torch.cat([mem_BMD, x_BTD], 1)
        ctx.save_for_backward(x_BTD, joined_BSD, q_ED, k_ED, v_ED)
        return (
            _linear(x_BTD, q_ED, q_E),
            _linear(joined_BSD, k_ED, k_E),
            _linear(joined_BSD, v_ED, v_E),
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq_BTE: Tensor, dk_BSE: Tensor, dv_BSE: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x_BTD, joined_BSD, q_ED, k_ED, v_ED = ctx.saved_tensors
        n_mem = joined_BSD.shape[1] - x_BTD.shape[1]
        dx_BTD = torch.mm(dq_BTE.flatten(0, 1), q_ED).view_as(x_BTD)
        k_BED, v_BED = (weight.expand(len(x_BTD), -1, -1) for weight in (k_ED, v_ED))
        dx_BTD.baddbmm_(dk_BSE[:, n_mem:], k_BED).baddbmm_(dv_BSE[:, n_mem:], v_BED)
        dmem_BMD = None
        if ctx.needs_input_grad[1]:
            dmem_BMD = torch.bmm(dk_BSE[:, :n_mem], k_BED).baddbmm_(dv_BSE[:, :n_mem], v_BED)
        q = _of_weight(dq_BTE, x_BTD, ctx.needs_input_grad[3])
        k = _of_weight(dk_BSE, joined_BSD, ctx.needs_input_grad[5])
        v = _of_weight(dv_BSE, joined_BSD, ctx.needs_input_grad[7])
        return dx_BTD, dmem_BMD, *q, *k, *v


def _linear(x_BLD: Tensor, weight_ED: Tensor, bias_E: Tensor | None) -> Tensor:
    """(B, L, D) to (B, L, E) in one product."""
    x_ND = x_BLD.flatten(0, 1)
    if bias_E is None:
        y_NE = x_ND @ weight_ED.T
    else:
        y_NE = torch.addmm(bias_E, x_ND, weight_ED.T)
    return y_NE.view(*x_BLD.shape[:2], -1)


def _of_weight(d_BLE: Tensor, x_BLD: Tensor, has_bias: bool) -> tuple[Tensor, Tensor | None]:
    """The gradients of weight and bias."""
    d_NE = d_BLE.flatten(0, 1)
    return d_NE.T @ x_BLD.flatten(0, 1), d_NE.sum(0) if has_bias else None
