"""Requests to stop: which one counts, and the time limit, by a clock that the test turns."""

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.training.runs import Run, config
from txl.runtime import signals
from txl.runtime.signals import CLEAN, TERMINATE, StopRequest


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
            assert request.noted == {signal.SIGUSR1: CLEAN, signal.SIGTERM: TERMINATE}[order[0]]
            signal.raise_signal(order[1])
            assert request.noted == TERMINATE
