"""The weights of a TransfoXL model under their published names, and our model computing with them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txl.convert.huggingface import tensor_for, to_huggingface
from txl.model.transformer import TransformerXL

T = TypeVar("T")


class Weights(nn.Module):
    """Parameters and buffers of a part of the model, by name; it computes nothing itself."""


def add_weights(root: nn.Module, model: TransformerXL, prefix: str) -> None:
    """Give `root` the weights of `model` whose published names begin with `prefix`, which is left out.

    Tensors that the published model ties are separate here: transformers ties them after loading.
    """
    for name, tensor in to_huggingface(model).items():
        if not name.startswith(prefix):
            continue
        *path, last = name.removeprefix(prefix).split(".")
        part = root
        for step in path:
            if not hasattr(part, step):
                part.add_module(step, Weights())
            part = part.get_submodule(step)
        if last == "inv_freq":  # never read: saved because transformers 4 had it
            part.register_buffer(last, torch.empty(tensor.shape))
        else:
            part.register_parameter(last, nn.Parameter(torch.empty(tensor.shape)))


class _Call(nn.Module):
    def __init__(self, model: TransformerXL) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[TransformerXL], T]) -> T:
        return function(self.model)


def call_with(
    theirs: Mapping[str, Tensor],
    model: TransformerXL,
    prefixes: tuple[str, ...],
    function: Callable[[TransformerXL], T],
) -> T:
    """`function(model)` while its parameters are `theirs`, of which gradients are taken: by their names in the
    published checkpoint, without `transformer.`; only those whose names with us begin with one of `prefixes`."""
    names = (name for name, _ in model.named_parameters(remove_duplicate=False) if name.startswith(prefixes))
    ours = {f"model.{name}": tensor_for(name, theirs, model.config)[1] for name in names}
    return torch.func.functional_call(_Call(model), ours, (function,), tie_weights=False)


def recomputed(layer: nn.Module, *inputs: Any) -> Any:
    """The output of a layer, recomputed in the backward pass with the weights that it has now: those that `call_with`
    gives the model are gone by then."""
    weights: dict[str, Tensor] = dict(layer.named_parameters(remove_duplicate=False))
    call = functools.partial(torch.func.functional_call, layer, weights, tie_weights=False)
    return checkpoint(call, inputs, use_reentrant=False)
