"""What eval.py adds to a model at test time: its flags and its rows."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Here
from txl.config import UsageError
from txl.evaluation.config import CacheConfig, DynamicConfig
from txl.evaluation.test_time import Additions

FullDisk = Callable[[int], AbstractContextManager[None]]
RMS = "--dynamic rms --dynamic_segments 5 --dynamic_lr 0.001"
SWITCHES = {
    "dynamic sgd": "--dynamic sgd",
    "dynamic rms": RMS,
    "cache": "--cache_size 30",
}


def rows(here: Here, flags: str = "") -> list[dict[str, Any]]:
    return here.rows(f"eval --split valid {flags}")


@pytest.mark.slow
@pytest.mark.parametrize("name", SWITCHES)
def test_the_plain_result_stands_beside_the_one_with_the_addition(here: Here, name: str) -> None:
    (alone,), result = rows(here), here.result(f"eval --split valid {SWITCHES[name]}")
    plain, added = result["rows"]
    assert (plain["added"], added["added"]) == ("", name)
    assert plain["nats"] == pytest.approx(alone["nats"], rel=1e-5)
    assert added["tokens"] == alone["tokens"]
    assert added["nats"] != pytest.approx(alone["nats"], rel=1e-4)
    lines = result["out"].splitlines()
    assert any(line.endswith(f"  {name}") for line in lines)


def test_dynamic_evaluation_reads_one_stream_unless_told_otherwise(here: Here) -> None:
    streams = ("", "--batch_size 1", "--batch_size 2")
    default, one, two = (rows(here, f"--dynamic sgd {flags}")[1]["nats"] for flags in streams)
    assert default == one != two


@pytest.mark.usefixtures("undrawn")
def test_each_memory_length_has_gradient_statistics_of_its_own(here: Here) -> None:
    both = rows(here, f"{RMS} --mem_len 0 8")
    alone = [row for mem_len in (0, 8) for row in rows(here, f"{RMS} --mem_len {mem_len}")]
    assert [row["nats"] for row in both] == pytest.approx([row["nats"] for row in alone], rel=1e-6)


def test_without_a_training_text_what_needs_none_still_works(here: Here) -> None:
    Path("text/train.txt").unlink()
    assert "text/train.txt: no such file" in here.refused(f"eval --split valid {RMS}")
    for flags, added in {
        "--dynamic sgd --cache_size 5": "dynamic sgd + cache",
        "--cache_size 5": "cache",
    }.items():
        assert rows(here, flags)[1]["added"] == added


def test_values_at_the_edge_give_finite_losses(here: Here) -> None:
    found = rows(here, "--cache_size 30 --cache_theta 1e30")
    assert math.isfinite(found[1]["nats"])


def test_several_processes_cannot_adapt_one_set_of_weights() -> None:
    with pytest.raises(
        UsageError, match=r"^--dynamic sgd: adapts one set .*; run one process, not 2$"
    ):
        Additions(DynamicConfig(dynamic="sgd")).check("float32", world=2)
    Additions(cache=CacheConfig(cache_size=3)).check("float32", world=2)
