"""Activations of the feed-forward network, and its gated units."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from txl.registry import ACTIVATIONS


class SquaredReLU(nn.Module):
    """max(x, 0)^2. Source: So et al. 2021 (Primer)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class TanhGELU(nn.GELU):
    """GELU by tanh in place of the error function. Source: Hendrycks and Gimpel 2016, sec. 2."""

    def __init__(self) -> None:
        super().__init__(approximate="tanh")


class Gated(nn.Module):
    """activation(a) * b of [a, b], the two halves of the last dimension.

    Source: Shazeer 2020, sec. 2. The first matrix has 2 d_inner columns; 2/3 of the `--d_inner`
    keeps the number of parameters.
    """

    of_gate: ClassVar[type[nn.Module]]

    def __init__(self) -> None:
        super().__init__()
        self.activation = self.of_gate()

    def forward(self, ab: Tensor) -> Tensor:
        """(..., 2F) to (..., F)."""
        a, b = ab.chunk(2, dim=-1)
        return self.activation(a) * b


class GLU(Gated):
    """Source: Dauphin et al. 2017."""

    of_gate = nn.Sigmoid


class ReGLU(Gated):
    """Source: Shazeer 2020, eq. 5."""

    of_gate = nn.ReLU


class GEGLU(Gated):
    """Source: Shazeer 2020, eq. 5."""

    of_gate = nn.GELU


class TanhGEGLU(Gated):
    """GEGLU with `TanhGELU`."""

    of_gate = TanhGELU


class SwiGLU(Gated):
    """Source: Shazeer 2020, eq. 5."""

    of_gate = nn.SiLU


def is_gated(name: str) -> bool:
    """True if an activation joins two halves of its input."""
    return issubclass(ACTIVATIONS[name], Gated)
