"""Several ranks, with whole models or with shards, compute what one computes (law 7) and go on from it (law 8)."""

import functools
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.hygiene.toy_memory import ToyMemory
from tests.laws.conftest import MEMORY_MODELS, context_of, shape_of
from tests.ranks import on_ranks
from tests.training.runs import ADAPTIVE, ALONE, CONTEXT, IDS, SHAPE, Run, config, same_weights
from txl import Context, ModelConfig, TransformerXL
from txl.config import UsageError
from txl.data_utils.segments import scoring_stream
from txl.evaluation.reading import warmup_segments
from txl.evaluation.score import evaluate
from txl.memory import MEMORIES
from txl.runtime.distributed import Ranks, Vote, whole
from txl.runtime.resources import return_freed_memory
from txl.runtime.signals import StopRequest
from txl.training.loop import Validation
from txl.training.sharding import drawn_in_shards, require_shards, reshard
from txl.training.step import NonFiniteError, TrainState

LOPSIDED = np.concatenate([IDS[:50] % 10, IDS[50:]])
"""The first two streams, those of rank 0, hold words of the shortlist only: that rank misses both tail clusters."""

Case = tuple[dict[str, Any], dict[str, Any]]
IN_SHARDS: dict[str, Case] = {  # shape, training
    "sgd": (ADAPTIVE, {"optim": "sgd", "mom": 0.5, "varlen": True, "roll": True}),
    "lamb": (ADAPTIVE, {"optim": "lamb", "weight_decay": 0.01, "batch_chunk": 2, "swap_mem": True}),
    "untied": (
        {"not_tied": True, "pre_lnorm": True, "position": "deberta"},
        {"optim": "adagrad", "ema": 0.5, "label_smoothing": 0.1, "ff_chunk": 2, "clip": 0.01},
    ),
    "performer": (
        {"position": "rotary", "attention": "performer", "n_feature": 8},
        {"redraw_interval": 1, "recompute": True},
    ),
    "a memory learns": (
        ADAPTIVE | {"memory": "neural", "memory_gate": "tanh"},
        {"train": "memory", "memory_parts": 2, "ema": 0.5, "batch_chunk": 2},
    ),
    "the last layer learns": (
        ADAPTIVE | {"pre_lnorm": True},
        {"train": "last:1", "optim": "lamb", "recompute": True},
    ),
    **{
        name: (
            ADAPTIVE | shape_of(name),
            {"memory_parts": 2, "batch_chunk": 2, "recompute": i % 2 == 1},
        )
        for i, name in enumerate(MEMORY_MODELS)
    },
}
WHOLE: dict[str, Case] = IN_SHARDS | {
    "muon": (ADAPTIVE, {"optim": "muon", "weight_decay": 0.01}),
    "reversible": ({"pre_lnorm": True, "reversible": True}, {"ff_chunk": 3}),
    "lsh": (
        {"position": "none", "attention": "lsh", "lsh_round": 2, "lsh_bucket": 4, "lsh_reach": 3},
        {},
    ),
    "same": ({"recurrence": "same", "activation": "geglu"}, {}),
}


def trained(ranks: Ranks, name: str, *, shard: bool = False) -> dict[str, Tensor]:
    """All that two updates compute."""
    shape, settings = WHOLE[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MEMORIES, "toy", ToyMemory)
        run = Run(
            config(max_step=2, shard=shard, **settings),
            ranks,
            torch.float64,
            LOPSIDED,
            SHAPE | shape,
        )
        run.context = context_of(name) if name in MEMORY_MODELS else CONTEXT
        run.begin()
        found: dict[str, Tensor] = {}
        step = run.state.optimizers.step

        def noted(**skip: Any) -> None:
            for of, p in run.state.model.named_parameters():
                if p.requires_grad:
                    found[f"gradient {run.state.progress.step} of {of}"] = whole(p.grad).clone()
                assert p.requires_grad or p.grad is None
            step(**skip)

        patch.setattr(run.state.optimizers, "step", noted)
        run.train()
    with run.state.average.in_use():
        found |= {f"average of {of}": weight for of, weight in run.weights().items()}
    if run.state.memory_loss is not None:
        found["loss of the memory"] = ranks.total(run.state.memory_loss.clone()) / ranks.world
    return found | run.weights()


