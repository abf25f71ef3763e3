"""Learning rates of the updates."""

import math
from typing import Any

from txl.training.config import TrainConfig

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
