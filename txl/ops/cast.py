"""Weights in 16 bits for the products of a layer, cast by one kernel instead of one each.

Under autocast PyTorch casts each weight by itself, and each gradient back: on a GPU a layer of the
paper takes 18 launches for that, of about 100.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from txl.ops.linear import Linear
from txl.ops.numbers import on_gpu, product_dtype


class _CastTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        copies = _together(weights, dtype)
        torch._foreach_copy_(copies, weights)  # type: ignore[attr-defined]  # no public form
        return tuple(copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        given = [grad for grad in grads if grad is not None]
        wide = _together(given, torch.float32)
        torch._foreach_copy_(wide, given)  # type: ignore[attr-defined]
        found = iter(wide)
        return None, *(None if grad is None else next(found) for grad in grads)


def _together(like: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Tensors of these shapes, without values, in one piece of memory. Each begins on 16 bytes, as
    products read them.
    """
    rooms = [-(-x.numel() // 8) * 8 for x in like]
    flat = torch.empty(sum(rooms), dtype=dtype, device=like[0].device)
    parts = zip(flat.split(rooms), like, strict=True)
    return [part[: x.numel()].view(x.shape) for part, x in parts]


def cast_together(weights: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Copies of float32 weights in 16 bits; gradients come back in float32. One kernel each way."""
    return _CastTogether.apply(dtype, *weights)


@contextmanager
def weights_cast(module: nn.Module, like: Tensor) -> Iterator[None]:
    """Inside, the `Linear` layers of a module multiply copies of their weights in the dtype of
    products with `like`, which are made here. Only where it saves launches: on a GPU, under
    autocast, of float32 weights that learn; nothing changes elsewhere.
    """
    nets = []
    if on_gpu(like) and torch.is_grad_enabled() and product_dtype(like) != torch.float32:
        nets = [net for net in module.modules() if isinstance(net, Linear) and _learns(net)]
    weights = [weight for net in nets for weight in net.parameters()]
    if not weights:
        yield
        return
    copies = iter(cast_together(weights, product_dtype(like)))
    for net in nets:
        net.cast = (net.weight, *(next(copies) for _ in net.parameters()))
    try:
        yield
    finally:
        for net in nets:
            net.cast = ()


def _learns(net: Linear) -> bool:
    """True for float32 weights that learn, and are not in shards: those are put together when the
    layer runs.
    """
    for x in net.parameters():
        is_in_shards = hasattr(x, "full_tensor")
        if is_in_shards or x.dtype != torch.float32 or not x.requires_grad:
            return False
    return True
