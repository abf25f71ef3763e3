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

from tests.cli.conftest import Outcome, change_weights
from txl.config import UsageError
from txl.evaluation.config import CacheConfig, DynamicConfig
from txl.evaluation.test_time import Additions

Call = Callable[..., Outcome]
Refused = Callable[..., str]
Rows = Callable[..., list[dict[str, Any]]]
FullDisk = Callable[[int], AbstractContextManager[None]]


@pytest.fixture
def evaluation(run_folder: Path, text: Path) -> list[str]:
    """Flags of an evaluation that would succeed."""
    return ["--work_dir", str(run_folder), "--data", str(text), "--split", "valid"]


@pytest.fixture
def rows(call: Call, evaluation: list[str], tmp_path: Path) -> Rows:
    def rows(*flags: object) -> list[dict[str, Any]]:
        outcome = call("eval", *evaluation, "--json", tmp_path / "result.json", *flags)
        assert outcome.status == 0, outcome
        return json.loads((tmp_path / "result.json").read_text())["rows"]

    return rows


SWITCHES = {
    "dynamic sgd": ["--dynamic", "sgd"],
    "dynamic rms": ["--dynamic", "rms", "--dynamic_segments", "5", "--dynamic_lr", "0.001"],
    "cache": ["--cache_size", "30"],
    "knn": ["--knn_store", "STORE"],
    "cache + knn": ["--cache_size", "30", "--knn_store", "STORE"],
}


def flags_of(name: str, folder: Path) -> list[str]:
    return [word.replace("STORE", str(folder / "store")) for word in SWITCHES[name]]


@pytest.mark.parametrize("name", sorted(SWITCHES))
def test_the_plain_result_stands_beside_the_one_with_the_addition(rows: Rows, tmp_path: Path, name: str) -> None:
    plain = rows()
    both = rows(*flags_of(name, tmp_path))
    assert [row["added"] for row in both] == ["", name]
    assert both[0]["nats"] == pytest.approx(plain[0]["nats"], rel=1e-5)
    assert both[1]["tokens"] == plain[0]["tokens"]
    assert both[1]["nats"] != pytest.approx(plain[0]["nats"], rel=1e-4)


def test_the_table_and_the_lines_name_the_addition(call: Call, evaluation: list[str]) -> None:
    lines = call("eval", *evaluation, "--cache_size", 30).out.splitlines()
    assert [line for line in lines if line.endswith("| cache")]
    assert [line for line in lines if line.endswith("  cache")]


@pytest.mark.parametrize("name", ["cache", "knn", "cache + knn"])
def test_what_leaves_the_weights_alone_does_not_depend_on_the_batch_size(rows: Rows, tmp_path: Path, name: str) -> None:
    flags = flags_of(name, tmp_path)
    one, other = (rows(*flags, "--batch_size", n, "--tgt_len", 4, "--mem_len", 4)[1] for n in (1, 3))
    assert other["tokens"] == one["tokens"]
    assert other["nats"] == pytest.approx(one["nats"], rel=1e-5)


def test_dynamic_evaluation_reads_one_stream_unless_told_otherwise(rows: Rows) -> None:
    default, one, two = (
        rows("--dynamic", "sgd", *flags)[1]["nats"] for flags in ([], ["--batch_size", 1], ["--batch_size", 2])
    )
    assert default == one != two


def test_each_memory_length_has_gradient_statistics_of_its_own(rows: Rows) -> None:
    flags = flags_of("dynamic rms", Path())
    both = rows(*flags, "--mem_len", 0, 8)
    alone = [row for mem_len in (0, 8) for row in rows(*flags, "--mem_len", mem_len)]
    assert [row["nats"] for row in both] == pytest.approx([row["nats"] for row in alone], rel=1e-6)


