"""Training with every memory: in several processes, in parts, stopped and resumed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.hygiene.toy_memory import ToyMemory
from tests.laws.conftest import MEMORY_MODELS, context_of, shape_of
from tests.training.runs import ADAPTIVE, SHAPE, Run, config, on_ranks, same_weights
from txl.memory import MEMORIES
from txl.runtime.distributed import Ranks
from txl.training.meter import Meter

NAMES = list(MEMORY_MODELS)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEMORIES, "toy", ToyMemory)


def run_of(name: str, folder: Path | None = None, settings: dict[str, Any] | None = None, **more: Any) -> Run:
    shape = SHAPE | ADAPTIVE | shape_of(name)
    given = {"memory_parts": 2, "max_step": 7, "max_step_scheduler": 7} | (settings or {})
    return Run(config(**given), shape=shape, context=context_of(name), folder=folder, **more)


def trained(ranks: Ranks | None, name: str) -> dict[str, np.ndarray]:
    run = run_of(name, settings={"batch_chunk": 2}, dtype=torch.float64, **({"ranks": ranks} if ranks else {})).begin()
    run.train()
    weights: dict[str, Tensor] = run.weights()
    loss = run.state.memory_loss
    if loss is not None:
        weights["loss"] = (ranks.total(loss) / ranks.world) if ranks else loss
    return {key: tensor.numpy() for key, tensor in weights.items()}


def trained_with_all(ranks: Ranks) -> list[dict[str, np.ndarray]]:
    MEMORIES["toy"] = ToyMemory
    return [trained(ranks, name) for name in NAMES]


@pytest.fixture(scope="module")
def two_ranks() -> list[Any]:
    return on_ranks(2, trained_with_all)


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_train_as_one(two_ranks: list[Any], name: str) -> None:
    alone = trained(None, name)
    for results in two_ranks:
        together = results[NAMES.index(name)]
        assert together.keys() == alone.keys()
        for key, values in alone.items():
            np.testing.assert_allclose(together[key], values, rtol=0, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_with_all_that_was_remembered(tmp_path: Path, name: str) -> None:
    whole = run_of(name)
    whole.begin().train()
    run_of(name, tmp_path, {"max_step": 3}).begin().train()
    resumed = run_of(name, tmp_path).resume()
    resumed.train()
    assert same_weights(whole, resumed)
    one, other = (run.state.memories[0].named() for run in (whole, resumed))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], tensor) for key, tensor in other.items())


def test_what_a_memory_adds_to_the_loss_is_measured_apart() -> None:
    run = run_of("toy").begin()
    meter = Meter(run.state.model, run.context, run.ranks, run.dtype)
    nll_BT = run.state.step(*(torch.ones(4, 6, dtype=torch.int64),) * 2)
    meter.add(nll_BT, run.state.memory_loss)
    found = meter.read()
    assert run.state.memory_loss is not None
    assert found["train/memory_loss"] == pytest.approx(float(run.state.memory_loss))
    assert found["train/nll_nats"] == pytest.approx(float(nll_BT.mean()))
