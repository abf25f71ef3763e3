"""The optimizer that the flags choose, and its learning rates."""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from txl.model.transformer import Body
from txl.runtime.distributed import is_in_shards
from txl.training.config import TrainConfig
from txl.training.optimizers import Lamb, Muon

_OF_ADAM = ("step", "exp_avg", "exp_avg_sq")
_KINDS = {
    torch.optim.SGD: ("momentum_buffer",),
    Muon: ("momentum_buffer",),
    torch.optim.Adagrad: ("step", "sum"),
}
"""The tensors that optimizers other than Adam and its like keep per parameter; SGD without
momentum: none.
"""


class Optimizers:
    """The optimizer of --optim, or the two of muon, behind one interface.

    Args:
        named: the parameters by name; the saved state uses the same names.
        matrices: those of them that muon updates, see `matrices_of_muon`.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        config: TrainConfig,
        matrices: Iterable[Tensor] = (),
    ) -> None:
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in named}
        self._config = config
        self._all = list(_build(self._names, config, list(matrices)))

    def set_learning_rate(self, lr: float) -> None:
        """Use `lr` from the next update on."""
        for optimizer in self._all:
            for group in optimizer.param_groups:
                group["lr"] = lr

    @property
    def can_skip_on_device(self) -> bool:
        """True if a flag on the device can make `step` change nothing."""
        in_shards = any(is_in_shards(p) for p in self._names)
        return all(
            o.defaults.get("fused") or (isinstance(o, Lamb) and not in_shards) for o in self._all
        )

    def step(
        self, *, skip: Tensor | None = None, scaler: torch.amp.GradScaler | None = None
    ) -> None:
        """Update all weights; change nothing if `skip`, a number on the device, is 1."""
        for optimizer in self._all:
            if skip is not None:
                optimizer.found_inf = skip  # type: ignore[attr-defined]  # read by fused optimizers
            if scaler is not None:
                scaler.step(optimizer)
            else:
                optimizer.step()

    def unscale_with(self, scaler: torch.amp.GradScaler) -> None:
        """Undo the scaling of the gradients."""
        for optimizer in self._all:
            scaler.unscale_(optimizer)

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for optimizer in self._all:
            optimizer.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """The state of the optimizers, as `parameter name:kind` -> tensor."""
        states = {}
        for optimizer in self._all:
            for parameter, kinds in optimizer.state.items():
                for kind, value in kinds.items():
                    if isinstance(value, Tensor):
                        states[f"{self._names[parameter]}:{kind}"] = value
        return states

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore what `state()` returned. Raises `ValueError` if its parameters or its optimizer
        are others.

        A run continues with the matrices that its Muon began with: version 0.2 gave it `r_net`,
        too.
        """
        if self._config.optim == "muon":
            with_momentum = []
            for p, name in self._names.items():
                if f"{name}:momentum_buffer" in state:
                    with_momentum.append(p)
            self._all = list(_build(self._names, self._config, with_momentum))
        left = dict(state)
        for optimizer in self._all:
            if optimizer.defaults.get("momentum", True):
                kinds = _KINDS.get(type(optimizer), _OF_ADAM)
            else:
                kinds = ()
            for group in optimizer.param_groups:
                for parameter, kind in itertools.product(group["params"], kinds):
                    value = left.pop(f"{self._names[parameter]}:{kind}", None)
                    if kind == "step":
                        shape = torch.Size()
                    else:
                        shape = parameter.shape
                    if value is None or value.shape != shape or not value.is_floating_point():
                        raise ValueError(
                            f"holds no {kind} of {self._names[parameter]}, or of another shape"
                        )
                    on_host = kind == "step" and not group.get("fused")
                    optimizer.state[parameter][kind] = value.to(
                        "cpu" if on_host else parameter.device
                    )
        if left:
            raise ValueError(f"holds {next(iter(left))}, which is not of this optimizer")


def hidden_matrices(model: Body) -> list[Tensor]:
    """The matrices of the layers' attention and feed-forward networks that mix features of hidden
    states: what Muon updates (Jordan et al. 2024).
    """
    layers: list[nn.Linear] = []
    for layer in model.layers:
        pos = layer.attn.pos
        if pos.mixes_hidden_states:
            of_positions = set()
        else:
            of_positions = set(pos.modules())
        for module in (*layer.attn.modules(), *layer.ff.modules()):
            if isinstance(module, nn.Linear) and module not in of_positions:
                layers.append(module)
    return [module.weight for module in layers]


def matrices_of_muon(model: Body, config: TrainConfig) -> list[Tensor]:
    """The matrices that Muon updates: those that mix features of hidden states, and with
    `muon_positions` those of the position encodings.
    """
    matrices = hidden_matrices(model)
    if config.muon_positions:
        known = set(matrices)
        inside = []
        for layer in model.layers:
            for module in layer.attn.pos.modules():
                inside.append(module)
        weights = []
        for module in inside:
            if isinstance(module, nn.Linear):
                weights.append(module.weight)
        for weight in dict.fromkeys(weights):
            if weight not in known:
                matrices.append(weight)
    return matrices


def tensors_kept(
    parameters: Iterable[Tensor], config: TrainConfig, matrices: Iterable[Tensor] = ()
) -> dict[Tensor, int]:
    """How many tensors of its size the optimizer keeps of each parameter; arguments as of
    `Optimizers`.
    """
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}.get(config.optim)
    kinds = dict.fromkeys(
        parameters, () if config.optim == "sgd" and not config.mom else _KINDS.get(kind, _OF_ADAM)
    )
    if config.optim == "muon":
        kinds |= dict.fromkeys(matrices, _KINDS[Muon])
    return {parameter: sum(name != "step" for name in some) for parameter, some in kinds.items()}


