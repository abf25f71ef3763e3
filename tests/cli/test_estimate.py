"""`txl estimate`: what a training would take, in a table, in a sentence and as JSON."""

import re

import pytest

from tests.cli.conftest import Here

SMALL = "estimate --dataset wt2 --n_layer 2 --d_model 64 --n_head 2 --d_head 32 --d_inner 128 --tgt_len 16 --mem_len 16"
LIMITS = {
    "--gpu_gib 0.01": r"Memory is the limit: a GPU has 0.01 GiB and needs \S+ with --shard",
    "--gpu_gib 0.045": r"of 0.045 GiB would be needed without --shard; with it, ",
    "--tflops 1e-6 --mfu 0.01 --compile": "Computation is the limit",
    "--within 1e-6": "Communication is the limit",
    "--between 1e-6 --gpus_per_host 4": "Communication is the limit",
    "--gpu l40s --dtype float32": "Launches are the limit",
}


def test_the_table_and_the_file_say_the_same(here: Here) -> None:
    plan = here.result(f"{SMALL} --gpus 16 --gpus_per_host 4 --batch_size 32 --max_step 1000 --dropatt 0.1")
    *table, last = plan["out"].splitlines()[2:]
    for at, name in enumerate(("DDP", "shards"), start=1):
        rows, of = {row[0]: row[at] for row in (re.split(r"  +", line[2:]) for line in table)}, plan[name]
        assert rows["memory in all, GiB a GPU"] == f"{of['peak'] / 2**30:.2f}"
        assert of["peak"] == sum(of["memory"].values())
        assert rows["tokens per second"] == f"{of['tok_per_s']:,.0f}"
        assert of["tok_per_s"] * of["step_s"] == pytest.approx(32 * 16)
        assert rows["hours for 1000 steps"] == f"{of['step_s'] / 3.6:,.1f}"
    assert plan["limit"] in last


def test_a_batch_that_does_not_divide_is_raised_and_what_divides_it_is_named(here: Here) -> None:
    out = here(f"{SMALL} --gpus 12 --batch_size 20 --batch_chunk 2").out
    assert "does not divide into 12 processes times --batch_chunk 2, which can be 1, 2, 5, 10." in out
    assert "These figures are for --batch_size 24." in out
    assert "does not divide" not in here(f"{SMALL} --gpus 12 --local_batch_size 2").out


def test_the_limit_is_named(here: Here) -> None:
    for flags, said in LIMITS.items():
        last = here(f"{SMALL} --gpus 8 --batch_size 8 {flags}").out.splitlines()[-1]
        assert re.search(said, last), flags
    here(f"{SMALL} --dataset text --n_token 50")  # whose size only the text knows
