"""Softmax cross entropy of a linear map, without the logits: never tokens x words in memory, forward or backward.

`naive` is the definition, `blockwise` the way, with the kernels of `fused` on a GPU. Registered as an operator, it may
stand in a compiled graph. The README of this folder has the derivation.
"""

from typing import Any

import torch
from torch import Tensor

from txl.ops.linear_cross_entropy.blockwise import Parameters, Shape, gradients, loss, loss_and_gradients
from txl.ops.numbers import product_dtype


def linear_cross_entropy(hidden_LE: Tensor, weight_VE: Tensor, bias_V: Tensor, target_L: Tensor) -> Tensor:
    """-log softmax(hidden_LE @ weight_VE.T + bias_V)[l, target_L[l]], in nats, (L,).

    Products are made in the numbers of `hidden_LE`, under autocast in its numbers; log-sum-exps and sums of gradients
    in float32 then, and in float64 for float64. The result is of that type.

    Args:
        target_L: the number of each token's word, 0 ... V - 1, on the device of the others.
    """
    lengths, sizes = [hidden_LE.shape[0]], [weight_VE.shape[0]]
    return grouped_linear_cross_entropy(hidden_LE, weight_VE, bias_V, target_L, lengths, sizes)


def grouped_linear_cross_entropy(
    hidden_LE: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor,
    target_L: Tensor,
    lengths: list[int],
    sizes: list[int],
    more_weight_CE: Tensor | None = None,
    more_bias_C: Tensor | None = None,
) -> Tensor:
    """The same for groups side by side, so that the table's gradient is formed once, (L,).

    Group g has the next `lengths[g]` tokens and the next `sizes[g]` rows of the table; a length may be 0. The first
    group's logits go on with those of `more_weight_CE`, `more_bias_C`. Targets count within their group.

    Raises:
        ValueError: if the lengths do not add up to L, or the sizes to V.
    """
    if sum(lengths) != hidden_LE.shape[0] or sum(sizes) != weight_VE.shape[0] or len(lengths) != len(sizes):
        raise ValueError(f"groups of {lengths} tokens and {sizes} words are not {len(hidden_LE)} and {len(weight_VE)}")
    tables = (weight_VE, bias_V, more_weight_CE, more_bias_C)
    of_parameters = any(t is not None and t.requires_grad for t in tables)
    needs_grad = torch.is_grad_enabled() and (of_parameters or hidden_LE.requires_grad)
    # on a CPU the products are all that counts, and so the logits are not computed a second time; on a GPU nobody can
    # look whether all tokens have the same weight without waiting for it
    is_eager = needs_grad and hidden_LE.device.type == "cpu"
    dtype = product_dtype(hidden_LE)
    nll_L, *_ = _operator(hidden_LE, *tables, target_L, lengths, sizes, dtype, is_eager, is_eager and of_parameters)
    return nll_L


