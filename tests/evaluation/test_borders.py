"""Borders aside: each token is read late in its segment, in one of several shifted readings of the text."""

import contextlib
import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from tests.evaluation.test_eval_path import OneOfMany
from tests.laws.conftest import ENCODINGS, MEMORY_MODELS, MODELS, SMALL, build, context_of
from txl import Context, TransformerXL
from txl.config import UsageError
from txl.data_utils.segments import late_cuts
from txl.evaluation.config import EvalConfig
from txl.evaluation.rows import Row
from txl.language.model import LanguageModel
from txl.language.token_losses import losses_by_token
from txl.runs import scoring

IDS = np.random.default_rng(0).integers(0, 50, 30)
STARTS = np.array([3, 8, 9, 17])
WORDS = {"words": np.arange(30), "lines": np.zeros(30, dtype=np.int64)}
AT = {"tgt_len": 5, "mem_len": 6}
BESIDE = ["pre_lnorm_adaptive", "same", "reversible"]


def rows_of_ranks(
    model: TransformerXL, context: Context, world: int = 1, **flags: Any
) -> list[Row]:
    settings: dict[str, Any] = {"borders": "aside"} | flags
    config = EvalConfig(**settings)
    split = scoring.Split("test", IDS, WORDS, lambda: STARTS)
    ranks = [OneOfMany(rank, world, torch.device("cpu")) for rank in range(world)]
    return [scoring.score(model, split, context, config, rank, keeps_losses=True) for rank in ranks]


def nats_of(rows: list[Row]) -> np.ndarray:
    """Of all tokens; each was scored by one rank only."""
    nats = [row.tokens.nats_N for row in rows if row.tokens is not None]
    assert (np.sum([~np.isnan(one) for one in nats], axis=0) == [0] + [1] * (len(IDS) - 1)).all()
    return np.nansum(nats, axis=0)


