"""Queries, keys and values of [memory, segment] in two products, written where attention reads them."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txl.ops.numbers import as_multiplied, in_one_piece

Operands = tuple[Tensor, Tensor | None]
"""Weight (E, D) and bias (E,)."""


def project_with_memory(
    x_BTD: Tensor, mem_BMD: Tensor, q: Operands, k: Operands, v: Operands
) -> tuple[Tensor, Tensor, Tensor]:
    """q of the segment, (B, T, E), by one product; k and v of [memory, segment], (B, S, E), by
    another, beside each other in memory.

    A memory that needs no gradient gets none. By autograd memory and segment are projected apart and
    joined, or the memory's gradient is multiplied and discarded.
    """
    operands = [None if x is None else as_multiplied(x) for x in (*q, *k, *v)]
    return _Project.apply(x_BTD, mem_BMD, *operands)


def side_by_side(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """[x, y] along a dimension. No copy is made where they are neighbours in one piece of memory,
    as parts of a product or of `cast_together` are.
    """
    if torch.compiler.is_compiling():
        return torch.cat([x, y], dim)
    shape = [*x.shape]
    shape[dim] += y.shape[dim]
    end = x.storage_offset() + x.shape[dim] * x.stride(dim)
    if in_one_piece(x, y) and y.storage_offset() == end:
        return x.as_strided(shape, x.stride())
    return torch.cat([x, y], dim)


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
        kv_FD = side_by_side(k_ED, v_ED, 0)
        kv_F = None
        if k_E is not None and v_E is not None:
            kv_F = side_by_side(k_E, v_E, 0)
        ctx.save_for_backward(x_BTD, joined_BSD, q_ED, kv_FD)
        q_BTE = _linear(x_BTD, q_ED, q_E)
        k_BSE, v_BSE = _linear(joined_BSD, kv_FD, kv_F).chunk(2, -1)
        return q_BTE, k_BSE, v_BSE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq_BTE: Tensor, dk_BSE: Tensor, dv_BSE: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x_BTD, joined_BSD, q_ED, kv_FD = ctx.saved_tensors
        n_mem = joined_BSD.shape[1] - x_BTD.shape[1]
        dkv_BSF = side_by_side(dk_BSE, dv_BSE, -1)
        kv_BFD = kv_FD.expand(len(x_BTD), -1, -1)
        dx_BTD = torch.mm(dq_BTE.flatten(0, 1), q_ED).view_as(x_BTD)
        dx_BTD.baddbmm_(dkv_BSF[:, n_mem:], kv_BFD)
        dmem_BMD = None
        if ctx.needs_input_grad[1]:
            dmem_BMD = torch.bmm(dkv_BSF[:, :n_mem], kv_BFD)
        q = _of_weight(dq_BTE, x_BTD, ctx.needs_input_grad[3])
        dkv_FD, dkv_F = _of_weight(dkv_BSF, joined_BSD, ctx.needs_input_grad[5])
        dk_ED, dv_ED = dkv_FD.chunk(2)
        dk_E = dv_E = None
        if dkv_F is not None:
            dk_E, dv_E = dkv_F.chunk(2)
        return dx_BTD, dmem_BMD, *q, dk_ED, dk_E, dv_ED, dv_E


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
