"""Loss and speed, by a clock that the test turns."""

from types import SimpleNamespace

import pytest
import torch

from tests.training.runs import CONTEXT, SHAPE
from txl import ModelConfig, TransformerXL
from txl.runtime.distributed import Ranks
from txl.training import meter
from txl.training.meter import Meter


class TwoAlike(Ranks):
    """The first of two ranks, of which the other has the same numbers."""

    def total(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value


def test_loss_and_speed_are_over_all_ranks_and_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(meter, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    found = Meter(TransformerXL(ModelConfig(**SHAPE)), CONTEXT, TwoAlike(0, 2, torch.device("cpu")), torch.float32)
    for nats in (3.0, 5.0):
        found.add(torch.full((2, 6), nats))
        clock.now += 0.5
        with found.paused():
            clock.now += 7.0
    read = found.read()
    assert read["train/nll_nats"] == pytest.approx(4.0)
    assert (read["speed/ms_per_step"], read["speed/tok_per_s"]) == (500.0, 48.0)
    clock.now += 1.0
    found.add(torch.ones(2, 6))
    assert (found.read()["train/nll_nats"], found.tok_per_s) == (pytest.approx(1.0), 36.0)
