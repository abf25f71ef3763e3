"""Optimizers and learning rates."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from txl.config import TrainConfig


class Lamb(torch.optim.Optimizer):
    """Adam whose step is scaled, matrix by matrix, to the norm of the weights (You et al. 2020, algorithm 2).

    x <- x - lr * |x| / |r| * r          r = m / (sqrt(v) + eps) + weight_decay x, m and v bias-corrected as in Adam

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
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            for x in group["params"]:
                if x.grad is not None:
                    self._update(x, group)

    def _update(self, x: nn.Parameter, group: dict[str, Any]) -> None:
        state = self.state[x]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(x), torch.zeros_like(x)
        skip = getattr(self, "found_inf", None)
        if skip is not None:
            self._update_unless(skip, x, group)
        else:
            self._advance(x, state, group)

    def _update_unless(self, skip: Tensor, x: nn.Parameter, group: dict[str, Any]) -> None:
        """The update where `skip` is 0, and all as it was where it is 1, without asking the device which it is."""
        state = self.state[x]
        before = [t.clone() for t in (x, state["exp_avg"], state["exp_avg_sq"])]
        self._advance(x, state, group)
        for now, old in zip((x, state["exp_avg"], state["exp_avg_sq"]), before, strict=True):
            now.copy_(torch.where(skip > 0, old, now))

    def _advance(self, x: nn.Parameter, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        state["step"] += 1
        beta1, beta2 = group["betas"]
        n_step = float(state["step"])
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m.lerp_(x.grad, 1 - beta1)
        v.mul_(beta2).addcmul_(x.grad, x.grad, value=1 - beta2)
        r = (m / (1 - beta1**n_step)) / ((v / (1 - beta2**n_step)).sqrt() + group["eps"])
        r.add_(x, alpha=group["weight_decay"])
        x_norm, r_norm = x.norm(), r.norm()
        ratio = torch.where((x_norm > 0) & (r_norm > 0), x_norm / r_norm, torch.ones_like(x_norm))
        x.sub_(r * (group["lr"] * ratio))


class Optimizers:
    """One optimizer, or two that share the parameters among them, as one.

    Args:
        named: the parameters by name; the names are those of the state that is saved.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], config: TrainConfig) -> None:
        self._names = {parameter: name for name, parameter in named}
        self._all = list(_build(self._names, config))

    def set_learning_rate(self, lr: float) -> None:
        """Use `lr` from the next update on."""
        for optimizer in self._all:
            for group in optimizer.param_groups:
                group["lr"] = lr

    @property
    def can_skip_on_device(self) -> bool:
        """Whether `step` can be told on the device to change nothing."""
        return all(isinstance(o, Lamb) or o.defaults.get("fused") for o in self._all)

    def step(self, *, skip: Tensor | None = None, scaler: torch.amp.GradScaler | None = None) -> None:
        """Update all weights; change nothing at all where `skip`, a number on the device, is 1."""
        for optimizer in self._all:
            if skip is not None:
                optimizer.found_inf = skip  # the name by which fused optimizers know it
            if scaler is not None:
                scaler.step(optimizer)
            else:
                optimizer.step()

    def unscale_with(self, scaler: torch.amp.GradScaler) -> None:
        """Undo the scaling of the gradients."""
        for optimizer in self._all:
            scaler.unscale_(optimizer)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for optimizer in self._all:
            optimizer.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """What the optimizers remember, as `parameter name:kind` -> tensor."""
        return {
            f"{self._names[parameter]}:{kind}": value
            for optimizer in self._all
            for parameter, kinds in optimizer.state.items()
            for kind, value in kinds.items()
            if isinstance(value, Tensor)
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Remember what `state()` returned elsewhere.

        Raises:
            ValueError: if that was of other parameters or another optimizer.
        """
        left = dict(state)
        for optimizer in self._all:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    for kind in _kinds(optimizer):
                        value = left.pop(f"{self._names[parameter]}:{kind}", None)
                        shape = torch.Size() if kind == "step" else parameter.shape
                        if value is None or value.shape != shape or not value.is_floating_point():
                            raise ValueError(f"holds no {kind} of {self._names[parameter]}, or of another shape")
                        on_host = kind == "step" and not group.get("fused")
                        optimizer.state[parameter][kind] = value.to("cpu" if on_host else parameter.device)
        if left:
            raise ValueError(f"holds {next(iter(left))}, which is not of this optimizer")


def _kinds(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """What an optimizer remembers of each parameter."""
    match optimizer:
        case torch.optim.SGD():
            return ("momentum_buffer",) if optimizer.defaults["momentum"] else ()
        case torch.optim.Muon():
            return ("momentum_buffer",)
        case torch.optim.Adagrad():
            return ("step", "sum")
    return ("step", "exp_avg", "exp_avg_sq")


def _build(names: dict[nn.Parameter, str], config: TrainConfig) -> Iterator[torch.optim.Optimizer]:
    every, lr, decay = list(names), config.lr, config.weight_decay
    match config.optim:
        case "adam":
            yield torch.optim.Adam(every, lr=lr, weight_decay=decay, fused=True)
        case "adamw":
            yield torch.optim.AdamW(every, lr=lr, weight_decay=decay, fused=True)
        case "sgd":
            yield torch.optim.SGD(every, lr=lr, momentum=config.mom, weight_decay=decay, fused=True)
        case "adagrad":
            yield torch.optim.Adagrad(every, lr=lr, weight_decay=decay)
        case "lamb":
            yield Lamb(every, lr=lr, weight_decay=decay)
        case "muon":
            matrices = [p for p in every if names[p].startswith("layers.") and names[p].endswith("net.weight")]
            matrices += [p for p in every if ".ff." in names[p] and p.ndim == 2]
            chosen = set(matrices)
            # its step is scaled to the size of AdamW's, so that one learning rate serves both
            yield torch.optim.Muon(matrices, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
            yield torch.optim.AdamW([p for p in every if p not in chosen], lr=lr, weight_decay=decay, fused=True)


def learning_rate(update: int, config: TrainConfig) -> float:
    """The rate of an update, counted from 0, by the schedule; `dev_perf` is `constant` times what `Plateau` says.

    By the convention `txl` the rate rises linearly over the first warmup_step updates, the first one having
    lr / warmup_step and the last one lr. After them, with n = update + 1 and p the share done of the updates left:

        cosine    eta_min + (lr - eta_min) (1 + cos(pi p)) / 2
        inv_sqrt  lr sqrt(w / n), w = max(1, warmup_step)
        constant  lr

    By `original`, as in kimiyoung/transformer-xl, where the rate is set after each update: the first update has the
    full lr, update k < warmup_step has k lr / warmup_step; the cosine covers all updates, so that it is entered with a
    jump; `constant` stays where the warmup ended, one step short of lr; inv_sqrt is lr min(k / w^1.5, k^-0.5).
    """
    if config.warmup_convention == "original":
        return _original_rate(update, config)
    warmup, lr = config.warmup_step, config.lr
    if update < warmup:
        return lr * (update + 1) / warmup
    if config.scheduler == "cosine":
        return _cosine((update - warmup) / max(1, config.schedule_length - warmup), config)
    if config.scheduler == "inv_sqrt":
        return lr * math.sqrt(max(1, warmup) / (update + 1))
    return lr


def _original_rate(update: int, config: TrainConfig) -> float:
    warmup, lr = config.warmup_step, config.lr
    if config.scheduler == "inv_sqrt":
        if update > warmup:
            return lr / math.sqrt(update)
        return lr * update / warmup**1.5 if warmup else lr
    if update < warmup:
        return lr * update / warmup if update else lr
    if config.scheduler == "cosine":
        return _cosine(update / config.schedule_length, config)
    return lr * (warmup - 1) / warmup if warmup > 1 else lr


def _cosine(share: float, config: TrainConfig) -> float:
    return config.eta_min + (config.lr - config.eta_min) * (1 + math.cos(math.pi * min(1.0, share))) / 2


class Plateau:
    """The factor of schedule dev_perf: times decay_rate whenever the validation loss has not fallen for long enough.

    As torch's ReduceLROnPlateau with its defaults (a fall by less than 1e-4 of the loss is none), which the original
    uses; the rate never goes below lr_min. A factor, so that the rate stays a function of update and factor.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self.factor, self.best, self.n_bad = 1.0, math.inf, 0

    def see(self, valid_nats: float) -> None:
        """A validation loss."""
        if valid_nats < self.best * (1 - 1e-4):
            self.best, self.n_bad = valid_nats, 0
        else:
            self.n_bad += 1
        if self.n_bad > self._config.patience:
            self.factor *= self._config.decay_rate
            self.n_bad = 0

    def apply(self, lr: float) -> float:
        """The scheduled rate as it is after what was seen."""
        if self._config.scheduler != "dev_perf":
            return lr
        return max(lr * self.factor, min(lr, self._config.lr_min))

    def state(self) -> dict[str, float | None]:
        return {"factor": self.factor, "best": None if math.isinf(self.best) else self.best, "n_bad": self.n_bad}

    def load(self, state: dict[str, Any]) -> None:
        self.factor, self.n_bad = state["factor"], state["n_bad"]
        self.best = math.inf if state["best"] is None else state["best"]