def nats_by_the_book(model: TransformerXL, context: Context, starts: np.ndarray) -> np.ndarray:
    """Each token from a reading of its document in one row, in which a segment ends at most a quarter of a segment
    after the token."""
    nats = np.zeros(len(IDS))
    quarter = -(-context.tgt_len // 4)
    # the first of a document is predicted from the token before it
    begins = [0, *(int(start) - 1 for start in starts)]
    for begin, end in zip(begins, [*begins[1:], len(IDS) - 1], strict=True):
        for place in range(begin + 1, end + 1):
            in_segment = (place - 1 - begin) % context.tgt_len
            first = min(context.tgt_len, quarter * (in_segment // quarter + 1))
            borders = [begin, *range(begin + first, place, context.tgt_len)]
            nats[place] = nats_after(model, context, [*borders, place])
    return nats


def nats_after(model: TransformerXL, context: Context, borders: list[int]) -> float:
    """Of the token at the last border."""
    memory, hidden = None, torch.zeros(0)
    for a, b in itertools.pairwise(borders):
        first = max(borders[0], a - context.ext_len)
        hidden, memory = model(torch.from_numpy(IDS[None, first:b]), memory, context)
    return -float(model.log_prob(hidden[0, -1:]).detach()[0, IDS[borders[-1]]])


CASES = {
    **{name: AT for name in [*ENCODINGS, *BESIDE] if not name.startswith("floater")},
    **{name: {} for name in MEMORY_MODELS if name != "toy"},
    **{
        f"{name} without memory": {"mem_len": 0}
        for name in ("fifo", "compressive", "infini", "knn", "neural")
    },
    "plain ext_len": {"tgt_len": 6, "mem_len": 4, "ext_len": 3},
    "plain same_length": {"tgt_len": 7, "mem_len": 6, "same_length": True},
    **{f"plain segments of {n}": {"tgt_len": n, "mem_len": 6} for n in (2, 10, 100)},
}
"""Models of the list of all laws; those that need a package more read as the others do."""


@pytest.mark.parametrize("case", CASES)
def test_every_token_has_the_nats_of_a_reading_in_which_it_stands_late(case: str) -> None:
    name = case.split(" ")[0]
    torch.manual_seed(0)
    model = build(name, **SMALL | MODELS[name])
    context = context_of(name, **CASES[case])
    one = rows_of_ranks(model, context, batch_size=1)
    expected = nats_by_the_book(model, context, np.array([], dtype=np.int64))
    assert one[0].score.nats == pytest.approx(expected.sum(), rel=1e-9)
    assert nats_of(one) == pytest.approx(expected, rel=1e-5)
    assert one[0].score.words == WORDS["words"].sum()


@pytest.mark.parametrize("reset", ["never", "document"])
@pytest.mark.parametrize(("batch_size", "world"), [(1, 1), (3, 2), (7, 1), (50, 3)])
def test_neither_streams_nor_ranks_nor_documents_change_it(
    reset: str, batch_size: int, world: int
) -> None:
    model, context = build("pre_lnorm_adaptive", n_layer=2), Context(tgt_len=5, mem_len=7)
    starts = STARTS if reset == "document" else np.array([], dtype=np.int64)
    rows = rows_of_ranks(model, context, world, batch_size=batch_size, reset=reset)
    expected = nats_by_the_book(model, context, starts)
    assert sum(row.score.nats for row in rows) == pytest.approx(expected.sum(), rel=1e-9)
    assert nats_of(rows) == pytest.approx(expected, rel=1e-5)
    assert sum(row.score.words for row in rows) == WORDS["words"].sum()


def test_the_beginning_is_the_same_at_every_memory_length() -> None:
    """All of the text before it is in the segment."""
    model = build("plain", n_layer=2)
    near, far = (nats_of(rows_of_ranks(model, Context(tgt_len=8, mem_len=n))) for n in (0, 20))
    assert near[1:9] == pytest.approx(far[1:9], rel=1e-6)
    assert (np.abs(near[9:] - far[9:]) > 1e-4).all()


def test_every_token_has_three_quarters_of_a_segment_before_it() -> None:
    for tgt_len in (1, 2, 3, 4, 5, 10, 16):
        (row,) = rows_of_ranks(build("plain", n_layer=1), Context(tgt_len=tgt_len))
        assert row.tokens is not None
        least = [min(place, tgt_len - -(-tgt_len // 4) + 1) for place in range(1, len(IDS))]
        assert (row.tokens.visible_N[1:] >= least).all()


@pytest.mark.parametrize("reset", ["never", "document"])
@pytest.mark.parametrize("tgt_len", [1, 2, 5, 10])
def test_what_both_ways_share_is_read_once(
    tgt_len: int, reset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("pre_lnorm_adaptive", n_layer=2)
    flags: dict[str, Any] = {"reset": reset, "batch_size": 3}
    config = EvalConfig(borders="both", mem_len=(0, 7), tgt_len=(tgt_len,), **flags)
    split = scoring.Split("test", IDS, WORDS, lambda: STARTS)
    ranks = OneOfMany(0, 1, torch.device("cpu"))
    ways = scoring.ways_of(config, Context())
    read: list[int] = []
    text_streams = scoring.text_streams

    def noted(*args: Any, **how: Any) -> list[Any]:
        streams = text_streams(*args, **how)
        read.append(len(streams))
        return streams

    monkeypatch.setattr(scoring, "text_streams", noted)
    rows = scoring.rows_of(model, split, ways, ranks, keeps_losses=True)
    n_group, n_shifted = read[0], len(late_cuts(tgt_len)) - 1
    assert read == [n_group, n_group, n_group * n_shifted, n_group * n_shifted]
    assert [row.borders for row in rows] == ["cut", "cut", "aside", "aside"]
    for (way, context), row in zip(ways, rows, strict=True):
        alone = scoring.score(model, split, context, way, ranks, keeps_losses=True)
        assert row.tokens is not None
        assert alone.tokens is not None
        assert row.tokens.nats_N == pytest.approx(alone.tokens.nats_N, rel=1e-5, nan_ok=True)
        assert row.tokens.visible_N.tolist() == alone.tokens.visible_N.tolist()
        assert row.score.nats == pytest.approx(alone.score.nats, rel=1e-6)
        assert dataclasses.replace(row.score, nats=0) == dataclasses.replace(alone.score, nats=0)


def test_what_does_not_go_with_it_is_refused() -> None:
    refused: list[dict[str, Any]] = [{"convention": "nvidia"}, {"attention_by_distance": True}]
    for flags in refused:
        with pytest.raises(UsageError, match="--borders"):
            EvalConfig(borders="aside", **flags)
    EvalConfig(borders="both", attention_by_distance=True)


@pytest.mark.parametrize("starts", [None, STARTS])
@pytest.mark.parametrize("name", ["pre_lnorm_adaptive", "infini"])
def test_from_python_the_losses_are_those_of_eval(name: str, starts: np.ndarray | None) -> None:
    model, context = build(name, **SMALL | MODELS[name]), Context(tgt_len=5, mem_len=7)
    lm = cast(
        LanguageModel,
        SimpleNamespace(model=model, model_config=model.config, computing=contextlib.nullcontext),
    )
    reset = "never" if starts is None else "document"
    for borders in ("cut", "aside"):
        batch_size = 1 if name == "infini" and starts is None else 4
        (row,) = rows_of_ranks(model, context, borders=borders, reset=reset, batch_size=batch_size)
        found = losses_by_token(lm, IDS, context, borders=borders, starts=starts, batch_size=4)
        assert found == pytest.approx(nats_of([row])[1:], rel=1e-5)
