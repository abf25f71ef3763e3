"""The feed-forward network of a layer: activations, gated units, computation in chunks."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txl.config import ModelConfig
from txl.ops.dropout import Dropout
from txl.ops.linear import Linear


class SquaredReLU(nn.Module):
    """max(x, 0)^2. Source: So et al. 2021 (Primer)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class Gated(nn.Module):
    """activation(a) * b of [a, b], the two halves of the last dimension. Source: Shazeer 2020, sec. 2."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, ab: Tensor) -> Tensor:
        """(..., 2F) to (..., F)."""
        a, b = ab.chunk(2, dim=-1)
        return self.activation(a) * b


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "relu2": SquaredReLU,
    "silu": nn.SiLU,
    "glu": nn.Sigmoid,
    "reglu": nn.ReLU,
    "geglu": nn.GELU,
    "swiglu": nn.SiLU,
}
GATED = {"glu", "reglu", "geglu", "swiglu"}
"""With a gate the first matrix has 2 d_inner columns; 2/3 of the `--d_inner` keeps the number of parameters."""


class FeedForward(nn.Sequential):
    """W_2 dropout(activation(W_1 x + b_1)) + b_2, then dropout. Source: Vaswani et al. 2017, eq. 2; gates: `Gated`.

    Attributes:
        chunk: tokens of a segment computed at a time, 0 for all (Kitaev et al. 2020, sec. 3). The backward pass
            recomputes each chunk, so that the inner states of only one are in memory.
    """

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        activation = ACTIVATIONS[config.activation]()
        is_gated = config.activation in GATED
        super().__init__(
            Linear(config.d_model, 2 * config.d_inner if is_gated else config.d_inner),
            Gated(activation) if is_gated else activation,
            Dropout(dropout),
            Linear(config.d_inner, config.d_model),
            Dropout(dropout),
        )
        self.chunk = 0

    def forward(self, input: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        if not 0 < self.chunk < input.shape[1]:
            return super().forward(input)
        return torch.cat([self._one(part_BCD) for part_BCD in input.split(self.chunk, dim=1)], dim=1)

    def steps(self) -> tuple[nn.Linear, nn.Module, nn.Linear]:
        """What it does one after the other, but for dropout."""
        first, activation, _, last, _ = self
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        return first, activation, last

    def _one(self, part_BCD: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return checkpoint(super().forward, part_BCD, use_reentrant=False)
        return super().forward(part_BCD)
