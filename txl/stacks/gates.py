"""Gates in place of residual sums.

Source: GTrXL, Parisotto et al. 2020 (arXiv 1910.06764), sec. 3.2.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import ModelConfig, PartSettings, option
from txl.ops.linear import Linear
from txl.registry import NoSettings


@dataclass(frozen=True, kw_only=True)
class BiasSettings(PartSettings):
    """Of gates with a bias."""

    gate_bias: float = option(
        2.0,
        "what the bias of gates begins at: the larger, the nearer is a layer to one that does"
        " nothing",
    )


class Gate(nn.Module):
    """Joins the stream x before a sub-layer and its output y, (B, T, D) each, to the stream g after
    it.

    The bias b, (D,), of all but `InputGate` is learned and begins at `gate_bias`: the larger it is,
    the nearer is g to x in the beginning. A gate brings the paper's identity-map reordering:
    LayerNorm before the sub-layer only (`pre_lnorm`), ReLU after it.
    """

    Settings: ClassVar[type[Any]] = BiasSettings
    matrices: tuple[int, ...]
    """Of each product, how many (D, D) matrices stand below each other in it."""
    is_biased = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.nets = nn.ModuleList(Linear(d_model, n * d_model, bias=False) for n in self.matrices)
        self.initial = config.settings(BiasSettings).gate_bias
        if self.is_biased:
            self.b_D = nn.Parameter(torch.full((d_model,), self.initial))

    def reset_parameters(self) -> None:
        """b as it begins. Matrices are initialised as those of the layers."""
        if self.is_biased:
            nn.init.constant_(self.b_D, self.initial)

    def forward(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """The stream after the sub-layer, (B, T, D), in the dtype of x."""
        return self.joined(x_BTD, F.relu(y_BTD)).to(x_BTD.dtype)

    def joined(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """g(x, y), the formula of the gate."""
        raise NotImplementedError


class InputGate(Gate):
    """g = sigmoid(W x) * x + y

    The paper gives it no bias: the stream begins at half of itself at each gate.
    """

    Settings = NoSettings
    matrices = (1,)
    is_biased = False

    def joined(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        (w,) = self.nets
        return torch.sigmoid(w(x_BTD)) * x_BTD + y_BTD


class OutputGate(Gate):
    """g = x + sigmoid(W x - b) * y"""

    matrices = (1,)

    def joined(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        (w,) = self.nets
        return x_BTD + torch.sigmoid(w(x_BTD) - self.b_D) * y_BTD


class HighwayGate(Gate):
    """z = sigmoid(W x + b),  g = z * x + (1 - z) * y"""

    matrices = (1,)

    def joined(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        (w,) = self.nets
        return y_BTD + torch.sigmoid(w(x_BTD) + self.b_D) * (x_BTD - y_BTD)


class SigmoidTanhGate(Gate):
    """g = x + sigmoid(W y - b) * tanh(U y)"""

    matrices = (2,)

    def joined(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        (wu,) = self.nets
        w_BTD, u_BTD = wu(y_BTD).chunk(2, dim=-1)
        return x_BTD + torch.sigmoid(w_BTD - self.b_D) * torch.tanh(u_BTD)


class GRUGate(Gate):
    """r = sigmoid(W_r y + U_r x),  z = sigmoid(W_z y + U_z x - b),  h = tanh(W_h y + U_h (r * x))
    g = (1 - z) * x + z * h
    """

    matrices = (3, 2, 1)  # W_r, W_z, W_h; U_r, U_z; U_h

    def joined(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        w, u, u_h = self.nets
        w_r, w_z, w_h = w(y_BTD).chunk(3, dim=-1)
        u_r, u_z = u(x_BTD).chunk(2, dim=-1)
        z_BTD = torch.sigmoid(w_z + u_z - self.b_D)
        h_BTD = torch.tanh(w_h + u_h(torch.sigmoid(w_r + u_r) * x_BTD))
        return x_BTD + z_BTD * (h_BTD - x_BTD)
