"""Stop and go on equals never stopped (law 8), bitwise."""

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.hygiene.toy_memory import ToyMemory
from tests.laws.conftest import MEMORY_MODELS, context_of, shape_of
from tests.training.runs import ADAPTIVE, ALONE, SHAPE, Run, config, same_weights
from txl.checkpoint import last_checkpoint, load_model
from txl.evaluation.score import Score
from txl.memory import MEMORIES
from txl.registry import OPTIMIZERS, SCHEDULES
from txl.runtime import signals
from txl.runtime.signals import TERMINATE, StopNow, StopRequest, until_stopped
from txl.training import loop
from txl.training.step import TrainState

PAIRS = [*zip(OPTIMIZERS, itertools.cycle(SCHEDULES), strict=False)]
"""Each of both: what an optimizer keeps and what a schedule keeps do not touch each other."""
EVERYTHING = {
    "dropout": 0.2,
    "dropatt": 0.1,
    "varlen": True,
    "roll": True,
    "warmup_step": 2,
    "weight_decay": 0.01,
}
RULES = {"position": "none", "n_feature": 6, "lsh_round": 2, "lsh_bucket": 4, "lsh_reach": 3}


def drawn(run: Run) -> dict[str, Tensor]:
    """What attention rules hold at random."""
    return {name: b.clone() for name, b in run.state.model.named_buffers() if "rule" in name}


def all_of(run: Run) -> dict[str, Tensor]:
    """Everything that a run would go on with."""
    with run.state.average.in_use():
        average = {f"average of {name}": weight for name, weight in run.weights().items()}
    remembered = {
        f"{i} {k}": v for i, m in enumerate(run.state.memories) for k, v in m.named().items()
    }
    return run.weights() | average | remembered | drawn(run) | run.state.optimizers.state()


def assert_resuming_changes_nothing(
    folder: Path, stop_at: int, settings: dict[str, Any], **more: Any
) -> None:
    whole = Run(config(**settings), **more).begin().trained()
    first = Run(config(**settings | {"max_step": stop_at}), folder=folder, **more).begin().trained()
    torch.manual_seed(999)  # whatever happens between the two starts
    second = Run(config(**settings), folder=folder, **more).resume()
    assert all(torch.equal(value, drawn(second)[name]) for name, value in drawn(first).items())
    second.train()
    torch.testing.assert_close(first.losses + second.losses, whole.losses, rtol=0, atol=0)
    torch.testing.assert_close(all_of(second), all_of(whole), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("optim", "scheduler"), PAIRS)
def test_every_optimizer_and_schedule_goes_on_as_if_never_stopped(
    tmp_path: Path, optim: str, scheduler: str
) -> None:
    settings = EVERYTHING | {"optim": optim, "scheduler": scheduler, "mom": 0.5, "eval_interval": 1}
    assert_resuming_changes_nothing(tmp_path, 3, settings)


MOVING = {"dropout": 0.2, "varlen": True, "roll": True}
# stops at, training, shape; an epoch has 4 steps
WAYS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "at the first step of an epoch": (1, MOVING, {}),
    "at its last step": (4, MOVING, {}),
    "in the second epoch": (5, MOVING, {}),
    "finished, to a larger max_step": (
        6,
        {"dropout": 0.2, "max_step": 9, "max_step_scheduler": 9},
        {},
    ),
    "chunks, moved to the host": (3, {"dropout": 0.2, "batch_chunk": 2, "swap_mem": True}, {}),
    "half precision": (2, {"dropout": 0.1, "dtype": "float16", "max_step": 5}, {}),
    "average": (3, {"dropout": 0.2, "ema": 0.9, "eval_interval": 2}, {}),
    "reversible": (3, {"dropout": 0.3}, {"pre_lnorm": True, "reversible": True}),
    "drawn before the stop": (
        3,
        {"redraw_interval": 2, "dropout": 0.2},
        RULES | {"attention": "performer"},
    ),
    "drawn at the stop": (4, {"redraw_interval": 2, "dropout": 0.2}, RULES | {"attention": "lsh"}),
    "drawn once": (3, {"redraw_interval": 0}, RULES | {"attention": "performer"}),
    **{name: (3, {"memory_parts": 2}, shape_of(name)) for name in MEMORY_MODELS},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_goes_on_as_if_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setitem(MEMORIES, "toy", ToyMemory)
    stop_at, settings, changes = WAYS[way]
    more = {"context": context_of(way)} if way in MEMORY_MODELS else {}
    shape = (
        SHAPE | ({} if "reversible" in changes or "attention" in changes else ADAPTIVE) | changes
    )
    assert_resuming_changes_nothing(tmp_path, stop_at, settings, shape=shape, **more)


