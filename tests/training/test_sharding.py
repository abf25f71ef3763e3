"""Sharded over ranks a training computes what it computes whole (law 7), and goes on either way (law 8)."""

import functools
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.runs import ADAPTIVE, ALONE, CONTEXT, IDS, SHAPE, Run, config, on_ranks, same_weights
from tests.training.test_distributed import LOPSIDED
from txl import Context, ModelConfig, TransformerXL
from txl.config import UsageError
from txl.evaluation.score import evaluate
from txl.runtime.allocator import return_freed_memory
from txl.runtime.distributed import Ranks, whole
from txl.training.init import init_weights
from txl.training.loop import Validation
from txl.training.sharding import drawn_in_shards, require_shards, reshard
from txl.training.step import NonFiniteError, TrainState

pytestmark = pytest.mark.slow

Case = tuple[dict[str, Any], dict[str, Any]]
CASES: list[Case] = [  # shape, training
    (ADAPTIVE, {"optim": "sgd", "mom": 0.5}),
    ({"not_tied": True}, {"ema": 0.5, "label_smoothing": 0.1}),
    (ADAPTIVE, {"batch_chunk": 2, "swap_mem": True}),
    (ADAPTIVE, {"recompute": True, "dropout": 0.2, "dropatt": 0.1, "varlen": True}),
    ({"pre_lnorm": True, "position": "deberta"}, {"ff_chunk": 2, "clip": 0.01, "optim": "adagrad"}),
    ({"position": "rotary", "attention": "performer", "n_feature": 8}, {"redraw_interval": 2}),
    (ADAPTIVE, {"optim": "lamb", "weight_decay": 0.01}),
]


def three_steps(ranks: Ranks, ids: np.ndarray, case: Case, *, shard: bool) -> dict[str, Tensor]:
    shape, settings = case
    run = Run(config(max_step=3, shard=shard, **settings), ranks, torch.float64, ids, SHAPE | shape).begin()
    gradients: dict[str, Tensor] = {}
    step = run.state.optimizers.step

    def noted(**skip: Any) -> None:
        for name, p in run.state.model.named_parameters():
            gradients[f"gradient {run.state.progress.step} of {name}"] = whole(p.grad).clone()
        step(**skip)

    run.state.optimizers.step = noted  # type: ignore[method-assign]
    run.train()
    with run.state.average.in_use():
        average = {f"average of {name}": weight for name, weight in run.weights().items()}
    losses = {f"loss {i}": nll_BT for i, nll_BT in enumerate(run.losses)}
    return run.weights() | average | gradients | losses


def differences(ranks: Ranks) -> list[dict[str, float]]:
    """With a text of which rank 0 misses both tail clusters."""
    found = []
    for case in CASES:
        whole_run, in_shards = (three_steps(ranks, LOPSIDED, case, shard=shard) for shard in (False, True))
        assert whole_run.keys() == in_shards.keys()
        found.append({name: float((x - in_shards[name]).abs().max()) for name, x in whole_run.items()})
    return found


@pytest.fixture(scope="module")
def two_ranks() -> list[Any]:
    return on_ranks(2, differences)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[str(case) for case in CASES])
def test_losses_gradients_and_updates_in_shards_are_those_of_whole_models(two_ranks: list[Any], case: int) -> None:
    for result in two_ranks:
        assert [name for name, by in result[case].items() if not by <= 1e-12] == []


def other_ways(ranks: Ranks) -> dict[str, Any]:
    """Half precision, compiled layers (without Inductor), initial weights, evaluation and bad steps, in one start."""
    found: dict[str, Any] = {}
    torch.nn.Module.compile = functools.partialmethod(torch.nn.Module.compile, backend="aot_eager")  # type: ignore
    ways = [{"dtype": "bfloat16"}, {"dtype": "float16"}, *[{"compile": True}] * ("TXL_LONG_TESTS" in os.environ)]
    for settings in ways:
        both = [Run(config(max_step=3, shard=shard, **settings), ranks).begin() for shard in (False, True)]
        for run in both:
            run.train()
        found[str(settings)] = max(float((a - b).abs().max()) for a, b in zip(*(r.losses for r in both), strict=True))
    shape, settings_of_drawing = ModelConfig(**SHAPE | ADAPTIVE | {"position": "t5"}), config(shard=True)
    drawn = drawn_in_shards(shape, settings_of_drawing, ranks)
    torch.manual_seed(settings_of_drawing.seed)
    model = TransformerXL(shape)
    init_weights(model, settings_of_drawing)
    found["drawn"] = all(torch.equal(whole(p), q) for p, q in zip(drawn.parameters(), model.parameters(), strict=True))
    run = Run(config(max_step=2, shard=True), ranks, torch.float64).begin()
    found["nats"] = validated(run, ranks)
    bias = run.state.model.softmax.biases[0]
    if ranks.rank == 0:
        bias.detach().to_local()[0] = torch.nan
    with pytest.raises(NonFiniteError) as error:
        run.train()
    return found | {"message": str(error.value)}


