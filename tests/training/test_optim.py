"""Every optimizer and every schedule against a plain loop, written from its paper."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from txl import ModelConfig, TransformerXL
from txl.config import UsageError
from txl.registry import OPTIMIZERS
from txl.training.config import TrainConfig
from txl.training.optim import Optimizers, tensors_kept
from txl.training.optimizers import Muon
from txl.training.schedules import Plateau, schedule_of
from txl.training.update_rules import rule_of

Array = np.ndarray
MATRIX, TALL, BIAS = "layers.0.attn.q_net.weight", "layers.0.ff.up.weight", "softmax.biases.0"
BEGIN = {
    MATRIX: np.array([[1.0, -2.0, 0.5], [0.3, 0.8, -1.5]]),
    TALL: np.array([[0.5, -1.0], [2.0, 0.1], [-0.7, 0.9]]),
    BIAS: np.array([0.1, -0.4]),
}
LR, DECAY, BETA1, BETA2, EPS, MOMENTUM = 0.1, 0.5, 0.8, 0.9, 1e-3, 0.7


def gradient(name: str, t: int) -> Array:
    x = BEGIN[name]
    return np.sin(t + np.arange(x.size)).reshape(x.shape)


def adam(x: Array, g: Array, t: int, s: dict[str, Any]) -> Array:
    """Kingma & Ba 2015, algorithm 1, with the decay added to the gradient."""
    return x - LR * adams_step(g + DECAY * x, t, s)


def adamw(x: Array, g: Array, t: int, s: dict[str, Any]) -> Array:
    """Loshchilov & Hutter 2019, algorithm 2."""
    return x - LR * DECAY * x - LR * adams_step(g, t, s)


def adams_step(g: Array, t: int, s: dict[str, Any]) -> Array:
    s["m"] = BETA1 * s.get("m", 0) + (1 - BETA1) * g
    s["v"] = BETA2 * s.get("v", 0) + (1 - BETA2) * g**2
    return s["m"] / (1 - BETA1**t) / (np.sqrt(s["v"] / (1 - BETA2**t)) + EPS)


def sgd(x: Array, g: Array, t: int, s: dict[str, Any]) -> Array:
    """Sutskever et al. 2013, without Nesterov's look ahead."""
    s["m"] = MOMENTUM * s.get("m", 0) + g + DECAY * x
    return x - LR * s["m"]


def adagrad(x: Array, g: Array, t: int, s: dict[str, Any]) -> Array:
    """Duchi et al. 2011, diagonal."""
    g = g + DECAY * x
    s["v"] = s.get("v", 0) + g**2
    return x - LR * g / (np.sqrt(s["v"]) + 1e-10)


def lamb(x: Array, g: Array, t: int, s: dict[str, Any]) -> Array:
    """You et al. 2020, algorithm 2."""
    r = adams_step(g, t, s) + DECAY * x
    return x - LR * np.linalg.norm(x) / np.linalg.norm(r) * r


def muon(x: Array, g: Array, t: int, s: dict[str, Any]) -> Array:
    """Jordan et al. 2024: five steps of Newton and Schulz; the size of a step is that of AdamW (Liu et al. 2025)."""
    if x.ndim == 1:
        return adamw(x, g, t, s)
    s["m"] = 0.95 * s.get("m", 0) + 0.05 * g
    o = 0.05 * g + 0.95 * s["m"]
    o = o / np.linalg.norm(o)
    for _ in range(5):
        a = o @ o.T
        o = 3.4445 * o + (-4.7750 * a + 2.0315 * a @ a) @ o
    return x - LR * DECAY * x - LR * 0.2 * math.sqrt(max(x.shape)) * o


PAPERS = (adam, adamw, sgd, adagrad, lamb, muon)


def test_every_optimizer_has_its_paper() -> None:
    assert [rule.__name__ for rule in PAPERS] == [*OPTIMIZERS]


