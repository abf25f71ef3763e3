"""Relative effective context length: the formulas of the paper's appendix C, and the losses that they are fed with."""

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.measures.recl import losses_by_context, recl, table, window_streams
from lab.plots import run_names
from lab.recl import ReclConfig, losses_of
from tests.cli.conftest import Here, change_weights
from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.config import UsageError
from txl.data_utils.segments import RowStream
from txl.model.autocast import autocast
from txl.runtime.distributed import Ranks

LENGTHS = (100, 200, 300, 400)
IDS = np.random.default_rng(0).integers(0, 50, 60)


def made_up(n_model: int, n_position: int = 57) -> np.ndarray:
    """Nats (M, C, P) that fall with the context, by less and less, and not at every position."""
    dice = np.random.default_rng(1)
    first = dice.exponential(3.0, (n_model, 1, n_position))
    drops = (
        dice.normal(0.1, 0.3, (n_model, len(LENGTHS), n_position))
        / np.array([1, 2, 8, 40])[:, None]
    )
    return np.abs(first - drops.cumsum(1))


def gain_by_the_book(nats: np.ndarray, i: int, c: int, long: int, r: float) -> float:
    """g_i(c, c') of appendix C, position by position."""
    positions = range(nats.shape[2])
    b = {t: min(nats[m, c, t] for m in range(len(nats))) for t in positions}
    chosen = sorted(positions, key=lambda t: (-b[t], t))[: round(r * len(b))]

    def f(length: int) -> float:
        return sum(min(b[t], nats[i, length, t]) for t in chosen) / len(chosen)

    return (math.exp(f(c)) - math.exp(f(long))) / math.exp(f(c))


@pytest.mark.parametrize(("r", "n_model"), [(0.1, 3), (0.5, 3), (1.0, 3), (1.0, 1)])
def test_gains_and_lengths_are_those_of_the_paper(r: float, n_model: int) -> None:
    """A model alone is its own baseline."""
    nats = made_up(n_model)
    result = recl(nats, LENGTHS, (r,))
    for i in range(n_model):
        gains = [gain_by_the_book(nats, i, c, c + 1, r) for c in range(len(LENGTHS) - 1)]
        assert result.gains[i, 0].tolist() == pytest.approx(gains, rel=1e-12)
        c = next((c for c, gain in enumerate(gains) if gain < 0.01), None)
        assert result.of(i, 0) == (None if c is None else LENGTHS[c])


def test_losses_beyond_the_range_of_the_exponential_have_gains() -> None:
    result = recl(np.array([[[800.0], [799.0], [799.0]]]), (1, 2, 3), (1.0,))
    assert result.gains.tolist() == [[[pytest.approx(1 - math.exp(-1)), 0.0]]]
    assert result.reductions.tolist() == [[[math.inf, 0.0]]]


def test_gains_at_all_lengths_give_a_lower_bound() -> None:
    nats = np.stack([np.full(9, 4.0), np.full(9, 3.0), np.full(9, 2.0)])[None]
    result = recl(nats, (10, 20, 30), (0.1, 1.0))
    assert result.of(0, 0) is None
    assert result.as_dict(["a"])["models"][0]["by_share"][0]["recl"] is None
    assert ">= 30" in table(result, ["a"])


# the losses


def windows(context: Context, length: int, every: int) -> list[tuple[np.ndarray, RowStream]]:
    lengths = {
        "length": length,
        "every": every,
        "tgt_len": context.tgt_len,
        "ext_len": context.ext_len,
    }
    return [(stream.first_B, stream) for stream in window_streams(IDS, **lengths, batch_size=4)]


def loss_by_the_book(model: TransformerXL, t: int, n_context: int, context: Context) -> float:
    """Nats of token t, given the n_context tokens before it and nothing else."""
    memory = None
    for begin in range(t - n_context, t, context.tgt_len):
        first = max(t - n_context, begin - context.ext_len)
        piece = torch.from_numpy(IDS[first : min(begin + context.tgt_len, t)])
        hidden, memory = model(piece[None], memory, context)
    return -float(model.log_prob(hidden[0, -1])[IDS[t]])