def validated(run: Run, ranks: Ranks) -> float:
    """The loss where rank 0 has two segments to read and rank 1 has none."""
    ids = torch.from_numpy(IDS[None, :13])
    segments = [(ids[:, i : i + 6], ids[:, i + 1 : i + 7], None) for i in (0, 6)]

    class Request:
        noted = 0

    streams: Any = [segments] if ranks.is_main else []
    score = Validation(streams, CONTEXT, {}).score(run.state.model, ranks, Request())  # type: ignore[arg-type]
    reshard(run.state.model)
    assert score.tokens == 12
    return score.nats


def test_other_ways_of_training_in_shards() -> None:
    results = on_ranks(2, other_ways)
    assert results[0] == results[1]
    for name, difference in results[0].items():
        if name.startswith("{"):
            assert difference < 1e-5, name
    assert results[0]["drawn"] is True
    assert "step 1, epoch 1, segment 1: the loss is not finite on rank 0" in results[0]["message"]
    alone = Run(config(), dtype=torch.float64).begin()
    ids = torch.from_numpy(IDS[None, :13])
    nats = evaluate(alone.state.model, [(ids[:, i : i + 6], ids[:, i + 1 : i + 7], None) for i in (0, 6)], CONTEXT).nats
    assert results[0]["nats"] == pytest.approx(nats, rel=1e-12)


def resumed_bitwise(ranks: Ranks, folder: Path) -> bool:
    settings = {"dropout": 0.2, "varlen": True, "ema": 0.5, "shard": True, "batch_size": 2 * ranks.world}
    never = Run(config(**settings), ranks).begin()
    never.train()
    Run(config(**settings | {"max_step": 3}), ranks, folder=folder).begin().train()
    torch.manual_seed(999)
    second = Run(config(**settings, async_save=True), ranks, folder=folder).resume()
    second.train()
    return same_weights(never, second)


def test_shards_resume_bitwise(tmp_path: Path) -> None:
    """Three ranks do not divide the rows of most weights."""
    assert on_ranks(3, resumed_bitwise, tmp_path) == [True] * 3


def part(ranks: Ranks, folder: Path, max_step: int, settings: dict[str, Any]) -> None:
    run = Run(config(max_step=max_step, **settings), ranks, torch.float64, folder=folder)
    (run.resume() if folder.exists() else run.begin()).train()


def test_shards_whole_weights_and_one_process_go_on_from_each_other(tmp_path: Path) -> None:
    optim = "lamb"  # has Adam's states, and norms of whole weights
    never = Run(config(optim=optim), dtype=torch.float64).begin()
    never.train()
    folder = tmp_path / "run"
    on_ranks(2, part, folder, 2, {"shard": True, "optim": optim})
    part(ALONE, folder, 3, {"optim": optim})
    on_ranks(4, part, folder, 5, {"shard": True, "optim": optim})
    last = Run(config(optim=optim), dtype=torch.float64, folder=folder).resume()
    last.train()
    ended = last.weights()
    for name, weight in never.weights().items():
        np.testing.assert_allclose(ended[name], weight, rtol=0, atol=1e-12, err_msg=name)


def under_a_limit(ranks: Ranks, shard: bool) -> str:
    """Two updates of a model whose weights, gradients and states of Adam take 208 MiB, where there are 160."""
    sizes = {"n_token": 40, "n_layer": 16, "n_head": 2, "d_head": 128, "d_model": 256, "d_inner": 1024}
    settings = config(shard=shard)
    small = Run(config(max_step=1, shard=shard), ranks).begin()  # what libraries need once
    small.train()
    return_freed_memory()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + (160 << 20), hard))
    try:
        model = drawn_in_shards(ModelConfig(**sizes), settings, ranks) if shard else TransformerXL(ModelConfig(**sizes))
        assert sum(16 * p.numel() for p in model.parameters()) > 200 << 20
        state = TrainState(model, settings, Context(tgt_len=4, mem_len=4), ranks)
        ids = torch.zeros(2, 5, dtype=torch.int64)
        for _ in range(2):
            state.step(ids[:, :-1], ids[:, 1:])
    except (RuntimeError, MemoryError) as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return "trained"


def alone_under_a_limit(ranks: Ranks) -> str:
    return under_a_limit(ranks, shard=False)


def test_a_model_too_large_for_one_rank_trains_in_shards() -> None:
    assert on_ranks(2, under_a_limit, True) == ["trained"] * 2
    assert "memory" in on_ranks(1, alone_under_a_limit)[0]


@pytest.mark.parametrize(
    ("shape", "settings", "named"),
    [({"reversible": True}, {}, "--reversible"), ({}, {"optim": "muon"}, "--optim muon")],
)
def test_what_cannot_be_sharded_is_refused_by_name(shape: dict[str, Any], settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        require_shards(ModelConfig(**SHAPE | shape), config(shard=True, **settings), Ranks(0, 2, torch.device("cpu")))
