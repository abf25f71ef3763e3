"""Law 9 on the way that eval.py goes: its own cutting, its own look-back, its own counts."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TypeVar

import numpy as np
import pytest
import torch

from tests.laws.conftest import build
from txl import Context
from txl.config import ModelConfig
from txl.evaluation.config import EvalConfig
from txl.evaluation.score import Score
from txl.evaluation.test_time import Additions
from txl.runs import scoring
from txl.runtime.distributed import Ranks
from txl.training.config import TrainConfig

T = TypeVar("T")
torch.manual_seed(0)  # the seed of a test comes too late for what is made here
MODEL = build("pre_lnorm_adaptive", n_layer=2)


def articles() -> np.ndarray:
    """Four articles with headings, the last a heading only."""
    dice = np.random.default_rng(0)
    ids = []
    for n in (40, 9, 77, 0):
        ids += [0, 2, 3 + n % 40, 2, 0, 0, *dice.integers(1, 50, n), 0]
    return np.array(ids)


IDS = articles()
STARTS = np.cumsum([1, 47, 16, 84])
SIZES = {"words": np.array([1] * len(IDS)), "characters": IDS, "unknown": IDS == 1}


@dataclass(frozen=True)
class OneOfMany(Ranks):
    """A rank that gathers nothing from the others, so that its share is seen."""

    def gathered(self, value: T) -> list[T]:
        return [value]


def score(context: Context, world: int = 1, **flags: object) -> Score:
    """The shares of all ranks together."""
    config = EvalConfig(**flags)
    ranks = [OneOfMany(rank, world, torch.device("cpu")) for rank in range(world)]
    return Score.total(
        scoring.score(
            MODEL, scoring.Split("test", IDS, SIZES, lambda: STARTS), context, config, r
        ).score
        for r in ranks
    )


LOOKS = [
    (Context(tgt_len=4, mem_len=0), "never"),
    (Context(tgt_len=4, mem_len=6), "document"),
    (Context(tgt_len=5, mem_len=5, same_length=True, clamp_len=3), "never"),
    (Context(tgt_len=4, mem_len=6, ext_len=3), "document"),
    (Context(tgt_len=4, mem_len=6, ext_len=3), "never"),
    (Context(tgt_len=2**31 - 1, mem_len=2**31 - 1, clamp_len=2**31 - 1), "never"),
]


@pytest.mark.parametrize(("context", "reset"), LOOKS, ids=str)
def test_a_total_counts_every_token_but_the_first_once_for_every_batch_size(
    context: Context, reset: str
) -> None:
    """And for every number of ranks; counts of words and the rest as the nats."""
    one = score(context, reset=reset, batch_size=1)
    assert one.tokens == one.words + one.lines == len(IDS) - 1
    assert (one.words, one.characters, one.unknown) == (
        len(IDS) - 1,
        IDS[1:].sum(),
        (IDS[1:] == 1).sum(),
    )
    for batch_size, world in ((7, 2), (16, 1)):
        other = score(context, world, reset=reset, batch_size=batch_size)
        assert other.nats == pytest.approx(one.nats, rel=1e-9)
        counts = ("tokens", "bytes", "characters", "words", "unknown")
        assert [getattr(other, name) for name in counts] == [getattr(one, name) for name in counts]


@pytest.mark.parametrize(("reset", "mem_len"), [("never", 1), ("document", 6)])
def test_with_same_length_nats_do_not_depend_on_tgt_len(reset: str, mem_len: int) -> None:
    contexts = [
        Context(tgt_len=tgt_len, mem_len=mem_len, same_length=True) for tgt_len in (3, 8, 64)
    ]
    one, *others = (score(context, reset=reset, batch_size=3) for context in contexts)
    for other in others:
        assert other.nats == pytest.approx(one.nats, rel=1e-9)


@pytest.mark.parametrize("convention", ["original", "nvidia", "huggingface"])
def test_the_streams_of_others_can_be_shared_out(convention: str) -> None:
    context = Context(tgt_len=4, mem_len=6, same_length=True)
    one, other = (score(context, world, convention=convention, batch_size=5) for world in (1, 3))
    assert one.tokens == other.tokens == 5 * (len(IDS) // 5 - 1)
    assert other.nats == pytest.approx(one.nats, rel=1e-9)


def test_an_article_is_read_with_an_empty_memory() -> None:
    """Its nats are those of a text that holds it and the line break before it alone."""
    context = Context(tgt_len=4, mem_len=6)
    starts = np.flatnonzero((IDS == 2) & (np.roll(IDS, 1) == 0))
    ends = [*starts[1:], len(IDS)]
    lone = Ranks(0, 1, torch.device("cpu"))
    splits = [
        scoring.Split("test", IDS[a - 1 : b], {}, lambda: STARTS)
        for a, b in zip(starts, ends, strict=True)
    ]
    alone = [scoring.score(MODEL, split, context, EvalConfig(), lone) for split in splits]
    together = score(context, reset="document", batch_size=3)
    assert together.nats == pytest.approx(sum(row.score.nats for row in alone), rel=1e-9)
    assert together.nats != pytest.approx(score(context, batch_size=3).nats, rel=1e-4)


def test_every_process_has_a_stream_unless_told_otherwise() -> None:
    checkpoint = SimpleNamespace(model_config=ModelConfig(n_token=5))
    many = OneOfMany(0, 16, torch.device("cpu"))
    streams = {
        convention: scoring.default_streams(
            EvalConfig(convention=convention), Additions(), checkpoint, many
        )
        for convention in ("txl", "original")
    }
    assert streams == {"txl": 16, "original": 10}
    split = scoring.Split("valid", np.arange(10_000), {}, lambda: STARTS)
    for n, expected in ((None, 16), (4, 4)):
        config = TrainConfig(eval_batch_size=n)
        ranks = [OneOfMany(rank, 16, torch.device("cpu")) for rank in range(16)]
        asked = [scoring.evaluation_of(config, checkpoint.model_config, rank) for rank in ranks]
        shares = [
            s
            for r in zip(asked, ranks, strict=True)
            for s in scoring.streams_of(split, Context(), *r, n_warmup=0)
        ]
        assert sum(len(share.first_B) for share in shares) == expected


def test_lengths_default_to_those_of_the_training() -> None:
    """Each --tgt_len with each --mem_len; other settings once for all."""
    trained = Context(tgt_len=8, mem_len=9, clamp_len=5)
    assert EvalConfig().look_backs(trained) == [trained]
    asked = EvalConfig(tgt_len=(2, 4), mem_len=(0, 6), clamp_len=3, ext_len=1).look_backs(trained)
    lengths = [(2, 0), (2, 6), (4, 0), (4, 6)]
    assert asked == [Context(tgt_len=t, mem_len=m, clamp_len=3, ext_len=1) for t, m in lengths]
