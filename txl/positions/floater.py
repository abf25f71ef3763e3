"""Positions as the solution of a learned differential equation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from txl.config import ModelConfig, UsageError
from txl.model.span import Span
from txl.ops.numbers import sinusoid
from txl.positions.base import PositionEncoding, add_positions

TIME_PER_TOKEN = 0.1


class Floater(PositionEncoding):
    """Position vectors along the solution of a learned ordinary differential equation.

    q_t = W_q (x_t + p_t), k_s = W_k (x_s + p_s), v_s = W_v x_s
    p_i = S_i + z(0.1 i),  dz/dtau = f(tau, z),  f = two linear maps with a tanh between them

    S_i is the sinusoid of position i; f and z(0) are initially 0, so training starts at the
    sinusoids. With h(tau, p) = S'(tau) + f(tau, p - S(tau)) it is the paper's dp/dtau = h(tau, p).
    Source: Liu et al. 2020, FLOATER (arXiv 2003.09229), sec. 3.1, eq. 8, in every block (sec. 3.2),
    starting at the sinusoids (sec. 3.3). Solved with torchdiffeq's fourth-order Runge-Kutta, one
    step per token, so more text does not change earlier positions.
    Differs from the paper: values carry no positions, so that hidden states can be remembered
    (there they do, sec. 3.3); blocks share z(0) as well as f; gradients go through the solver's
    steps instead of an adjoint equation. Differs from the authors' code (xuanqing94/FLOATER,
    `flow_func_linear`): f has a tanh between its two full-width maps, there a ReLU, and only the
    first of ours is given the time.
    Shared by all layers: f and z(0), unless `untie_r`; then each layer solves its own equation.
    Works with: softmax, performer, lsh.
    Cost: S steps of four evaluations of f, one after another; torchdiffeq waits for a GPU at each.
    Beyond the trained length: works; the solution is extended. Needs torchdiffeq.
    """

    shared = ("z0_D", "motion")
    clamps = False

    has_sinusoids = True

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        _odeint()
        self.untied = config.untie_r
        width = config.d_model
        self.z0_D = nn.Parameter(torch.zeros(width))
        self.motion = nn.Sequential(nn.Linear(width + 1, width), nn.Tanh(), nn.Linear(width, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.z0_D, *self.motion[2].parameters()):
            nn.init.zeros_(parameter)

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """p of all keys, (S, D), where all layers share it; else S alone."""
        sinusoid_SD = sinusoid(span.key_positions_S(like.device), like.shape[-1], like.dtype)
        if self.untied:
            return sinusoid_SD
        return self.drop(sinusoid_SD + self.path(span))

    def qk_input(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span
    ) -> tuple[Tensor, Tensor]:
        return add_positions(
            x_BTD, mem_BMD, self.drop(feats + self.path(span)) if self.untied else feats
        )

    def path(self, span: Span) -> Tensor:
        """z of all keys, (S, D)."""
        device = self.z0_D.device
        n_step = max(2, span.n_key)  # with a single token f would get no gradient
        with torch.autocast(device.type, enabled=False):  # half precision would lose small steps
            times_S = TIME_PER_TOKEN * torch.arange(n_step, device=device, dtype=self.z0_D.dtype)
            path_SD = _odeint()(self._motion, self.z0_D, times_S, method="rk4")
        return path_SD[: span.n_key]

    def _motion(self, time: Tensor, z_D: Tensor) -> Tensor:
        return self.motion(torch.cat([z_D, time[None]]))


def _odeint() -> Callable[..., Any]:
    try:
        from torchdiffeq import odeint  # optional
    except ImportError:
        raise UsageError(
            "--position floater: needs torchdiffeq, which is not installed; pip install torchdiffeq"
        ) from None
    return odeint
