"""What ours is measured against: it computes the same thing, else the comparison says nothing. A worker answers, a
failure is told, and ratios are taken pair by pair."""

import dataclasses
import sys

import pytest
import torch

from lab.benchmarks import tokenise
from lab.benchmarks.attention import Case, inputs, ways
from lab.benchmarks.peers import Peer, compare, ratio, rows
from lab.benchmarks.shapes import READING, Shape
from tests.conftest import long_test
from txl.ops.rel_attention.naive import naive


@pytest.fixture
def shape() -> Shape:
    sizes = {
        "n_layer": 1,
        "n_head": 2,
        "d_head": 4,
        "d_model": 8,
        "d_inner": 16,
        "n_token": 30,
        "cutoffs": (10, 20),
    }
    return dataclasses.replace(READING["wt103-base"], **sizes, tgt_len=4, mem_len=6)


@long_test
def test_our_worker_does_every_task_and_says_why_it_cannot_do_one(shape: Shape) -> None:
    ours, broken = (
        Peer("txl", shape.to_json()),
        Peer("txl", dataclasses.replace(shape, attn_impl="fused").to_json()),
    )
    try:
        for task in ("evaluate", "generate", "train"):
            compare([ours], task, 2, pairs=1)
        compare([broken], "train", 1, pairs=1)
    finally:
        ours.close()
        broken.close()
    assert ours.error is None
    assert len(ours.seconds) == 3
    assert min(ours.seconds) > 0
    mine, theirs = rows([ours, broken], "tiny", "train", 8)
    assert mine["tok_per_s"] > 0
    assert mine["mfu_share"] > 0
    assert "--attn_impl fused: needs a GPU" in theirs["error"]


def test_bad_flags_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, message in (
        ("--text nowhere", "--text nowhere: No such file or directory; name a file of UTF-8 text"),
        (
            f"--text {__file__} --pairs 0",
            "argument --pairs: '0': must be a whole number, at least 1",
        ),
    ):
        monkeypatch.setattr(sys, "argv", ["tokenise", *flags.split()])
        with pytest.raises(SystemExit, match="2"):
            tokenise.main()
        assert capsys.readouterr().err.splitlines()[-1] == f"tokenise: error: {message}"


def test_ratios_are_taken_pair_by_pair_and_a_shape_travels_as_json(shape: Shape) -> None:
    """A machine that gets slower in one round slows both down."""
    assert Shape.of_json(shape.to_json()) == shape
    found = ratio([1.0, 2.0, 10.0], [3.0, 4.0, 30.0])
    assert (found.median, found.smallest, found.largest) == (3.0, 2.0, 3.0)


class Timed:
    """A program that has been timed."""

    def __init__(self, name: str, dtype: str, *seconds: float, error: str | None = None) -> None:
        self.name, self.dtype, self.seconds, self.error = name, dtype, list(seconds), error
        self.peak_bytes, self.facts = 2**20, {}


def test_equals_are_set_beside_equals_and_the_best_beside_the_best() -> None:
    timed = [
        Timed("txl", "float32", 2.0, 2.0, 2.0),
        Timed("other", "float32", 6.0, 8.0, 4.0),
        Timed("txl", "bfloat16", 1.0, 1.0, 2.0),
        Timed("other", "bfloat16", 5.0, 7.0, 5.5),
        Timed("broken", "bfloat16", error="no such dtype"),
    ]
    found = rows(timed, "tiny", "evaluate", 8)  # type: ignore[arg-type]
    same = [row.get("times_as_long", {}).get("median") for row in found]
    assert same == [None, 3.0, None, 5.0, None]
    best = [row.get("best_times_as_long", {}).get("median") for row in found]
    assert best == [None, None, None, 5.0, None]
    timed[2].seconds = [3.0, 3.0, 3.0]
    assert rows(timed, "tiny", "evaluate", 8)[3]["best_times_as_long"]["median"] == 2.75  # type: ignore[arg-type]


CASES = [Case(2, 3, 5, 7, 6), Case(1, 2, 8, 13, 0), Case(3, 1, 4, 1, 11), Case(1, 2, 3, 5, 19)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_time_first_formulation_is_relative_attention(case: Case) -> None:
    args = inputs(case, torch.device("cpu"), torch.float64)
    way = ways(case, args, None)["original"]()
    expected, dout_BNTH = (
        naive(*args, scale=case.H**-0.5),
        torch.randn(case.B, case.N, case.T, case.H).double(),
    )
    torch.testing.assert_close(way.call(), expected, atol=1e-12, rtol=0)
    theirs = torch.autograd.grad(way.call(), way.leaves, dout_BNTH)
    ours = torch.autograd.grad(expected, args, dout_BNTH)
    batch_first = [grad.permute(1, 2, 0, 3) if i < 3 else grad for i, grad in enumerate(theirs)]
    for their, our in zip(batch_first, ours, strict=True):
        torch.testing.assert_close(their.double(), our.double(), atol=1e-6, rtol=1e-6)