@functools.cache
def trained_alone(name: str) -> dict[str, Tensor]:
    return trained(ALONE, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_gradients_and_updates_of_two_ranks_are_those_of_one_process(name: str) -> None:
    for together in on_ranks(2, trained, name):
        torch.testing.assert_close(together, trained_alone(name), rtol=0, atol=1e-12)


def in_shards(ranks: Ranks, name: str) -> dict[str, Tensor]:
    return trained(ranks, name, shard=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_SHARDS)
def test_gradients_and_updates_in_shards_are_those_of_one_process(name: str) -> None:
    for together in on_ranks(2, in_shards, name):
        torch.testing.assert_close(together, trained_alone(name), rtol=0, atol=1e-12)


def other_ways(ranks: Ranks) -> dict[str, float]:
    """How far losses in shards are from those of whole models: half precision, dropout, compiled (not by Inductor)."""
    found = {}
    ways: list[dict[str, Any]] = [{"dtype": "bfloat16"}, {"dtype": "float16"}]
    ways += [{"recompute": True, "dropout": 0.2, "dropatt": 0.1, "varlen": True}]
    ways += [{"compile": True}] * ("TXL_LONG_TESTS" in os.environ)
    with pytest.MonkeyPatch.context() as patch:
        by_eager = functools.partialmethod(torch.nn.Module.compile, backend="aot_eager")
        patch.setattr(torch.nn.Module, "compile", by_eager)
        for settings in ways:
            both = [
                Run(config(max_step=2, shard=shard, **settings), ranks) for shard in (False, True)
            ]
            for run in both:
                run.begin().train()
            pairs = zip(*(run.losses for run in both), strict=True)
            found[str(settings)] = max(float((a - b).abs().max()) for a, b in pairs)
    return found


def drawn(ranks: Ranks, name: str) -> bool:
    """Whether a model drawn in shards has the weights of one that is drawn whole."""
    shape, settings = ModelConfig(**SHAPE | ADAPTIVE | shape_of(name)), config(shard=True)
    run = Run(config(), shape=SHAPE | ADAPTIVE | shape_of(name)).begin()
    model = drawn_in_shards(shape, settings, ranks)
    return all(
        torch.equal(whole(p.detach()), run.weights()[of]) for of, p in model.named_parameters()
    )


@pytest.mark.parametrize("name", ["neural"])
def test_weights_of_a_memory_are_drawn_in_shards_as_whole(name: str) -> None:
    assert on_ranks(2, drawn, name) == [True, True]


def test_other_ways_of_training_in_shards() -> None:
    for found in on_ranks(2, other_ways):
        assert {way: difference for way, difference in found.items() if not difference < 1e-5} == {}


def shapes_read(ranks: Ranks) -> list[tuple[int, ...]]:
    """Of the input of each forward pass of three steps, those before the first step included."""
    shapes: list[tuple[int, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        read = TransformerXL.read

        def noted(self: TransformerXL, *args: Any, **named: Any) -> Any:
            shapes.append(args[0].shape[:2])
            return read(self, *args, **named)

        patch.setattr(TransformerXL, "read", noted)
        Run(config(max_step=3, batch_chunk=2), ranks=ranks).begin().train()
    return shapes


def test_every_pass_has_the_shape_of_a_step() -> None:
    """Another shape would make torch.compile take batch and length for variable in the whole run."""
    assert on_ranks(2, shapes_read) == [[(1, CONTEXT.tgt_len)] * 7] * 2


# going on


def go_on(
    ranks: Ranks, folder: Path, max_step: int, settings: dict[str, Any]
) -> tuple[int, dict[str, Tensor]]:
    """The seed of dropout, and the weights after these steps."""
    run = Run(config(max_step=max_step, **settings), ranks, torch.float64, folder=folder)
    run = run.resume() if folder.exists() else run.begin()
    seed = torch.initial_seed()
    run.train()
    return seed, run.weights()


@pytest.mark.parametrize(
    "stages",
    [
        pytest.param([(2, False), (1, False), (2, False)], id="two, one, two"),
        pytest.param(
            [(2, True), (1, False), (2, True)],
            id="two shards, one, two shards",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_goes_on_in_another_number_of_processes(
    tmp_path: Path, stages: list[tuple[int, bool]]
) -> None:
    settings = {"optim": "lamb"}  # has Adam's states, and norms of whole weights
    _, never = go_on(ALONE, tmp_path / "never", 6, settings)
    for i, (world, shard) in enumerate(stages):
        asked = (tmp_path / "run", 2 * i + 2, settings | {"shard": shard})
        ended = on_ranks(world, go_on, *asked) if world > 1 else [go_on(ALONE, *asked)]
        assert len({seed for seed, _ in ended}) == world
    for _, weights in ended:
        torch.testing.assert_close(weights, never, rtol=0, atol=1e-12)


def resumed_bitwise(ranks: Ranks, folder: Path, settings: dict[str, Any], **model: Any) -> bool:
    settings = settings | {
        "dropout": 0.2,
        "varlen": True,
        "batch_size": 2 * ranks.world,
        "max_step": 4,
    }
    never = Run(config(**settings), ranks, **model).begin().trained()
    Run(config(**settings | {"max_step": 2}), ranks, folder=folder, **model).begin().train()
    torch.manual_seed(999)
    second = (
        Run(config(**settings, async_save=True), ranks, folder=folder, **model).resume().trained()
    )
    return same_weights(never, second)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "settings"),
    [
        (2, {"roll": True}),
        # sums depend on the order of summation, which must be settled before the first step
        (3, {"roll": True}),
        pytest.param(
            3, {"ema": 0.5, "shard": True}, marks=pytest.mark.slow
        ),  # does not divide the rows of most weights
    ],
    ids=str,
)
def test_ranks_resume_bitwise(tmp_path: Path, world: int, settings: dict[str, Any]) -> None:
    assert on_ranks(world, resumed_bitwise, tmp_path, settings) == [True] * world


def memory_resumed(ranks: Ranks, folder: Path, name: str) -> list[bool]:
    """With whole models, and with shards."""
    model = {"shape": SHAPE | ADAPTIVE | shape_of(name), "context": context_of(name)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MEMORIES, "toy", ToyMemory)
        ways = [{"memory_parts": 2, "shard": shard} for shard in (False, True)]
        return [resumed_bitwise(ranks, folder / str(i), way, **model) for i, way in enumerate(ways)]


# a loss of its own, and weights that are read between layers
QUICK = ("compressive", "recurrent_tokens")


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in MEMORY_MODELS
    ],
)
def test_ranks_resume_bitwise_with_every_memory(tmp_path: Path, name: str) -> None:
    assert on_ranks(2, memory_resumed, tmp_path, name) == [[True, True]] * 2


# what ranks agree on


def scored(ranks: Ranks) -> list[tuple[float, int]]:
    """By streams of three batch sizes."""
    model = Run(config(), ranks, torch.float64).begin().state.model
    n_warmup = warmup_segments(SHAPE["n_layer"], CONTEXT)
    streams = [scoring_stream(IDS, batch_size=b, tgt_len=4, n_warmup=n_warmup) for b in (1, 2, 5)]
    scores = [
        evaluate(model, one.share(ranks.rank, ranks.world), CONTEXT).over(ranks) for one in streams
    ]
    return [(score.nats, score.tokens) for score in scores]


def agreed(ranks: Ranks) -> list[int]:
    vote = Vote(ranks)
    return [*(vote.agree(asked) for asked in (0, 3 * ranks.rank, 0)), vote.close()]


def tokens_seen(ranks: Ranks) -> int:
    run = Run(config(max_step=2), ranks).begin().trained()
    return run.state.progress.n_token


def bad_step(ranks: Ranks, shard: bool) -> str:
    """Rank 1 holds a weight that is not finite; in shards it is rank 0, and all ranks see it."""
    run = Run(config(max_step=2, shard=shard), ranks).begin()
    bias = run.state.model.softmax.biases[0].detach()
    if ranks.rank == int(not shard):
        (bias.to_local() if shard else bias)[0] = torch.nan  # type: ignore[operator]
    with pytest.raises(NonFiniteError) as error:
        run.train()
    return str(error.value)


def agreeing(work: Callable[..., Any], *args: Any) -> Any:
    one, other = on_ranks(2, work, *args)
    assert one == other
    return one


def test_two_ranks_evaluate_agree_and_stop_together() -> None:
    (nats, tokens), *_ = scored(ALONE)
    assert agreeing(scored) == [(pytest.approx(nats, rel=1e-9), tokens)] * 3
    assert tokens == len(IDS) - 1
    assert agreeing(agreed) == [0, 0, 3, 0]
    assert agreeing(tokens_seen) == 2 * 4 * CONTEXT.tgt_len
    said = "step 1, epoch 1, segment 1: the loss is not finite on rank 1 (streams 2 to 3)"
    assert said in agreeing(bad_step, False)


def validated(ranks: Ranks, shard: bool, name: str = "fifo") -> float:
    """The loss where rank 0 has two segments to read and another rank has none."""
    ids = torch.from_numpy(IDS[None, :13])
    segments = [(ids[:, i : i + 6], ids[:, i + 1 : i + 7], None) for i in (0, 6)]

    class Request:
        noted = 0

    run = Run(
        config(max_step=2, shard=shard),
        ranks,
        torch.float64,
        shape=SHAPE | ADAPTIVE | shape_of(name),
    )
    model, context = run.begin().state.model, context_of(name)
    streams: Any = [segments] if ranks.is_main else []
    score = Validation(streams, context, {}).score(model, ranks, Request())  # type: ignore[arg-type]
    reshard(model)
    assert score.tokens == 12
    return score.nats


@pytest.mark.slow
def test_shards_evaluate_and_stop_together() -> None:
    for name in ("fifo", "neural", "recurrent_tokens"):
        assert agreeing(validated, True, name) == pytest.approx(
            validated(ALONE, False, name), rel=1e-12
        )
    assert "step 1, epoch 1, segment 1: the loss is not finite on rank 0" in agreeing(
        bad_step, True
    )


def limited(ranks: Ranks) -> tuple[int, int]:
    """Tokens and characters of an evaluation that is cut on the ranks after rank 0 only."""
    ids = torch.from_numpy(IDS[None, :13])
    segments = [(ids[:, i : i + 6], ids[:, i + 1 : i + 7], None) for i in (0, 6)]
    model = Run(config(), ranks, torch.float64).begin().state.model
    streams: Any = [segments[: 1 + ranks.rank]]
    validation = Validation(
        streams, CONTEXT, {"characters": 100 * (1 + ranks.rank)}, max_segments=1
    )
    score = validation.score(model, ranks, StopRequest(None))
    return score.tokens, score.characters


def test_characters_count_only_where_all_ranks_read_all() -> None:
    assert limited(ALONE) == (6, 100)
    assert agreeing(limited) == (12, 0)


# models that are too large for one rank


def under_a_limit(ranks: Ranks, shard: bool) -> str:
    """Two updates of a model whose weights, gradients and states of Adam take 104 MiB, where there are 80."""
    sizes = {
        "n_token": 40,
        "n_layer": 8,
        "n_head": 2,
        "d_head": 128,
        "d_model": 256,
        "d_inner": 1024,
    }
    settings = config(shard=shard)
    Run(config(max_step=1, shard=shard), ranks).begin().train()  # what libraries need once
    return_freed_memory()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + (80 << 20), hard))
    try:
        model = (
            drawn_in_shards(ModelConfig(**sizes), settings, ranks)
            if shard
            else TransformerXL(ModelConfig(**sizes))
        )
        assert sum(16 * p.numel() for p in model.parameters()) > 100 << 20
        state = TrainState(model, settings, Context(tgt_len=4, mem_len=4), ranks)
        ids = torch.zeros(2, 5, dtype=torch.int64)
        for _ in range(2):
            state.step(ids[:, :-1], ids[:, 1:])
    except (RuntimeError, MemoryError) as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return "trained"


@pytest.mark.slow
def test_a_model_too_large_for_one_rank_trains_in_shards() -> None:
    assert on_ranks(2, under_a_limit, True) == ["trained"] * 2
    assert "memory" in on_ranks(1, under_a_limit, False)[0]


def test_what_cannot_be_sharded_is_refused_by_name() -> None:
    two = Ranks(0, 2, torch.device("cpu"))
    with pytest.raises(UsageError, match="--reversible"):
        require_shards(ModelConfig(**SHAPE, reversible=True), config(shard=True), two)
    with pytest.raises(UsageError, match="--optim muon"):
        require_shards(ModelConfig(**SHAPE), config(shard=True, optim="muon"), two)
