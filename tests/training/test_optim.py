"""Learning rates with the warmup done right, and optimizers that update all weights in one pass."""

import math

import pytest
import torch
from torch import nn

from txl.training.config import TrainConfig
from txl.training.optim import Optimizers, Plateau, learning_rate


def rates(**settings: object) -> list[float]:
    config = TrainConfig(lr=0.1, max_step=10, **settings)
    return [learning_rate(update, config) for update in range(config.max_step)]


@pytest.mark.parametrize("scheduler", ["cosine", "inv_sqrt", "constant", "dev_perf"])
def test_warmup_begins_with_the_first_update_and_ends_at_lr(scheduler: str) -> None:
    assert rates(scheduler=scheduler, warmup_step=4)[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])


def test_the_cosine_covers_the_updates_after_the_warmup() -> None:
    expected = [0.05 * (1 + math.cos(math.pi * k / 6)) for k in range(6)]
    assert rates(warmup_step=4)[4:] == pytest.approx(expected)


def test_the_cosine_ends_above_eta_min() -> None:
    assert min(rates(eta_min=0.02)) > 0.02


def test_inv_sqrt_goes_on_from_lr_without_a_jump() -> None:
    assert rates(scheduler="inv_sqrt", warmup_step=4)[3:] == pytest.approx([0.1 * (4 / n) ** 0.5 for n in range(4, 11)])


def test_constant_stays_at_lr() -> None:
    assert rates(scheduler="constant", warmup_step=2)[2:] == [0.1] * 8


def test_a_schedule_may_be_longer_than_the_run() -> None:
    assert rates(max_step_scheduler=20) == pytest.approx([0.05 * (1 + math.cos(math.pi * k / 20)) for k in range(10)])


def test_dev_perf_goes_on_with_what_it_has_seen() -> None:
    config = TrainConfig(scheduler="dev_perf", patience=1, decay_rate=0.1)
    for n_seen in range(7):
        one, other = Plateau(config), Plateau(config)
        for nats in [3.0, 2.0, 2.1, 2.2, 2.3, 2.1, 1.9][:n_seen]:
            one.see(nats)
        other.load(one.state())
        assert vars(other) == vars(one)


def test_dev_perf_bears_as_many_bad_evaluations_as_its_patience() -> None:
    plateau = Plateau(TrainConfig(scheduler="dev_perf", patience=1, decay_rate=0.1, lr_min=0.005))
    seen = []
    for nats in (3.0, 3.1, 3.1, 2.9, 3.0, 3.0):
        plateau.see(nats)
        seen.append(plateau.apply(0.1))
    assert seen == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.01, 0.005])


@pytest.mark.parametrize(
    ("optim", "kinds"),
    [
        ("adam", {torch.optim.Adam}),
        ("adamw", {torch.optim.AdamW}),
        ("sgd", {torch.optim.SGD}),
        ("muon", {torch.optim.Muon, torch.optim.AdamW}),
    ],
)
def test_optimizers_are_fused_where_pytorch_has_them(optim: str, kinds: set[type]) -> None:
    named = [("layers.0.attn.q_net.weight", nn.Parameter(torch.ones(2, 2))), ("bias", nn.Parameter(torch.ones(2)))]
    built = Optimizers(named, TrainConfig(optim=optim, mom=0.9))._all
    assert {type(each) for each in built} == kinds
    assert all(each.defaults["fused"] for each in built if type(each) is not torch.optim.Muon)


@pytest.mark.parametrize("optim", ["adam", "adamw", "lamb", "muon"])
def test_betas_and_epsilon_reach_the_optimizer(optim: str) -> None:
    named = [("layers.0.q_net.weight", nn.Parameter(torch.ones(2, 2))), ("bias", nn.Parameter(torch.ones(2)))]
    for flags, expected in (({}, (0.9, 0.999)), ({"beta1": 0.5, "beta2": 0.6, "epsilon": 1e-3}, (0.5, 0.6))):
        *_, optimizer = Optimizers(named, TrainConfig(optim=optim, **flags))._all
        assert optimizer.defaults["betas"] == expected
        assert optimizer.defaults["eps"] == flags.get("epsilon", 1e-6 if optim == "lamb" else 1e-8)
