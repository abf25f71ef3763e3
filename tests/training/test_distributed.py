"""Two processes compute what one computes (law 7), and one can take over from two (law 8)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.runs import CONTEXT, IDS, SHAPE, Run, config, on_ranks, same_weights
from txl import TransformerXL
from txl.data_utils.rows import scoring_stream
from txl.evaluation.reading import warmup_segments
from txl.evaluation.score import evaluate
from txl.runtime.distributed import Ranks, Vote
from txl.training.step import NonFiniteError

# the first two streams, those of rank 0, hold words of the shortlist only: that rank misses both tail clusters
LOPSIDED = np.concatenate([IDS[:50] % 10, IDS[50:]])
CASES: list[dict[str, Any]] = [
    {},
    {"batch_chunk": 2},
    {"varlen": True, "roll": True},
    *({"optim": name, "mom": 0.5, "weight_decay": 0.01} for name in ("sgd", "lamb", "muon")),
]


def three_steps(ranks: Ranks | None, ids: np.ndarray, settings: dict[str, Any]) -> dict[str, Tensor]:
    run = Run(config(max_step=3, **settings), dtype=torch.float64, ids=ids, **({"ranks": ranks} if ranks else {}))
    run.begin()
    gradients: list[dict[str, Tensor]] = []
    step = run.state.optimizers.step

    def noted(**skip: Any) -> None:
        gradients.append({name: p.grad.clone() for name, p in run.state.model.named_parameters()})
        step(**skip)

    run.state.optimizers.step = noted  # type: ignore[method-assign]
    run.train()
    return run.weights() | {f"gradient {i} of {n}": g for i, of in enumerate(gradients) for n, g in of.items()}


def all_cases(ranks: Ranks) -> list[dict[str, np.ndarray]]:
    results = [three_steps(ranks, ids, settings) for ids in (IDS, LOPSIDED) for settings in CASES]
    return [{name: tensor.numpy() for name, tensor in result.items()} for result in results]


@pytest.fixture(scope="module")
def two_ranks() -> list[Any]:
    return on_ranks(2, all_cases)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[str(case) for case in CASES])
@pytest.mark.parametrize("text", ["even", "lopsided"])
def test_gradients_and_updates_of_two_ranks_are_those_of_one_process(
    two_ranks: list[Any], case: int, text: str
) -> None:
    alone = three_steps(None, {"even": IDS, "lopsided": LOPSIDED}[text], CASES[case])
    for result in two_ranks:
        together = result[case + (text == "lopsided") * len(CASES)]
        assert together.keys() == alone.keys()
        for name, tensor in alone.items():
            np.testing.assert_allclose(together[name], tensor.numpy(), rtol=0, atol=1e-12, err_msg=name)


def shapes_read(ranks: Ranks) -> list[tuple[int, ...]]:
    """Of the input of each forward pass of three steps, those before the first step included."""
    shapes: list[tuple[int, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        read = TransformerXL.read
        patch.setattr(TransformerXL, "read", lambda self, *args: shapes.append(args[0].shape[:2]) or read(self, *args))
        Run(config(max_step=3, batch_chunk=2), ranks=ranks).begin().train()
    return shapes


def test_every_pass_has_the_shape_of_a_step() -> None:
    """Another shape would make torch.compile take batch and length for variable in the whole run."""
    assert on_ranks(2, shapes_read) == [[(1, CONTEXT.tgt_len)] * 7] * 2


def go_on(ranks: Ranks, folder: Path) -> tuple[int, dict[str, np.ndarray]]:
    run = Run(config(), ranks=ranks, dtype=torch.float64, folder=folder).resume()
    seed = torch.initial_seed()
    run.train()
    return seed, {name: weight.numpy() for name, weight in run.weights().items()}


def first_half(ranks: Ranks, folder: Path) -> None:
    Run(config(max_step=3), ranks=ranks, dtype=torch.float64, folder=folder).begin().train()


def test_two_ranks_go_on_as_one_and_one_as_two(tmp_path: Path) -> None:
    whole = Run(config(), dtype=torch.float64).begin()
    whole.train()
    on_ranks(2, first_half, tmp_path / "two")
    one = Run(config(), dtype=torch.float64, folder=tmp_path / "two").resume()
    one.train()
    Run(config(max_step=3), dtype=torch.float64, folder=tmp_path / "one").begin().train()
    seeds, back = zip(*on_ranks(2, go_on, tmp_path / "one"), strict=True)
    assert seeds[0] != seeds[1]  # of dropout
    alone = one.weights()
    for name, weight in whole.weights().items():
        for other in (alone[name].numpy(), back[0][name], back[1][name]):
            np.testing.assert_allclose(other, weight.numpy(), rtol=0, atol=1e-12)


def resume_bitwise(ranks: Ranks, folder: Path) -> bool:
    settings = {"dropout": 0.2, "varlen": True, "roll": True, "batch_size": 2 * ranks.world}
    whole = Run(config(**settings), ranks=ranks).begin()
    whole.train()
    Run(config(max_step=3, **settings), ranks=ranks, folder=folder).begin().train()
    torch.manual_seed(999)
    second = Run(config(**settings), ranks=ranks, folder=folder).resume()
    second.train()
    return same_weights(whole, second)


def other_duties(ranks: Ranks) -> dict[str, Any]:
    """Evaluation, agreement and bad steps, in one start."""
    run = Run(config(max_step=2), ranks=ranks, dtype=torch.float64).begin()
    n_warmup = warmup_segments(SHAPE["n_layer"], CONTEXT)
    whole = [scoring_stream(IDS, batch_size=b, tgt_len=4, n_warmup=n_warmup) for b in (1, 2, 5)]
    shares = [stream.share(ranks.rank, ranks.world) for stream in whole]
    nats = [evaluate(run.state.model, share, CONTEXT).over(ranks) for share in shares]
    vote, agreed = Vote(ranks), []
    for asked in (0, 3 * ranks.rank, 0):
        agreed.append(vote.agree(asked))
    agreed.append(vote.close())
    run.train()
    tokens = run.state.progress.n_token
    run = Run(config(max_step=2), ranks=ranks, dtype=torch.float64).begin()
    if ranks.rank == 1:
        run.state.nats.module.model.softmax.biases[0].data[0] = torch.nan  # only this rank's loss is bad
    try:
        run.train()
        message = ""
    except NonFiniteError as error:
        message = str(error)
    return {"nats": [(s.nats, s.tokens) for s in nats], "agreed": agreed, "message": message, "tokens": tokens}


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_resume_bitwise(tmp_path: Path, world: int) -> None:
    """With three, sums depend on the order of summation, which must be settled before the first step."""
    assert on_ranks(world, resume_bitwise, tmp_path) == [True] * world


def test_two_ranks_evaluate_agree_and_stop_together() -> None:
    results = on_ranks(2, other_duties)
    assert results[0] == results[1]
    run = Run(config(), dtype=torch.float64).begin()
    n_warmup = warmup_segments(SHAPE["n_layer"], CONTEXT)
    alone = evaluate(run.state.model, scoring_stream(IDS, batch_size=1, tgt_len=4, n_warmup=n_warmup), CONTEXT)
    for nats, tokens in results[0]["nats"]:
        assert tokens == len(IDS) - 1
        assert nats == pytest.approx(alone.nats, rel=1e-9)
    assert results[0]["agreed"] == [0, 0, 3, 0]
    assert "step 1, epoch 1, segment 1: the loss is not finite on rank 1 (streams 2 to 3)" in results[0]["message"]
    assert results[0]["tokens"] == 2 * 4 * CONTEXT.tgt_len