def _build(
    parameters: Iterable[Tensor], config: TrainConfig, matrices: list[Any]
) -> Iterator[torch.optim.Optimizer]:
    every = list(parameters)
    lr = config.lr
    decay = config.weight_decay
    adam = {
        "betas": (config.beta1, config.beta2),
        "eps": config.epsilon or (1e-6 if config.optim == "lamb" else 1e-8),
    }
    match config.optim:
        case "adam":
            yield torch.optim.Adam(every, lr=lr, weight_decay=decay, fused=True, **adam)
        case "adamw":
            yield torch.optim.AdamW(every, lr=lr, weight_decay=decay, fused=True, **adam)
        case "sgd":
            in_shards = any(is_in_shards(p) for p in every)  # they have no fused SGD
            yield torch.optim.SGD(
                every, lr=lr, momentum=config.mom, weight_decay=decay, fused=not in_shards
            )
        case "adagrad":
            yield torch.optim.Adagrad(every, lr=lr, weight_decay=decay)
        case "lamb":
            yield Lamb(every, lr=lr, weight_decay=decay, **adam)
        case "muon":
            chosen = set(matrices)
            yield Muon(matrices, lr=lr, weight_decay=decay)
            others = [p for p in every if p not in chosen]
            yield torch.optim.AdamW(others, lr=lr, weight_decay=decay, fused=True, **adam)


_LONGEST_WARMUP = 0.1
"""Share of the time with --minutes."""


def learning_rate(update: int, config: TrainConfig, share: float | None = None) -> float:
    """The scheduled rate of an update, counted from 0. For `dev_perf`, `Plateau` scales the rate of
    `constant`.

    With --warmup_convention txl the rate rises linearly over the first warmup_step updates, from lr
    / warmup_step to lr. After the warmup, with n = update + 1 and p from 0 to 1 over the updates
    left:

        cosine    eta_min + (lr - eta_min) (1 + cos(pi p)) / 2
        inv_sqrt  lr sqrt(w / n), w = max(1, warmup_step)
        constant  lr

    With `original`, as in kimiyoung/transformer-xl, the rate is set after each update: the first
    update uses the full lr, update k < warmup_step uses k lr / warmup_step; the cosine covers all
    updates and begins with a jump after the warmup; `constant` stays one step short of lr; inv_sqrt
    is lr min(k / w^1.5, k^-0.5).

    With --minutes, the warmup ends after a tenth of the time at the latest, and p of the cosine is
    the share of the time, or of the schedule if that is larger.

    Args:
        share: of the time that is used, 0 to 1; None: there is no limit of time.
    """
    if share is not None:
        return _rate_by_clock(update, config, share)
    if config.warmup_convention == "original":
        return _original_rate(update, config)
    warmup = config.warmup_step
    lr = config.lr
    if update < warmup:
        return lr * (update + 1) / warmup
    if config.scheduler == "cosine":
        return _cosine((update - warmup) / max(1, config.schedule_length - warmup), config)
    if config.scheduler == "inv_sqrt":
        return lr * math.sqrt(max(1, warmup) / (update + 1))
    return lr


def _rate_by_clock(update: int, config: TrainConfig, share: float) -> float:
    warm = 1.0
    if config.warmup_step:
        warm = min(1.0, max((update + 1) / config.warmup_step, share / _LONGEST_WARMUP))
    if config.scheduler == "cosine":
        return warm * _cosine(max(share, update / config.schedule_length), config)
    if config.scheduler == "inv_sqrt":
        return warm * config.lr * math.sqrt(min(1.0, max(1, config.warmup_step) / (update + 1)))
    return warm * config.lr


def _original_rate(update: int, config: TrainConfig) -> float:
    warmup = config.warmup_step
    lr = config.lr
    if config.scheduler == "inv_sqrt":
        if update > warmup:
            return lr / math.sqrt(update)
        if warmup:
            return lr * update / warmup**1.5
        return lr
    if update < warmup:
        if update:
            return lr * update / warmup
        return lr
    if config.scheduler == "cosine":
        return _cosine(update / config.schedule_length, config)
    if warmup > 1:
        return lr * (warmup - 1) / warmup
    return lr


def _cosine(share: float, config: TrainConfig) -> float:
    return (
        config.eta_min
        + (config.lr - config.eta_min) * (1 + math.cos(math.pi * min(1.0, share))) / 2
    )


class Plateau:
    """The factor of schedule dev_perf, multiplied by decay_rate when the validation loss stops
    improving.

    Like torch's ReduceLROnPlateau with its defaults, which the original uses: improvements below
    1e-4 of the loss do not count. The rate never falls below lr_min.
    Differs: a reduction during
    the warmup stays, where the original's next update sets the rate anew, and those by less than
    1e-8 are made.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self.factor = 1.0
        self.best = math.inf
        self.n_bad = 0

    def see(self, valid_nats: float) -> None:
        """Take in a validation loss."""
        if valid_nats < self.best * (1 - 1e-4):
            self.best = valid_nats
            self.n_bad = 0
        else:
            self.n_bad += 1
        if self.n_bad > self._config.patience:
            self.factor *= self._config.decay_rate
            self.n_bad = 0

    def apply(self, lr: float) -> float:
        """The scheduled rate times the factor."""
        if self._config.scheduler != "dev_perf":
            return lr
        return max(lr * self.factor, min(lr, self._config.lr_min))

    def state(self) -> dict[str, float]:
        """JSON-ready but for the infinity of `best`, which `load` takes as None."""
        return {"factor": self.factor, "best": self.best, "n_bad": self.n_bad}

    def load(self, state: dict[str, Any]) -> None:
        self.factor = state["factor"]
        self.n_bad = state["n_bad"]
        if state["best"] is None:
            self.best = math.inf
        else:
            self.best = state["best"]