@pytest.mark.parametrize("rule", PAPERS)
def test_an_optimizer_is_its_paper(
    rule: Callable[..., Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txl.model.autocast.HAS_FAST_BFLOAT16", False)
    flags = {"beta1": BETA1, "beta2": BETA2, "epsilon": EPS, "mom": MOMENTUM, "weight_decay": DECAY}
    named = {name: nn.Parameter(torch.tensor(x)) for name, x in BEGIN.items()}
    matrices = [named[MATRIX], named[TALL]]
    optimizers = Optimizers(
        named.items(), TrainConfig(optim=rule.__name__, lr=1.0, **flags), matrices
    )
    expected, states = dict(BEGIN), {name: {} for name in BEGIN}
    for t in range(1, 6):
        for name, parameter in named.items():
            parameter.grad = torch.tensor(gradient(name, t))
            expected[name] = rule(expected[name], gradient(name, t), t, states[name])
        optimizers.set_learning_rate(LR)
        optimizers.step()
        for name, parameter in named.items():
            np.testing.assert_allclose(
                parameter.detach().numpy(), expected[name], rtol=0, atol=1e-12
            )


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_what_an_optimizer_keeps_is_known_before(optim: str) -> None:
    named = {name: nn.Parameter(torch.tensor(x)) for name, x in BEGIN.items()}
    matrices = [named[MATRIX], named[TALL]]
    for settings in (TrainConfig(optim=optim), TrainConfig(optim=optim, mom=0.9)):
        optimizers = Optimizers(named.items(), settings, matrices)
        for parameter in named.values():
            parameter.grad = torch.ones_like(parameter)
        optimizers.step()
        kept = [name.partition(":")[0] for name in optimizers.state() if not name.endswith(":step")]
        counted = tensors_kept(named.values(), settings, matrices)
        assert {name: kept.count(name) for name in named} == {
            name: counted[p] for name, p in named.items()
        }


def test_muon_is_pytorchs_where_bfloat16_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txl.model.autocast.HAS_FAST_BFLOAT16", True)
    ours, theirs = (
        [nn.Parameter(torch.tensor(BEGIN[name]).float()) for name in (MATRIX, TALL)]
        for _ in range(2)
    )
    steps = (
        Muon(ours, LR, weight_decay=DECAY),
        torch.optim.Muon(theirs, LR, DECAY, adjust_lr_fn="match_rms_adamw"),
    )
    for t in range(1, 4):
        for parameters, optimizer in zip((ours, theirs), steps, strict=True):
            for parameter, name in zip(parameters, (MATRIX, TALL), strict=True):
                parameter.grad = torch.tensor(gradient(name, t)).float()
            optimizer.step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-3 * LR)


SHAPES = [(3, 5), (5, 3), (1, 7), (7, 1), (4, 4), (3, 5), (64, 33), (33, 64), (4, 4), (2, 8)]


@pytest.mark.parametrize("at_once", [1, 40, 2112, 1 << 20])
def test_muon_updates_matrices_together_as_one_by_one(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tall and wide ones, stacks that are cut, matrices without a gradient, two groups."""
    monkeypatch.setattr("txl.model.autocast.HAS_FAST_BFLOAT16", False)
    monkeypatch.setattr("txl.training.optimizers._AT_ONCE", {"cpu": at_once})
    rng = np.random.default_rng(0)
    expected = [rng.normal(size=shape) for shape in SHAPES]
    ours = [nn.Parameter(torch.tensor(x)) for x in expected]
    optimizer = Muon([{"params": ours[:4]}, {"params": ours[4:]}], LR, weight_decay=DECAY)
    states: list[dict[str, Any]] = [{} for _ in SHAPES]
    for t in range(1, 5):
        for i, x in enumerate(ours):
            x.grad = None
            if (i + t) % 4:
                g = rng.normal(size=SHAPES[i])
                x.grad = torch.tensor(g)
                expected[i] = muon(expected[i], g, t, states[i])
        optimizer.step()
        for x, own in zip(ours, expected, strict=True):
            np.testing.assert_allclose(x.detach().numpy(), own, rtol=0, atol=1e-12)
    for x, state in zip(ours, states, strict=True):
        np.testing.assert_allclose(optimizer.state[x]["momentum_buffer"], state["m"], atol=1e-12)


@pytest.mark.parametrize(("is_fast", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_muon_multiplies_the_matrices_of_a_model_in_stacks(
    is_fast: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txl.model.autocast.HAS_FAST_BFLOAT16", is_fast)
    stacks = []

    def noted(stack: torch.Tensor) -> torch.Tensor:
        stacks.append((tuple(stack.shape), stack.dtype))
        return stack

    monkeypatch.setattr("txl.training.optimizers.orthogonalised", noted)
    shapes = [(8, 8), (32, 8), (8, 32)] * 4
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for x in parameters:
        x.grad = torch.ones_like(x)
    Muon(parameters, LR).step()
    assert stacks == [((4, 8, 8), dtype), ((4, 8, 32), dtype), ((4, 8, 32), dtype)]


@pytest.mark.parametrize(
    ("position", "with_positions", "of_positions"),
    [
        ({}, False, []),
        ({}, True, ["attn.pos.r_net"]),
        ({"position": "deberta"}, False, []),
        ({"position": "relative_keys", "n_position": 8}, False, []),
    ],
)
def test_muon_turns_what_mixes_features_of_hidden_states(
    position: dict[str, Any], with_positions: bool, of_positions: list[str]
) -> None:
    """Not what encodings multiply with features of positions, unless asked; nor vectors, tables, gates, memories."""
    shape = {
        "n_token": 20,
        "n_layer": 2,
        "n_head": 2,
        "d_head": 4,
        "d_model": 8,
        "d_inner": 16,
        "memory": "neural",
    }
    model = TransformerXL(ModelConfig(**shape, **position, pre_lnorm=True, gate="gru"))
    config = TrainConfig(optim="muon", muon_positions=with_positions)
    matrices = rule_of(config).matrices(model)
    with pytest.raises(UsageError, match="--optim muon: takes some matrices only"):
        Optimizers(model.named_parameters(), config)
    turned, _ = Optimizers(model.named_parameters(), config, matrices)._all
    names = {parameter: name for name, parameter in model.named_parameters()}
    expected = [f"attn.{net}_net" for net in "qkvo"] + ["ff.0", "ff.3"] + of_positions
    found = {names[parameter] for parameter in turned.param_groups[0]["params"]}
    assert found == {f"layers.{i}.{module}.weight" for i in (0, 1) for module in expected}


def test_a_run_goes_on_with_the_matrices_that_its_muon_began_with() -> None:
    """Those of version 0.2 include the projection of positions."""
    named = {name: nn.Parameter(torch.tensor(x)) for name, x in BEGIN.items()}
    config = TrainConfig(optim="muon")
    for matrices in ([named[MATRIX]], [named[TALL]]):
        before = Optimizers(named.items(), config, [named[MATRIX], named[TALL]])
        for parameter in named.values():
            parameter.grad = torch.ones_like(parameter)
        before.step()
        resumed = Optimizers(named.items(), config, matrices)
        resumed.load(before.state())
        torch.testing.assert_close(resumed.state(), before.state(), rtol=0, atol=0)


def cosine(p: float) -> float:
    return 0.01 + 0.09 * (1 + math.cos(math.pi * p)) / 2


SCHEDULES: dict[str, tuple[dict[str, Any], Callable[[int], float]]] = {
    "constant": ({"scheduler": "constant"}, lambda n: 0.1),
    "inv_sqrt": ({"scheduler": "inv_sqrt"}, lambda n: 0.1 * math.sqrt(4 / n)),
    "cosine": ({"eta_min": 0.01}, lambda n: cosine(min(1, (n - 5) / 6))),  # n = 11 follows its end
    "stretched": ({"eta_min": 0.01, "max_step_scheduler": 20}, lambda n: cosine((n - 5) / 16)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_its_formula_after_a_linear_warmup_and_beyond_its_end(name: str) -> None:
    flags, after = SCHEDULES[name]
    config = TrainConfig(lr=0.1, max_step=10, warmup_step=4, **flags)
    rates = [schedule_of(config).rate(n - 1) for n in range(1, 16)]
    assert rates == pytest.approx(
        [0.1 * n / 4 if n <= 4 else after(n) for n in range(1, 16)], abs=1e-12
    )
    # without a warmup
    without = schedule_of(TrainConfig(lr=0.1, max_step=10, **flags))
    assert without.rate(0) == pytest.approx(0.1)


LOSSES = [3.0, 2.0, 2.1, 2.0 - 1e-4, 1.9997, 1.9, 2.3, 2.3, 2.3, 2.3, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("patience", [0, 1, 2])
def test_dev_perf_is_reduce_on_plateau_also_after_a_restart(patience: int) -> None:
    """As the 2019 code uses it: a gain below 1e-4 of the loss is none."""
    flags = {"patience": patience, "decay_rate": 0.3, "lr_min": 0.002}
    plateau = Plateau(TrainConfig(scheduler="dev_perf", **flags))
    theirs = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        theirs, factor=0.3, patience=patience, min_lr=0.002
    )
    for nats in LOSSES:
        plateau.see(nats)
        schedule.step(nats)
        assert plateau.apply(0.1) == pytest.approx(theirs.param_groups[0]["lr"])
        again = Plateau(TrainConfig(scheduler="dev_perf", **flags))
        again.load(plateau.state())
        assert vars(again) == vars(plateau)
        plateau = again


@pytest.mark.parametrize("name", ["adam", "sgd", "muon", "lamb"])
def test_gradients_are_divided_on_the_way(name: str) -> None:
    """As before the step; in float32 a fused optimizer does it."""
    after = []
    for divisor in (None, torch.tensor(3.0)):
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 3), "b": torch.nn.Linear(3, 2)})
        matrices = [p for p in model.parameters() if p.ndim == 2]
        optimizers = Optimizers(
            model.named_parameters(), TrainConfig(optim=name, lr=0.1, own={}), matrices
        )
        for _ in range(3):
            for p in model.parameters():
                p.grad = torch.randn(p.shape) / (3 if divisor is None else 1)
            optimizers.step(divisor=divisor)
        after.append([p.detach() for p in model.parameters()])
    for one, other in zip(*after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