def test_a_store_is_made_once(rows: Rows, tmp_path: Path) -> None:
    first = rows(*flags_of("knn", tmp_path))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").iterdir()}
    assert [path.name for path in sorted(before)] == ["keys.npy", "store.json", "values.npy"]
    assert rows(*flags_of("knn", tmp_path), "--knn_lambda", 0.1)[1]["nats"] == first[1]["nats"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").iterdir()} == before


def test_a_store_that_another_evaluation_makes_meanwhile_is_used(
    rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rows(*flags_of("knn", tmp_path))
    theirs = shutil.move(tmp_path / "store", tmp_path / "theirs")
    module = importlib.import_module("txl.evaluation.test_time.prepared")
    build = module.build_store

    def both(folder: Path, model: Any, segments: Iterable[Any], *args: Any, **how: Any) -> None:
        def then_theirs() -> Iterator[Any]:
            yield from segments
            shutil.copytree(theirs, folder)

        build(folder, model, then_theirs(), *args, **how)

    monkeypatch.setattr(module, "build_store", both)
    assert rows(*flags_of("knn", tmp_path))[1]["nats"] == first[1]["nats"]
    assert sorted(path.name for path in tmp_path.glob("*store*")) == ["store"]
    assert not list(tmp_path.glob(".tmp*"))


def test_a_store_of_another_checkpoint_is_refused(
    rows: Rows, refused: Refused, evaluation: list[str], run_folder: Path, tmp_path: Path
) -> None:
    rows(*flags_of("knn", tmp_path))
    change_weights(run_folder, lambda weight: weight * 1.01)
    line = refused("eval", *evaluation, *flags_of("knn", tmp_path))
    assert f"--knn_store {tmp_path / 'store'}: made from another checkpoint" in line


def test_a_store_of_another_text_is_refused(
    rows: Rows, refused: Refused, evaluation: list[str], text: Path, tmp_path: Path
) -> None:
    rows(*flags_of("knn", tmp_path))
    train = text / "train.txt"
    *lines, one, other = train.read_text().splitlines(keepends=True)
    train.write_text("".join([*lines, other, one]))
    assert "made from another training text" in refused("eval", *evaluation, *flags_of("knn", tmp_path))


def test_a_store_of_another_size_is_refused(
    rows: Rows, refused: Refused, evaluation: list[str], tmp_path: Path
) -> None:
    rows(*flags_of("knn", tmp_path), "--knn_tokens", 50)
    assert json.loads((tmp_path / "store" / "store.json").read_text())["source"]["number_of_tokens"] == 50
    assert "made from another number of tokens" in refused("eval", *evaluation, *flags_of("knn", tmp_path))


def test_a_full_disk_leaves_no_store(
    refused: Refused, evaluation: list[str], full_disk: FullDisk, tmp_path: Path
) -> None:
    with full_disk(10_000):
        line = refused("eval", *evaluation, *flags_of("knn", tmp_path))
    assert "keys.npy: File too large; make room" in line
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("name", ["dynamic rms", "knn"])
def test_a_missing_training_text_is_named(
    refused: Refused, evaluation: list[str], text: Path, tmp_path: Path, name: str
) -> None:
    (text / "train.txt").unlink()
    line = refused("eval", *evaluation, *flags_of(name, tmp_path))
    assert f"{text / 'train.txt'}: no such file" in line


def test_without_a_training_text_the_others_still_work(rows: Rows, text: Path) -> None:
    (text / "train.txt").unlink()
    assert [row["added"] for row in rows("--cache_size", 5)] == ["", "cache"]
    assert [row["added"] for row in rows("--dynamic", "sgd")] == ["", "dynamic sgd"]
    assert rows("--dynamic", "sgd", "--cache_size", 5)[1]["added"] == "dynamic sgd + cache"


def test_values_at_the_edge_give_finite_losses(rows: Rows, tmp_path: Path) -> None:
    for flags in (
        ["--cache_size", 30, "--cache_theta", 1e30],
        ["--knn_store", tmp_path / "store", "--knn_temperature", 1e-30],
    ):
        assert math.isfinite(rows(*flags)[1]["nats"])


@pytest.mark.parametrize("flags", ["", "--text TEXT", "--recl RUN --recl_step 10 --recl_longest 20 --recl_every 5"])
def test_a_loss_that_is_no_number_is_an_error(
    refused: Refused, evaluation: list[str], run_folder: Path, text: Path, flags: str
) -> None:
    change_weights(run_folder, lambda weight: weight * 1e38)
    words = flags.replace("TEXT", str(text / "test.txt")).replace("RUN", str(run_folder)).split()
    where = {"": evaluation, "--text": evaluation[:2], "--recl": evaluation[2:]}[flags.partition(" ")[0]]
    assert "its loss is nan" in refused("eval", *where, *words)


def test_several_processes_cannot_adapt_one_set_of_weights() -> None:
    with pytest.raises(
        UsageError, match=r"^--dynamic sgd: adapts one set of weights to one text; run one process, not 2$"
    ):
        Additions(DynamicConfig(dynamic="sgd")).check("float32", world=2)
    Additions(cache=CacheConfig(cache_size=3)).check("float32", world=2)
