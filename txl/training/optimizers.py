"""Optimizers that PyTorch lacks, or has in a form that is slow on some devices."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from txl.model.autocast import dtype_on


class Lamb(torch.optim.Optimizer):
    """Adam whose step is scaled, matrix by matrix, to the norm of the weights (You et al. 2020,
    algorithm 2).

    x <- x - lr * |x| / |r| * r          r = m / (sqrt(v) + eps) + weight_decay x, m and v
    bias-corrected as in Adam

    The ratio is 1 where either norm is 0.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # closures are not supported
        """Update all weights that have a gradient; none where `found_inf`, a number on the device,
        is 1.
        """
        for group in self.param_groups:
            for x in group["params"]:
                if x.grad is not None:
                    self._update(x, group)

    def _update(self, x: nn.Parameter, group: dict[str, Any]) -> None:
        state = self.state[x]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(x), torch.zeros_like(x)
        # the name that torch's fused optimizers use
        skip: Tensor | None = getattr(self, "found_inf", None)
        changed = (x, state["exp_avg"], state["exp_avg_sq"])
        if skip is None:
            before = []
        else:
            before = [t.clone() for t in changed]
        self._advance(x, state, group)
        if skip is not None:  # decided on the device, without a synchronisation
            for new, old in zip(changed, before, strict=True):
                new.copy_(torch.where(skip > 0, old, new))

    def _advance(self, x: nn.Parameter, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        assert x.grad is not None
        state["step"] += 1
        beta1, beta2 = group["betas"]
        n_step = float(state["step"])
        m = state["exp_avg"]
        v = state["exp_avg_sq"]
        m.lerp_(x.grad, 1 - beta1)
        v.mul_(beta2).addcmul_(x.grad, x.grad, value=1 - beta2)
        r = (m / (1 - beta1**n_step)) / ((v / (1 - beta2**n_step)).sqrt() + group["eps"])
        r.add_(x, alpha=group["weight_decay"])
        x_norm = x.norm()
        r_norm = r.norm()
        ratio = torch.where((x_norm > 0) & (r_norm > 0), x_norm / r_norm, torch.ones_like(x_norm))
        x.sub_(r * (group["lr"] * ratio))


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum (Jordan et al. 2024), in steps of the size of AdamW's (Liu et al.
    2025, section 2.2).

    m <- 0.95 m + 0.05 g
    x <- (1 - lr weight_decay) x - 0.2 lr sqrt(max(rows, columns)) orthogonalised(0.05 g + 0.95 m)

    One learning rate thus serves it and an AdamW beside it. `torch.optim.Muon` multiplies in
    bfloat16 on every device; this one where the device has instructions for bfloat16, with the same
    result, and elsewhere in the dtype of x. Without instructions a product in bfloat16 takes some
    40 times as long as in float32.

    Args:
        params: matrices.
    """

    def __init__(self, params: Iterable[Any], lr: float, *, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        device = self.param_groups[0]["params"][0].device
        if dtype_on(device, "auto") == "bfloat16":
            self._dtype = torch.bfloat16
        else:
            self._dtype = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # closures are not supported
        """Update all matrices that have a gradient."""
        for group in self.param_groups:
            for x in group["params"]:
                if x.grad is not None:
                    self._update(x, x.grad, **group)

    def _update(
        self, x: nn.Parameter, g: Tensor, *, lr: float, weight_decay: float, **_: Any
    ) -> None:
        state = self.state[x]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(x)
        m = state["momentum_buffer"].lerp_(g, 0.05)
        step = orthogonalised(g.lerp(m, 0.95).to(self._dtype or x.dtype))
        x.mul_(1 - lr * weight_decay)
        x.add_(step, alpha=-lr * 0.2 * math.sqrt(max(x.shape)))


def orthogonalised(g: Tensor) -> Tensor:
    """A matrix of the singular vectors of `g`, with singular values near 1 (from 0.7 to 1.2).

    Five steps of Newton and Schulz, o <- (a + b oo' + c (oo')^2) o, with the coefficients of Jordan
    et al. 2024, which trade exactness for few steps.
    """
    is_tall = g.shape[0] > g.shape[1]
    o = g.T if is_tall else g  # oo' is then the smaller of the two squares
    o = o / o.norm().clamp(min=1e-7)
    for _ in range(5):
        square = o @ o.T
        o = torch.addmm(
            o, torch.addmm(square, square, square, beta=-4.7750, alpha=2.0315), o, beta=3.4445
        )
    if is_tall:
        return o.T
    return o
