"""A model of which only the sizes are known, to compare or to count before memory is taken."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from txl.config import ModelConfig
from txl.model.transformer import TransformerXL


class _WithoutValues(TorchFunctionMode):
    """Tensors are made on the device `meta`, and those of random numbers are not even drawn there.

    PyTorch computes on that device in Python, and imports its compiler for that, which takes a second.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.mul and isinstance(args[1], float):
            return args[0]
        kwargs = dict(kwargs or {})
        if func is torch.randn:
            func = torch.empty
            kwargs.pop("generator", None)
        with torch.device("meta"):
            return func(*args, **kwargs)


def model_without_values(config: ModelConfig, *, dropout: float = 0.0, dropatt: float = 0.0) -> TransformerXL:
    """A model on the device `meta`. Raises what PyTorch does for sizes that no tensor can have."""
    with _WithoutValues():
        return TransformerXL(config, dropout=dropout, dropatt=dropatt)
