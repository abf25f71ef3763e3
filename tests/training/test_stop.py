"""Requests to stop: which one counts; the time limit, loss and speed, by a clock that the test turns."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.training.runs import CONTEXT, SHAPE, Run, config
from txl import ModelConfig, TransformerXL
from txl.runtime import signals
from txl.runtime.distributed import Ranks
from txl.runtime.signals import HANGUP, TERMINATE, USER_1, StopRequest
from txl.training import meter


def test_a_run_stops_after_its_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes 25 minutes."""
    run = Run(config(max_hours=1.0), folder=tmp_path).begin()
    clock = SimpleNamespace(monotonic=lambda: 1500.0 * run.state.progress.step)
    monkeypatch.setattr(signals, "time", clock)
    outcome = run.train()
    assert (run.state.progress.step, outcome.status) == (3, 0)
    assert "stopped by --max_hours after step 3" in str(outcome.reason)


def test_a_stronger_request_is_not_overridden_by_a_weaker_one() -> None:
    for order in ((signal.SIGUSR1, signal.SIGTERM), (signal.SIGTERM, signal.SIGUSR1)):
        with StopRequest() as request:
            signal.raise_signal(order[0])
            assert request.noted == {signal.SIGUSR1: USER_1, signal.SIGTERM: TERMINATE}[order[0]]
            signal.raise_signal(order[1])
            assert request.noted == TERMINATE


@pytest.fixture
def no_nohup() -> Iterator[None]:
    """These tests may themselves run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_hangup_is_no_request_under_nohup(no_nohup: None) -> None:
    with StopRequest() as request:
        signal.raise_signal(signal.SIGHUP)
        assert request.noted == HANGUP
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequest() as request:
        signal.raise_signal(signal.SIGHUP)
        assert request.noted == 0
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_after_a_hangup_a_run_writes_to_no_terminal_that_is_gone(no_nohup: None) -> None:
    """Else its next line would end it before it is saved."""
    terminal, ours = os.openpty()
    with StopRequest() as request:
        request._terminals = [ours]
        os.close(terminal)
        with pytest.raises(OSError, match="Input/output error"):
            os.write(ours, b"a line")
        signal.raise_signal(signal.SIGHUP)
        os.write(ours, b"a line")
    os.close(ours)


class TwoAlike(Ranks):
    """The first of two ranks, of which the other has the same numbers."""

    def total(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """That of the meter, which a test turns by its `now`; a second is three of processor time."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(
        meter,
        "time",
        SimpleNamespace(perf_counter=lambda: clock.now, process_time=lambda: 3 * clock.now),
    )
    return clock


def test_loss_and_speed_are_over_all_ranks_and_without_pauses(clock: SimpleNamespace) -> None:
    found = meter.Meter(
        TransformerXL(ModelConfig(**SHAPE)),
        CONTEXT,
        TwoAlike(0, 2, torch.device("cpu")),
        torch.float32,
    )
    for nats in (3.0, 5.0):
        found.add(torch.full((2, 6), nats))
        clock.now += 0.5
        with found.paused():
            clock.now += 7.0
    read = found.read()
    assert read["train/nll_nats"] == pytest.approx(4.0)
    assert (read["speed/ms_per_step"], read["speed/tok_per_s"]) == (500.0, 48.0)
    assert read["speed/cpu_ms_per_step"] == 2 * 1500.0
    clock.now += 1.0
    found.add(torch.ones(2, 6))
    assert (found.read()["train/nll_nats"], found.tok_per_s) == (pytest.approx(1.0), 36.0)


def test_an_evaluation_that_was_owed_counts_as_no_training_time(clock: SimpleNamespace) -> None:
    """Each step takes a second and reads 24 tokens."""

    def wait(seconds: float) -> None:
        clock.now += seconds

    run = Run(config(max_step=3), after_step=lambda: wait(1.0)).begin()
    run.state.progress.owes_evaluation = True
    score = run.score
    run.score = lambda *asked: wait(50.0) or score(*asked)  # type: ignore[method-assign]
    assert run.train().tok_per_s == 24.0
