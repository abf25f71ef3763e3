"""The feed-forward network of a layer."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txl.config import ModelConfig
from txl.model.activations import GATED, build_activation
from txl.ops.dropout import Dropout
from txl.ops.linear import Linear


class FeedForward(nn.Sequential):
    """W_2 dropout(activation(W_1 x + b_1)) + b_2, then dropout. Source: Vaswani et al. 2017, eq. 2.

    Attributes:
        chunk: tokens of a segment computed at a time, 0 for all (Kitaev et al. 2020, sec. 3). The backward pass
            recomputes each chunk, so that the inner states of only one are in memory.
    """

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        n_inner = 2 * config.d_inner if config.activation in GATED else config.d_inner
        super().__init__(
            Linear(config.d_model, n_inner),
            build_activation(config.activation),
            Dropout(dropout),
            Linear(config.d_inner, config.d_model),
            Dropout(dropout),
        )
        self.chunk = 0

    def forward(self, input: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        if not 0 < self.chunk < input.shape[1]:
            return super().forward(input)
        return torch.cat([self._recomputed(part_BCD) for part_BCD in input.split(self.chunk, dim=1)], dim=1)

    def _recomputed(self, part_BCD: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(part_BCD)
        return checkpoint(super().forward, part_BCD, use_reentrant=False)
