"""Learning rates of the updates: a class for each choice of --scheduler, with its settings."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from txl.config import Checked, option, require
from txl.registry import SCHEDULES
from txl.training.config import TrainConfig

_LONGEST_WARMUP = 0.1
"""Share of the time with --minutes."""


class Schedule:
    """The learning rate of each update, in three ways, each with a formula of its own:

        by_update  --warmup_convention txl: it rises linearly over the first warmup_step updates, from
                   lr / warmup_step to lr
        as_in_2019 --warmup_convention original, as in kimiyoung/transformer-xl, where the rate is set
                   after each update: the first update uses the full lr, update k < warmup_step uses
                   k lr / warmup_step
        by_clock   --minutes: the warmup ends after a tenth of the time at the latest

    Updates are counted from 0; the formulas have n = update + 1. Settings of its own are a
    dataclass `Settings` inside the class.
    """

    falls_at_plateaus: ClassVar[bool] = False
    """`Plateau` scales its rates."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    def rate(self, update: int, share: float | None = None) -> float:
        """The rate of an update.

        Args:
            share: of the time that is used, 0 to 1; None: there is no limit of time.
        """
        if share is not None:
            return self.by_clock(update, share)
        if self.config.warmup_convention == "original":
            return self.as_in_2019(update)
        return self.by_update(update)

    def by_update(self, update: int) -> float:
        """The rate of an update by the convention of txl."""
        warmup = self.config.warmup_step
        if update < warmup:
            return self.config.lr * (update + 1) / warmup
        return self.after_warmup(update)

    def as_in_2019(self, update: int) -> float:
        """The rate of an update of the 2019 code."""
        warmup = self.config.warmup_step
        lr = self.config.lr
        if update < warmup:
            if update:
                return lr * update / warmup
            return lr
        return self.after_warmup_in_2019(update)

    def by_clock(self, update: int, share: float) -> float:
        """The rate of an update, if this share of the time is used."""
        warm = 1.0
        if self.config.warmup_step:
            warm = min(1.0, max((update + 1) / self.config.warmup_step, share / _LONGEST_WARMUP))
        return warm * self.warm_by_clock(update, share)

    def after_warmup(self, update: int) -> float:
        """What `by_update` is after the warmup."""
        raise NotImplementedError

    def after_warmup_in_2019(self, update: int) -> float:
        """What `as_in_2019` is after the warmup; by default as `after_warmup`."""
        return self.after_warmup(update)

    def warm_by_clock(self, update: int, share: float) -> float:
        """What `by_clock` is without a warmup; by default as `after_warmup`."""
        return self.after_warmup(update)

    def final_rate(self) -> float | None:
        """The rate from update `schedule_length` on; None: the schedule has no end."""
        return None

    def require_fits(self) -> None:
        """Raise `UsageError` if its settings do not go together with others."""


def schedule_of(config: TrainConfig) -> Schedule:
    """The schedule of --scheduler."""
    return SCHEDULES[config.scheduler](config)


class Constant(Schedule):
    """lr after the warmup; in 2019 it stays one step of the warmup short of lr."""

    def after_warmup(self, update: int) -> float:
        return self.config.lr

    def after_warmup_in_2019(self, update: int) -> float:
        warmup = self.config.warmup_step
        if warmup > 1:
            return self.config.lr * (warmup - 1) / warmup
        return self.config.lr


class Cosine(Schedule):
    """eta_min + (lr - eta_min) (1 + cos(pi p)) / 2

    p goes from 0 to 1 over the updates after the warmup. In 2019 it covers all updates, so that the
    rate jumps after the warmup. By the clock it is the share of the time, or of the schedule if
    that is larger.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(Checked):
        eta_min: float = option(0.0, "the final learning rate", minimum=0)

    def after_warmup(self, update: int) -> float:
        warmup = self.config.warmup_step
        return self._at((update - warmup) / max(1, self.config.schedule_length - warmup))

    def after_warmup_in_2019(self, update: int) -> float:
        return self._at(update / self.config.schedule_length)

    def warm_by_clock(self, update: int, share: float) -> float:
        return self._at(max(share, update / self.config.schedule_length))

    def final_rate(self) -> float:
        return self.config.settings(self.Settings).eta_min

    def require_fits(self) -> None:
        _require_below_peak("eta_min", self.final_rate(), self.config)

    def _at(self, p: float) -> float:
        eta_min = self.final_rate()
        return eta_min + (self.config.lr - eta_min) * (1 + math.cos(math.pi * min(1.0, p))) / 2


class InverseSquareRoot(Schedule):
    """lr sqrt(w / n) with w = max(1, warmup_step)

    In 2019 it is lr min(k / w^1.5, k^-0.5) in update k, the warmup included. By the clock it is at
    most lr.
    """

    def after_warmup(self, update: int) -> float:
        return self.config.lr * math.sqrt(max(1, self.config.warmup_step) / (update + 1))

    def as_in_2019(self, update: int) -> float:
        warmup = self.config.warmup_step
        lr = self.config.lr
        if update > warmup:
            return lr / math.sqrt(update)
        if warmup:
            return lr * update / warmup**1.5
        return lr

    def warm_by_clock(self, update: int, share: float) -> float:
        return min(self.config.lr, self.after_warmup(update))


class DevPerf(Constant):
    """The rates of `Constant`, lowered when validation stops improving, see `Plateau`."""

    falls_at_plateaus = True

    @dataclass(frozen=True, kw_only=True)
    class Settings(Checked):
        decay_rate: float = option(
            0.5,
            "the learning rate is multiplied by this when validation stops improving",
            above=0,
            maximum=1,
        )
        patience: int = option(
            0, "evaluations without improvement before the rate is lowered", minimum=0
        )
        lr_min: float = option(0.0, "the lowest learning rate", minimum=0)

    def require_fits(self) -> None:
        _require_below_peak("lr_min", self.config.settings(self.Settings).lr_min, self.config)


def _require_below_peak(name: str, lowest: float, config: TrainConfig) -> None:
    require(
        lowest <= config.lr,
        f"--{name} {lowest}: must be at most --lr {config.lr}",
    )


class Plateau:
    """The factor of schedule dev_perf, multiplied by decay_rate when the validation loss stops
    improving; other schedules do not ask for it.

    Like torch's ReduceLROnPlateau with its defaults, which the original uses: improvements below
    1e-4 of the loss do not count. The rate never falls below lr_min.
    Differs: a reduction during
    the warmup stays, where the original's next update sets the rate anew, and those by less than
    1e-8 are made.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._is_asked = schedule_of(config).falls_at_plateaus
        self._settings = config.settings(DevPerf.Settings)
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
        if self.n_bad > self._settings.patience:
            self.factor *= self._settings.decay_rate
            self.n_bad = 0

    def apply(self, lr: float) -> float:
        """The scheduled rate times the factor."""
        if not self._is_asked:
            return lr
        return max(lr * self.factor, min(lr, self._settings.lr_min))

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