def test_another_split_into_chunks_goes_on_with_the_same_memory(tmp_path: Path) -> None:
    whole = Run(config(batch_chunk=1), dtype=torch.float64).begin().trained()
    Run(config(batch_chunk=2, max_step=3), dtype=torch.float64, folder=tmp_path).begin().train()
    second = Run(config(batch_chunk=4), dtype=torch.float64, folder=tmp_path).resume().trained()
    torch.testing.assert_close(second.weights(), whole.weights(), rtol=0, atol=1e-12)


def test_evaluations_read_and_checkpoints_hold_the_average_of_the_weights(tmp_path: Path) -> None:
    """d = min(0.5, (1 + n) / (10 + n)) is 2/11, 3/12, ... after the first updates."""
    run, read = Run(config(ema=0.5, max_step=3), folder=tmp_path).begin(), []
    average, score = run.weights(), run.score

    def watch() -> None:
        d = (1 + run.state.progress.step) / (10 + run.state.progress.step)
        for name, weight in run.weights().items():
            average[name] = d * average[name] + (1 - d) * weight

    run.after_step = watch
    run.score = lambda *asked: read.append(run.weights()) or score(*asked)  # type: ignore[method-assign]
    run.train()
    (evaluated,) = read
    torch.testing.assert_close(evaluated, average)
    saved = load_model(last_checkpoint(tmp_path)).named_parameters()
    torch.testing.assert_close({name: weight.detach() for name, weight in saved}, average)
    assert any(not torch.equal(evaluated[name], weight) for name, weight in run.weights().items())


@pytest.mark.parametrize("below_torchrun", [True, False])
def test_a_run_ends_with_its_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below_torchrun: bool
) -> None:
    """One that a shell has started goes on without it."""
    monkeypatch.setattr(signals, "_PARENT", os.getppid())
    if below_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    run, step = Run(config(), folder=tmp_path).begin(), TrainState.step

    def orphaned(state: TrainState, *batch: Tensor) -> Tensor:
        if state.progress.step == 2:
            monkeypatch.setattr(os, "getppid", lambda: -1)
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


def test_a_signal_after_a_stopped_evaluation_interrupts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the time is over in an evaluation, and then Ctrl-C comes while a checkpoint is written."""
    run, save = Run(config(max_step=3, max_hours=1e-9), folder=tmp_path).begin(), loop._save
    run.state.progress.owes_evaluation = True
    run.score = lambda *asked: list(until_stopped(range(3), asked[-1], ALONE))  # type: ignore[method-assign]

    def interrupted(*asked: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return save(*asked)

    monkeypatch.setattr(loop, "_save", interrupted)
    assert "stopped by --max_hours" in run.train().reason


def test_a_stop_that_was_asked_for_before_an_evaluation_ends_it() -> None:
    request, read = StopRequest(None), []
    with request:
        # while nothing may be interrupted, as a checkpoint is written
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StopNow, match=str(TERMINATE)):
            read.extend(until_stopped(range(9), request, ALONE))
    assert read == []


def test_a_training_that_writes_in_the_background_ends_when_its_last_checkpoint_is_written(
    tmp_path: Path,
) -> None:
    settings = {"dropout": 0.1, "eval_interval": 3}
    never = Run(config(**settings)).begin().trained()
    settings |= {"async_save": True, "save_interval": 1}
    Run(config(**settings, max_step=3), folder=tmp_path).begin().train()
    second = Run(config(**settings), folder=tmp_path).resume().trained()
    assert [path.name for path in sorted(tmp_path.glob("step_*"))][-1] == "step_00000006"
    assert same_weights(never, second)
