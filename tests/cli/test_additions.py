"""What eval.py adds to a model at test time: its flags, its rows, its store."""

import importlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Here, change_weights
from txl.config import UsageError
from txl.evaluation.config import CacheConfig, DynamicConfig
from txl.evaluation.test_time import Additions

FullDisk = Callable[[int], AbstractContextManager[None]]
STORE = "--knn_store store"
RMS = "--dynamic rms --dynamic_segments 5 --dynamic_lr 0.001"
SWITCHES = {
    "dynamic sgd": "--dynamic sgd",
    "dynamic rms": RMS,
    "cache": "--cache_size 30",
    "cache + knn": f"--cache_size 30 {STORE}",
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


def test_a_store_is_made_once(here: Here) -> None:
    first = rows(here, STORE)
    before = {path: path.stat().st_mtime_ns for path in Path("store").iterdir()}
    assert [path.name for path in sorted(before)] == ["keys.npy", "store.json", "values.npy"]
    assert rows(here, f"{STORE} --knn_lambda 0.1")[1]["nats"] == first[1]["nats"]
    assert {path: path.stat().st_mtime_ns for path in Path("store").iterdir()} == before


def test_a_store_that_another_evaluation_makes_meanwhile_is_used(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rows(here, STORE)
    shutil.move("store", "theirs")
    module = importlib.import_module("txl.evaluation.test_time")
    build = module.build_store

    def both(folder: Path, model: Any, segments: Iterable[Any], *args: Any, **how: Any) -> None:
        def then_theirs() -> Iterator[Any]:
            yield from segments
            shutil.copytree("theirs", folder)

        build(folder, model, then_theirs(), *args, **how)

    monkeypatch.setattr(module, "build_store", both)
    assert rows(here, STORE)[1]["nats"] == first[1]["nats"]
    assert sorted(path.name for path in Path().glob("*store*")) == ["store"]
    assert not list(Path().glob(".tmp*"))


def other_checkpoint() -> None:
    change_weights(Path("run"), lambda weight: weight * 1.01)


def other_text() -> None:
    *lines, one, other = Path("text/train.txt").read_text().splitlines(keepends=True)
    Path("text/train.txt").write_text("".join([*lines, other, one]))


@pytest.mark.parametrize(
    ("flags", "change", "what"),
    [
        ("", other_checkpoint, "another checkpoint"),
        ("", other_text, "another training text"),
        ("--knn_tokens 50", lambda: None, "another number of tokens"),
        ("--memory sinks --n_sink 2", lambda: None, "another memory"),
    ],
    ids=["checkpoint", "text", "size", "memory"],
)
def test_a_store_of_something_else_is_refused(
    here: Here, flags: str, change: Callable[[], None], what: str
) -> None:
    rows(here, f"{STORE} {flags}")
    if "--knn_tokens" in flags:
        assert json.loads(Path("store/store.json").read_text())["source"]["number_of_tokens"] == 50
    change()
    assert f"--knn_store store: made from {what}" in here.refused(f"eval {STORE}")


def test_a_full_disk_leaves_no_store(here: Here, full_disk: FullDisk) -> None:
    with full_disk(10_000):
        assert "keys.npy: File too large; make room" in here.refused(f"eval --split valid {STORE}")
    assert not Path("store").exists()


def test_without_a_training_text_what_needs_none_still_works(here: Here) -> None:
    Path("text/train.txt").unlink()
    for flags in (RMS, STORE):
        assert "text/train.txt: no such file" in here.refused(f"eval --split valid {flags}")
    for flags, added in {
        "--dynamic sgd --cache_size 5": "dynamic sgd + cache",
        "--cache_size 5": "cache",
    }.items():
        assert rows(here, flags)[1]["added"] == added


def test_values_at_the_edge_give_finite_losses(here: Here) -> None:
    for flags in ("--cache_size 30 --cache_theta 1e30", f"{STORE} --knn_temperature 1e-30"):
        assert math.isfinite(rows(here, flags)[1]["nats"])


def test_several_processes_cannot_adapt_one_set_of_weights() -> None:
    with pytest.raises(
        UsageError, match=r"^--dynamic sgd: adapts one set .*; run one process, not 2$"
    ):
        Additions(DynamicConfig(dynamic="sgd")).check("float32", world=2)
    Additions(cache=CacheConfig(cache_size=3)).check("float32", world=2)
