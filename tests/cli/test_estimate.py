"""`txl estimate`: what a training would take, in a table, in a sentence and as JSON."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
SMALL = "--dataset wt2 --n_layer 2 --d_model 64 --n_head 2 --d_head 32 --d_inner 128 --tgt_len 16 --mem_len 16".split()


def test_the_table_and_the_file_say_the_same(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    flags = [*SMALL, "--gpus", 16, "--gpus_per_host", 4, "--batch_size", 32, "--max_step", 1000, "--dropatt", 0.1]
    outcome = call("estimate", *flags, "--json", path)
    assert (outcome.status, outcome.err) == (0, "")
    plan = json.loads(path.read_text())
    for at, name in enumerate(("DDP", "shards"), start=1):
        rows = {row[0]: row[at] for row in (re.split(r"  +", line[2:]) for line in outcome.out.splitlines()[2:-1])}
        of = plan[name]
        assert rows["memory in all, GiB a GPU"] == f"{of['peak'] / 2**30:.2f}"
        assert of["peak"] == sum(of["memory"].values())
        assert rows["tokens per second"] == f"{of['tok_per_s']:,.0f}"
        assert of["tok_per_s"] * of["step_s"] == pytest.approx(32 * 16)
        assert rows["hours for 1000 steps"] == f"{of['step_s'] / 3.6:,.1f}"
    assert plan["limit"] in outcome.out.splitlines()[-1]


def test_a_batch_that_does_not_divide_is_raised_and_what_divides_it_is_named(call: Call) -> None:
    out = call("estimate", *SMALL, "--gpus", 12, "--batch_size", 20, "--batch_chunk", 2).out
    assert "does not divide into 12 processes times --batch_chunk 2, which can be 1, 2, 5, 10." in out
    assert "These figures are for --batch_size 24." in out
    assert "does not divide" not in call("estimate", *SMALL, "--gpus", 12, "--local_batch_size", 2).out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--gpu_gib 0.01", r"Memory is the limit: a GPU has 0.01 GiB and needs \S+ with --shard"),
        ("--gpu_gib 0.045", r"of 0.045 GiB would be needed without --shard; with it, "),
        ("--tflops 1e-6", "Computation is the limit"),
        ("--tflops 1e-6 --mfu 0.01 --compile", "Computation is the limit"),
        ("--within 1e-6", "Communication is the limit"),
        ("--between 1e-6 --gpus_per_host 4", "Communication is the limit"),
        ("--gpu l40s --dtype float32", "Launches are the limit"),
    ],
)
def test_the_limit_is_named(call: Call, flags: str, said: str) -> None:
    outcome = call("estimate", *SMALL, "--gpus", 8, "--batch_size", 8, *flags.split())
    assert re.search(said, outcome.out.splitlines()[-1]), outcome


def test_the_size_of_a_vocabulary_that_only_the_text_knows_can_be_given(call: Call) -> None:
    assert call("estimate", *SMALL, "--dataset", "text", "--n_token", 50).status == 0