@pytest.mark.parametrize(
    ("context", "lengths", "every"),
    [
        (Context(tgt_len=4, mem_len=7), (3, 6, 9), 1),
        (Context(tgt_len=20), (3, 6, 9), 1),
        (Context(tgt_len=4, mem_len=5, ext_len=2), (3, 6, 9), 1),
        (Context(tgt_len=1, mem_len=3), (3, 6, 9), 1),
        (Context(tgt_len=4, mem_len=20), (5, 10, 15), 3),
    ],
    ids=str,
)
def test_each_loss_has_its_context_but_for_the_distance_of_windows(
    context: Context, lengths: tuple[int, ...], every: int
) -> None:
    """With a window from every token exactly so much."""
    model, longest = build("adaptive" if every == 1 else "plain"), lengths[-1]
    read = windows(context, longest, every)
    nats = losses_by_context(model, read, context, lengths=lengths, every=every, n_token=len(IDS))
    assert nats.shape == (3, len(IDS) - longest)
    with torch.no_grad():
        for c, length in enumerate(lengths):
            for t in (longest, longest + 1, longest + 2, 58, 59):
                begin = -(-(t - length) // every) * every
                assert length - every < t - begin <= length
                expected = loss_by_the_book(model, t, t - begin, context)
                assert nats[c, t - longest] == pytest.approx(expected, rel=1e-6)


def test_what_no_window_reaches_is_no_number_and_the_mode_of_the_model_stays() -> None:
    model, context = build("plain").train(), Context(tgt_len=5, mem_len=5)
    nats = losses_by_context(
        model, windows(context, 10, 1)[:2], context, lengths=(5, 10), every=1, n_token=len(IDS)
    )
    assert np.isfinite(nats[1, :8]).all()
    assert np.isnan(nats[:, 8:]).all()
    assert model.training


@dataclass(frozen=True, kw_only=True)
class Beside(Ranks):
    """The first of two ranks, beside one whose losses are known; notes its own."""

    other_CP: np.ndarray
    own: list[np.ndarray]

    def gathered(self, value: np.ndarray) -> list[np.ndarray]:
        self.own.append(value)
        return [value, self.other_CP]


@pytest.mark.parametrize("lost", ["nothing", "its own", "the other's"])
def test_a_rank_refuses_losses_beyond_float16_when_all_have_been_heard(lost: str) -> None:
    model, context = build("plain").float(), Context(tgt_len=4, mem_len=10)
    study = ReclConfig(split="test", recl_step=5, recl_longest=10, recl_every=5)
    read = windows(context, 10, 5)
    other_CP = losses_by_context(
        model, read[1::2], context, lengths=(5, 10), every=5, n_token=len(IDS)
    )
    if lost == "the other's":
        other_CP[~np.isnan(other_CP)] = np.nan
    if lost == "its own":
        with torch.no_grad():
            model.layers[0].attn.v_net.weight.fill_(1e5)
    ranks = Beside(0, 2, torch.device("cpu"), other_CP=other_CP, own=[])
    own = [stream for _, stream in read[::2]]
    with autocast(model.device, torch.float16):
        if lost == "nothing":
            assert np.isfinite(
                losses_of("run", model, own, context, study, ranks, n_token=len(IDS))
            ).all()
        else:
            with pytest.raises(UsageError, match="--dtype float16: "):
                losses_of("run", model, own, context, study, ranks, n_token=len(IDS))
    assert len(ranks.own) == 1


@pytest.mark.parametrize(("every", "batch_size"), [(1, 4), (3, 1), (7, 4)])
def test_each_window_is_read_from_its_place_on_for_its_length(every: int, batch_size: int) -> None:
    seen: dict[int, list[int]] = {}
    for rank in (0, 1):
        shape = {"length": 10, "every": every, "batch_size": batch_size, "tgt_len": 4}
        for stream in window_streams(np.arange(30), **shape)[rank::2]:
            for segment in stream:
                rows = zip(stream.first_B, segment.target_BT, segment.counted_BT, strict=True)
                for first, target_T, counted_T in rows:
                    seen.setdefault(int(first), []).extend(target_T[counted_T].tolist())
    assert seen == {
        first: list(range(first + 1, min(first + 10, 29) + 1)) for first in range(0, 29, every)
    }


# the program

FEW = "--data text --split test --recl_step 10 --recl_longest 40 --recl_every 5"


def test_effective_context_lengths_are_written_drawn_and_told(here: Here) -> None:
    from matplotlib.image import imread

    shutil.copytree("run", "copy")
    result = here.result(f"recl run copy {FEW}")
    content = result["recl"]
    assert content["lengths"] == [10, 20, 30, 40]
    words = Path("text/test.txt").read_text()
    assert content["tokens"] == len(words.split()) + words.count("\n") - 40
    assert imread("recl.png").std() > 0
    for model, run in zip(content["models"], ("run", "copy"), strict=True):
        assert model["run"] == run
        assert [one["r"] for one in model["by_share"]] == [0.1, 0.5, 1.0]
        cells = ["(>= 40|[1234]0)"] * 3
        assert re.search(rf"^{run} +{' +'.join(cells)}$", result["out"], re.MULTILINE)
    (alone,) = here.result(f"recl run {FEW} --batch_size 7 --pictures seen")["recl"]["models"]
    assert alone["perplexity"] == pytest.approx(content["models"][0]["perplexity"], rel=1e-5)
    assert [one["recl"] for one in alone["by_share"]] == [
        one["recl"] for one in content["models"][1]["by_share"]
    ]


def test_figures_in_bfloat16_are_nearly_those_in_float32(here: Here, undrawn: None) -> None:
    line = f"recl run {FEW} --recl_step 5 --recl_longest 20"
    full, half = (here.result(f"{line} --dtype {dtype}") for dtype in ("float32", "bfloat16"))
    assert (full["dtype"], half["dtype"]) == ("float32", "bfloat16")
    for one, other in zip(full["recl"]["models"], half["recl"]["models"], strict=True):
        assert other["perplexity"] == pytest.approx(one["perplexity"], rel=2e-2)
        assert other["perplexity"] != pytest.approx(one["perplexity"], rel=1e-7)


@pytest.mark.parametrize(
    ("factor", "flags", "said"),
    [(1e6, "--dtype float16", "--dtype float16: "), (1e38, "", "its loss is nan")],
)
def test_a_loss_that_is_no_number_is_an_error(
    here: Here, factor: float, flags: str, said: str
) -> None:
    change_weights(Path("run"), lambda weight: weight * factor)
    assert said in here.refused(f"recl run {FEW} --recl_longest 20 {flags}")
    assert not list(Path().rglob("*.png"))


@pytest.mark.parametrize(
    ("runs", "flags", "said"),
    [
        ("", "--split test", "name the runs that are compared: python -m lab.recl RUN RUN ..."),
        ("run", "--split all", "is measured on one split; give --split valid or --split test"),
        (
            "run",
            "--mem_len 0 8",
            "--recl tries contexts of its own lengths; give one value at most",
        ),
        ("run", "--recl_every 11", "must be at most --recl_step (10)"),
        ("run", "--recl_longest 19", "at least two lengths are compared; use at least 20"),
        ("run", "--recl_longest 1000", "no token of the test split (99 tokens) has 1000 before it"),
        ("run nowhere", "", "nowhere: no such file or folder"),
    ],
)
def test_what_cannot_be_compared_is_refused(here: Here, runs: str, flags: str, said: str) -> None:
    assert said in here.refused(f"recl {runs} {FEW} {flags}")


def test_a_run_with_another_vocabulary_is_refused(
    here: Here, write_text: Callable[..., Path]
) -> None:
    write_text(Path("other"), words=["other", "words", "than", "those"])
    here("train --data other --max_step 1")
    said = (
        "--recl new/step_00000001: its vocabulary is not that of run/step_00000004; leave out one"
    )
    assert said in here.refused(f"recl run new {FEW}")


def test_runs_are_named_by_what_tells_them_apart() -> None:
    assert run_names(["runs/a", "/x/b"]) == ["a", "b"]
    assert run_names(["runs/a/step_1", "runs/b/step_1"]) == ["a/step_1", "b/step_1"]
    assert run_names(["runs/a", "runs/a"]) == ["a", "a"]
