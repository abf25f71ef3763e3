"""A model of which only the sizes are known, or whose weights are about to be replaced: nothing is
drawn for it.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from txl.config import ModelConfig
from txl.model.transformer import TransformerXL


class _Undrawn(TorchFunctionMode):
    """Tensors are made on a device, and random numbers are not drawn: zeros, of which no memory is
    taken.

    PyTorch computes on the device `meta` in Python, and imports its compiler for that, which takes
    a second.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device, self._undrawn = torch.device(device), list[Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.uniform_ or (
            func is Tensor.mul and any(args[0] is tensor for tensor in self._undrawn)
        ):
            return args[0]
        with self._device:
            if func is not torch.randn:
                return func(*args, **(kwargs or {}))
            self._undrawn.append(torch.zeros(*args))
            return self._undrawn[-1]


def weights_of(model: TransformerXL) -> dict[str, Tensor]:
    """The parameters, tied ones once, and the persistent buffers."""
    state = model.state_dict()
    weights: dict[str, Tensor] = dict(model.named_parameters())
    for name, buffer in model.named_buffers():
        if name in state:
            weights[name] = buffer
    return weights


def shapes_of(
    config: ModelConfig, *, n_tensor: int, n_element: int
) -> dict[str, tuple[int, ...]] | None:
    """The shapes of a model's parameters and persistent buffers; None if it is far larger than a
    file of so many tensors and elements, which is found out before anything of its size is built.
    Raises `ValueError` or `KeyError` if there is no such model.
    """
    n_part = max(config.n_layer, len(config.cutoffs), len(config.tie_projs))
    n_of_queries = config.n_layer * config.d_model * config.n_head * config.d_head
    if n_part > n_tensor or n_of_queries > 2 * n_element:
        return None
    try:
        model = model_without_values(config)
    except (RuntimeError, OverflowError, TypeError):  # sizes that no tensor can have
        return None
    shapes = {}
    for name, tensor in weights_of(model).items():
        shapes[name] = tuple(tensor.shape)
    if sum(map(math.prod, shapes.values())) <= 2 * n_element:
        return shapes
    return None


def model_without_values(
    config: ModelConfig, *, dropout: float = 0.0, dropatt: float = 0.0, device: str = "meta"
) -> TransformerXL:
    """A model whose weights are not drawn.

    Raises what PyTorch does for sizes that no tensor can have.
    """
    with _Undrawn(device):
        return TransformerXL(config, dropout=dropout, dropatt=dropatt)
