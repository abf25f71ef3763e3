"""The feed-forward network of a layer."""

import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.model.activations import ACTIVATIONS, is_gated
from txl.ops.dropout import Dropout
from txl.ops.layer_rows import bias_relu, is_bias_relu_fused
from txl.ops.linear import Linear
from txl.ops.numbers import as_multiplied


class FeedForward(nn.Sequential):
    """W_2 dropout(activation(W_1 x + b_1)) + b_2; no b_1, b_2 without `ff_bias`.

    Source: Vaswani et al. 2017, eq. 2.
    """

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        if is_gated(config.activation):
            n_inner = 2 * config.d_inner
        else:
            n_inner = config.d_inner
        super().__init__(
            Linear(config.d_model, n_inner, bias=config.ff_bias),
            ACTIVATIONS[config.activation](),
            Dropout(dropout),
            Linear(config.d_inner, config.d_model, bias=config.ff_bias),
        )

    @property
    def drop(self) -> Dropout:
        """That of the inner states."""
        _, _, drop, _ = self
        return drop

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) to (..., D)."""
        first, activation, drop, second = self
        input = as_multiplied(input)
        if not is_bias_relu_fused(input, activation, first.bias):
            return super().forward(input)
        weight_FD, _ = first.operands()
        return second(bias_relu(F.linear(input, weight_FD), first.bias, drop))
