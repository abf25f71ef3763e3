"""Optimizers that PyTorch lacks, or has in a form that is slow on some devices; an exponential moving
average of the weights.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from txl.model.autocast import dtype_on
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import is_in_shards, local
from txl.training.learning import learning_parameters


class Lamb(torch.optim.Optimizer):
    """Adam whose step is scaled, matrix by matrix, to the norm of the weights (You et al. 2020,
    algorithm 2).

        x <- x - lr * |x| / |r| * r
        r  = m / (sqrt(v) + eps) + weight_decay x      m and v bias-corrected as in Adam

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

    One learning rate thus serves it and an AdamW beside it. `torch.optim.Muon` multiplies matrix by
    matrix and in bfloat16 on every device; this one those of one shape together, in bfloat16 where
    the device has instructions for it, with the same result up to rounding, and elsewhere in the
    dtype of x. Without instructions a product in bfloat16 takes some 40 times as long as in float32.
    The rate may be a tensor: one number on the device of the matrices.

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
        """Update all matrices that have a gradient; those of one shape together. None where
        `found_inf`, a number on the device, is 1.
        """
        # the name that torch's fused optimizers use
        skip: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            lr = group["lr"]
            if skip is not None:  # decided on the device, without a synchronisation
                lr = lr * (1 - skip)
            for matrices in _of_one_shape(group["params"]):
                self._update(matrices, lr, group["weight_decay"], skip)

    def _update(
        self,
        matrices: list[nn.Parameter],
        lr: float | Tensor,
        weight_decay: float,
        skip: Tensor | None,
    ) -> None:
        """Update matrices of one shape in a few operations on all of them: a GPU takes as long to
        begin one as to do it.
        """
        weights: list[Tensor] = []
        momenta: list[Tensor] = []
        grads: list[Tensor] = []
        for x in matrices:
            assert x.grad is not None
            state = self.state[x]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(x)
            weights.append(x)
            momenta.append(state["momentum_buffer"])
            grads.append(x.grad)
        m = torch.stack(momenta)
        grad = torch.stack(grads)
        if skip is None:
            m.lerp_(grad, 0.05)
        else:
            grad = grad.where(skip == 0, m)
            m.lerp_(grad, 0.05 * (1 - skip.to(m.dtype)))
        torch._foreach_copy_(momenta, m.unbind())  # type: ignore[attr-defined]  # no public form
        steps = orthogonalised(_wide(grad.lerp_(m, 0.95)).to(self._dtype or m.dtype))
        factor = -lr * 0.2 * math.sqrt(steps.shape[2])
        if m.shape[1] > m.shape[2]:
            steps = steps.mT
        change = m.copy_(steps).mul_(factor)  # of the layout of the matrices
        torch._foreach_mul_(weights, 1 - lr * weight_decay)  # type: ignore[attr-defined]
        torch._foreach_add_(weights, change.unbind())  # type: ignore[attr-defined]


_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Numbers of matrices that are orthogonalised together: a CPU gains nothing by more, a GPU waits
for fewer launches.
"""


def _of_one_shape(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """The matrices that have a gradient, in parts that can be stacked; of `_AT_ONCE` numbers at
    most, or of one matrix.
    """
    alike: dict[Any, list[nn.Parameter]] = {}
    for x in parameters:
        if x.grad is not None:
            alike.setdefault((x.shape, x.dtype, x.device), []).append(x)
    for matrices in alike.values():
        at_once = _AT_ONCE.get(matrices[0].device.type, _AT_ONCE["cpu"])
        n_matrix = max(1, at_once // matrices[0].numel())
        for begin in range(0, len(matrices), n_matrix):
            yield matrices[begin : begin + n_matrix]


def _wide(stack: Tensor) -> Tensor:
    """Matrices, transposed if they have more rows than columns."""
    if stack.shape[1] > stack.shape[2]:
        return stack.mT
    return stack


def orthogonalised(stack: Tensor) -> Tensor:
    """The matrix of the singular vectors of each matrix g of a stack, with singular values near 1
    (from 0.7 to 1.2), (matrices, rows, columns). Fastest where there are no more rows than columns.

    Five steps of Newton and Schulz, o <- (a + b oo' + c (oo')^2) o, with the coefficients of Jordan
    et al. 2024, which trade exactness for few steps. Begins with o = g / |g|.
    """
    o = stack / stack.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = o @ o.mT
        factor = torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315)
        o = torch.baddbmm(o, factor, o, beta=3.4445)
    return o


class WeightAverage:
    """average <- d average + (1 - d) weights after update n, with d = min(decay, (1 + n) / (10 +
    n)), so that the random initial weights lose their influence soon. Starts as the weights of the
    model; `decay` 0 keeps no average. Of weights that do not learn there is none.
    """

    def __init__(self, model: TransformerXL, decay: float) -> None:
        self._decay = decay
        if decay:
            self._named = learning_parameters(model)
        else:
            self._named = {}
        self._average = [p.detach().clone() for p in self._named.values()]

    def trained(self) -> dict[str, Tensor]:
        """The current weights, which go into the optimizer's state when a checkpoint's model is
        their average.
        """
        # `in_use` replaces the tensors of whole weights and writes into shards
        tensors = {}
        for name, p in self._named.items():
            tensors[f"{name}:trained"] = p.detach().clone() if is_in_shards(p) else p.detach()
        return tensors

    def take_trained(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Put these weights back into the model and return the rest of the state. Raises
        `ValueError` if they are not the model's.
        """
        trained = {}
        for key, x in state.items():
            if key.endswith(":trained"):
                trained[key.removesuffix(":trained")] = x
        own = self._named
        if trained and {name: x.shape for name, x in trained.items()} != {
            name: p.shape for name, p in own.items()
        }:
            raise ValueError("holds weights that are not those of the model")
        with torch.no_grad():
            for name, x in trained.items():
                own[name].copy_(x)
        return {key: x for key, x in state.items() if not key.endswith(":trained")}

    def update(self, n_update: int) -> None:
        """Take in the weights after update `n_update`."""
        if self._average:
            decay = min(self._decay, (1 + n_update) / (10 + n_update))
            weights = []
            for p in self._named.values():
                weights.append(p.detach())
            torch._foreach_lerp_(self._average, weights, 1 - decay)  # type: ignore[attr-defined]  # no public form

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The model has the averaged weights inside this context, if there is an average."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        if self._average:
            for i, p in enumerate(self._named.values()):
                # all-gathers read the memory that the shard has had from the beginning
                if is_in_shards(p):
                    mine = local(p)
                    average = local(self._average[i])
                    trained = mine.clone()
                    mine.copy_(average)
                    average.copy_(trained)
                else:
                    p.data, self._average[i] = self._average[i], p.data
