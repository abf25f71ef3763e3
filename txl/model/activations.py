"""Activations of the feed-forward network, and its gated units."""

import torch.nn.functional as F
from torch import Tensor, nn


class SquaredReLU(nn.Module):
    """max(x, 0)^2. Source: So et al. 2021 (Primer)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class Gated(nn.Module):
    """activation(a) * b of [a, b], the two halves of the last dimension.

    Source: Shazeer 2020, sec. 2.
    """

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
"""With a gate the first matrix has 2 d_inner columns; 2/3 of the `--d_inner` keeps the number of
parameters.
"""


def build_activation(name: str) -> nn.Module:
    """The activation of this name, with its gate if it has one."""
    activation = ACTIVATIONS[name]()
    if name in GATED:
        return Gated(activation)
    return activation
