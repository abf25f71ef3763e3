"""Linear layers of which a part of the outputs is needed, and tables with
another number of rows.
"""

from typing import TypeGuard, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

M = TypeVar("M", bound=nn.Module)


def is_plain(layer: nn.Module, kind: type[M]) -> TypeGuard[M]:
    """True if a call of a layer does nothing but what its class does: no adapter, quantised or
    pruned layer has taken its place, its weights are no quantised or sharded tensors, and nothing
    watches it. Only then may its weights be used without a call.
    """
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    is_watched = any(hooks) or torch_module._has_any_global_hook() or "forward" in vars(layer)
    if type(layer) is not kind or is_watched:
        return False
    return not any(map(is_traceable_wrapper_subclass, layer.parameters(recurse=False)))


def part_of_linear(layer: nn.Module, x: Tensor, first: int, last: int) -> Tensor:
    """Outputs `first` to `last` (excluded) of a linear layer, (..., last - first)."""
    if not is_plain(layer, nn.Linear):
        return layer(x)[..., first:last]
    weight = layer.weight[first:last]
    bias = None if layer.bias is None else layer.bias[first:last]
    return F.linear(x, weight, bias)


def resized(table: Tensor, n_row: int, std: float | None) -> nn.Parameter:
    """The first rows of a table; new ones are the mean of the old, or drawn with the standard
    deviation `std`.
    """
    kept = table.detach()[:n_row]
    size = n_row - len(kept), *table.shape[1:]
    if std is None:
        new = table.detach().mean(0).expand(size)
    else:
        new = torch.randn(size).to(table) * std
    return nn.Parameter(torch.cat([kept, new]), requires_grad=table.requires_grad)