@torch.library.custom_op("txl::linear_cross_entropy", mutates_args=())
def _operator(
    hidden_LE: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor,
    more_weight_CE: Tensor | None,
    more_bias_C: Tensor | None,
    target_L: Tensor,
    lengths: list[int],
    sizes: list[int],
    dtype: torch.dtype,
    is_eager: bool,
    of_parameters: bool,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Nats, log-sum-exps, and if eager the gradients by the hidden states and perhaps the parameters."""
    parameters = Parameters(weight_VE, bias_V, more_weight_CE, more_bias_C)
    shape = Shape(lengths, sizes, dtype)
    with torch.autocast(hidden_LE.device.type, enabled=False):
        if not is_eager:
            return *loss(hidden_LE, parameters, target_L, shape), []
        nll_L, lse_L, *made = loss_and_gradients(hidden_LE, parameters, target_L, shape, of_parameters=of_parameters)
    return nll_L, lse_L, _flat(*made)


def _flat(grad_hidden_LE: Tensor | None, grads: Parameters | None) -> list[Tensor]:
    return [part for part in (grad_hidden_LE, *(grads or ())) if part is not None]


@_operator.register_fake
def _(
    hidden_LE: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor,
    more_weight_CE: Tensor | None,
    more_bias_C: Tensor | None,
    target_L: Tensor,
    lengths: list[int],
    sizes: list[int],
    dtype: torch.dtype,
    is_eager: bool,
    of_parameters: bool,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    sum_dtype = Shape(lengths, sizes, dtype).sum_dtype
    tables = Parameters(weight_VE, bias_V, more_weight_CE, more_bias_C) if of_parameters else None
    made = [torch.empty_like(part, dtype=sum_dtype) for part in _flat(hidden_LE, tables)] if is_eager else []
    nll_L = hidden_LE.new_empty(hidden_LE.shape[0], dtype=sum_dtype)
    return nll_L, torch.empty_like(nll_L), made


@torch.library.custom_op("txl::linear_cross_entropy_backward", mutates_args=())
def _backward_operator(
    grad_L: Tensor,
    hidden_LE: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor,
    more_weight_CE: Tensor | None,
    more_bias_C: Tensor | None,
    target_L: Tensor,
    lse_L: Tensor,
    made: list[Tensor],
    lengths: list[int],
    sizes: list[int],
    dtype: torch.dtype,
    of_hidden: bool,
    of_parameters: bool,
) -> list[Tensor]:
    """The gradients asked for, in the types of what they belong to. `made`: those that the operator above has made."""
    parameters = Parameters(weight_VE, bias_V, more_weight_CE, more_bias_C)
    like = _flat(hidden_LE if of_hidden else None, parameters if of_parameters else None)
    grad_hidden_LE, grads = None, None
    if made and of_hidden:
        grad_hidden_LE = made[0] * grad_L[:, None]
    if made and of_parameters and bool((grad_L == grad_L[:1]).all()):  # all tokens weigh the same, as in a mean
        grads = [part * grad_L[:1].sum() for part in made[1:]]
    is_missing = {"of_hidden": of_hidden and not made, "of_parameters": of_parameters and grads is None}
    if any(is_missing.values()):
        with torch.autocast(hidden_LE.device.type, enabled=False):
            shape = Shape(lengths, sizes, dtype)
            also_hidden, also = gradients(grad_L, hidden_LE, parameters, target_L, lse_L, shape, **is_missing)
        grad_hidden_LE = also_hidden if grad_hidden_LE is None else grad_hidden_LE
        grads = _flat(None, also) if grads is None else grads
    found = _flat(grad_hidden_LE, None) + (grads or [])
    return [part.to(its.dtype) for part, its in zip(found, like, strict=True)]


@_backward_operator.register_fake
def _(
    grad_L: Tensor,
    hidden_LE: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor,
    more_weight_CE: Tensor | None,
    more_bias_C: Tensor | None,
    target_L: Tensor,
    lse_L: Tensor,
    made: list[Tensor],
    lengths: list[int],
    sizes: list[int],
    dtype: torch.dtype,
    of_hidden: bool,
    of_parameters: bool,
) -> list[Tensor]:
    parameters = Parameters(weight_VE, bias_V, more_weight_CE, more_bias_C)
    like = _flat(hidden_LE if of_hidden else None, parameters if of_parameters else None)
    return [torch.empty_like(part) for part in like]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, list[Tensor]]) -> None:
    *tensors, ctx.lengths, ctx.sizes, ctx.dtype, _, _ = inputs
    _, lse_L, made = output
    ctx.set_materialize_grads(False)  # else zeros as large as the table, for the gradient of its gradient
    ctx.save_for_backward(*tensors, lse_L, *made)


def _backward(ctx: Any, grad_L: Tensor | None, *_: object) -> tuple[Tensor | None, ...]:
    *tensors, target_L, lse_L = ctx.saved_tensors[:7]
    found: list[Tensor | None] = [None] * 5
    of_parameters = any(ctx.needs_input_grad[1:5])
    if grad_L is not None and any(ctx.needs_input_grad):
        made, shape = list(ctx.saved_tensors[7:]), (ctx.lengths, ctx.sizes, ctx.dtype)
        wanted = (ctx.needs_input_grad[0], of_parameters)
        grads = iter(_backward_operator(grad_L, *tensors, target_L, lse_L, made, *shape, *wanted))
        for i, tensor in enumerate(tensors):
            if tensor is not None and wanted[min(i, 1)]:
                found[i] = next(grads)
    return *found, *[None] * 6


_operator.register_autograd(_backward, setup_context=_keep)
