"""Stop and go on equals never stopped (law 8), bitwise."""

import os
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch

from tests.training.runs import Run, config, same_weights
from txl.checkpoint import last_checkpoint, load_model
from txl.evaluation.score import Score
from txl.runtime.signals import TERMINATE, StopNow
from txl.training.config import TrainConfig
from txl.training.step import TrainState

HINTS = get_type_hints(TrainConfig)
OPTIMIZERS, SCHEDULERS = get_args(HINTS["optim"]), get_args(HINTS["scheduler"])
PAIRS = [(optim, SCHEDULERS[i % len(SCHEDULERS)]) for i, optim in enumerate(OPTIMIZERS)]
"""Each of both: what an optimizer keeps and what a schedule keeps do not touch each other."""
PAIRS += [("adam", name) for name in SCHEDULERS if ("adam", name) not in PAIRS]
EVERYTHING = {"dropout": 0.2, "dropatt": 0.1, "varlen": True, "roll": True, "warmup_step": 2, "weight_decay": 0.01}


def assert_resuming_changes_nothing(folder: Path, stop_at: int, **settings: Any) -> None:
    whole = Run(config(**settings)).begin()
    whole.train()
    first = Run(config(**settings | {"max_step": stop_at}), folder=folder).begin()
    first.train()
    torch.manual_seed(999)  # whatever happens between the two starts
    second = Run(config(**settings), folder=folder).resume()
    second.train()
    losses = first.losses + second.losses
    assert len(losses) == len(whole.losses)
    assert all(torch.equal(a, b) for a, b in zip(losses, whole.losses, strict=True))
    assert same_weights(whole, second)
    theirs = second.state.optimizers.state()
    assert all(torch.equal(value, theirs[key]) for key, value in whole.state.optimizers.state().items())


@pytest.mark.slow
@pytest.mark.parametrize(("optim", "scheduler"), PAIRS)
def test_every_optimizer_and_schedule_goes_on_as_if_never_stopped(tmp_path: Path, optim: str, scheduler: str) -> None:
    settings = EVERYTHING | {"optim": optim, "scheduler": scheduler, "mom": 0.5, "eval_interval": 1}
    assert_resuming_changes_nothing(tmp_path, 3, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop_at", "settings"),
    [
        *((stop_at, {"varlen": True, "roll": True}) for stop_at in (1, 3, 4, 5)),
        (4, {}),
        (3, {"batch_chunk": 2}),
        (5, {"swap_mem": True}),
    ],
    ids=str,
)
def test_stopping_anywhere_in_an_epoch_or_at_its_end_changes_nothing(
    tmp_path: Path, stop_at: int, settings: dict[str, Any]
) -> None:
    assert_resuming_changes_nothing(tmp_path, stop_at, dropout=0.2, **settings)


@pytest.mark.slow
def test_half_precision_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    assert_resuming_changes_nothing(tmp_path, 3, dtype="float16", dropout=0.1)


def test_a_finished_run_goes_on_to_a_larger_max_step(tmp_path: Path) -> None:
    assert_resuming_changes_nothing(tmp_path, 6, max_step=9, max_step_scheduler=9)


def test_another_split_into_chunks_goes_on_with_the_same_memory(tmp_path: Path) -> None:
    whole = Run(config(batch_chunk=1), dtype=torch.float64).begin()
    whole.train()
    Run(config(batch_chunk=2, max_step=3), dtype=torch.float64, folder=tmp_path).begin().train()
    second = Run(config(batch_chunk=4), dtype=torch.float64, folder=tmp_path).resume()
    second.train()
    torch.testing.assert_close(second.weights(), whole.weights(), rtol=0, atol=1e-12)


def test_without_its_memory_a_run_would_go_on_differently(tmp_path: Path) -> None:
    """The comparison above sees the memory."""
    whole = Run(config()).begin()
    whole.train()
    Run(config(max_step=2), folder=tmp_path).begin().train()
    second = Run(config(), folder=tmp_path).resume()
    second.state.memories = [None]
    second.train()
    assert not torch.equal(second.losses[0], whole.losses[2])


def test_averaged_weights_go_on_as_if_never_stopped(tmp_path: Path) -> None:
    stop_at, settings = 3, {"ema": 0.9, "dropout": 0.2, "eval_interval": 2}
    assert_resuming_changes_nothing(tmp_path / "whole", stop_at, **settings)
    averages = []
    for name, stops in (("never", [6]), ("stopped", [stop_at, 6])):
        for stop in stops:
            run = Run(config(**settings | {"max_step": stop}), folder=tmp_path / name)
            (run.begin() if stop == stops[0] else run.resume()).train()
        with run.state.average.in_use():
            averages.append(run.weights())
    assert all(torch.equal(value, averages[1][name]) for name, value in averages[0].items())


def test_a_checkpoint_holds_the_average_of_the_weights(tmp_path: Path) -> None:
    """d = min(0.5, (1 + n) / (10 + n)) is 2/11, 3/12, ... after the first updates."""
    run = Run(config(ema=0.5, max_step=3), folder=tmp_path).begin()
    average = run.weights()
    step = run.state.step

    def watched(*batch: torch.Tensor) -> torch.Tensor:
        nll_BT = step(*batch)
        d = (1 + run.state.progress.step) / (10 + run.state.progress.step)
        for name, weight in run.weights().items():
            average[name] = d * average[name] + (1 - d) * weight
        return nll_BT

    run.state.step = watched  # type: ignore[method-assign]
    run.train()
    saved = dict(load_model(last_checkpoint(tmp_path)).named_parameters())
    for name, value in average.items():
        torch.testing.assert_close(saved[name].detach(), value)
    assert any(not torch.equal(saved[name], weight) for name, weight in run.weights().items())


def test_evaluations_read_the_average_of_the_weights() -> None:
    run, read = Run(config(ema=0.5, max_step=3)).begin(), []
    score = run.score
    run.score = lambda *asked: read.append(run.weights()) or score(*asked)  # type: ignore[method-assign]
    run.train()
    (evaluated,) = read
    with run.state.average.in_use():
        assert all(torch.equal(weight, evaluated[name]) for name, weight in run.weights().items())
    assert any(not torch.equal(weight, evaluated[name]) for name, weight in run.weights().items())


@pytest.mark.parametrize("below_torchrun", [True, False])
def test_a_run_whose_torchrun_has_ended_saves_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below_torchrun: bool
) -> None:
    """One that a shell has started goes on without it."""
    if below_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    run, step = Run(config(), folder=tmp_path).begin(), TrainState.step

    def orphaned(state: TrainState, *batch: torch.Tensor) -> torch.Tensor:
        if state.progress.step == 2:
            monkeypatch.setattr(os, "getppid", lambda: 1)
        return step(state, *batch)

    monkeypatch.setattr(TrainState, "step", orphaned)
    outcome = run.train()
    assert (outcome.status, run.state.progress.step) == ((143, 3) if below_torchrun else (0, 6))
    assert last_checkpoint(tmp_path).record["step"] == run.state.progress.step


def test_an_evaluation_that_was_cut_short_is_made_before_the_next_step(tmp_path: Path) -> None:
    run, evaluated = Run(config(max_step=3), folder=tmp_path).begin(), []

    def cut_short(*_: object) -> Score:
        raise StopNow(TERMINATE)

    run.score = cut_short  # type: ignore[method-assign]
    assert run.train().status == 143
    again = Run(config(max_step=4), folder=tmp_path).resume()
    score = again.score
    again.score = lambda *asked: evaluated.append(again.state.progress.step) or score(*asked)  # type: ignore[method-assign]
    again.train()
    assert evaluated == [3, 4]
