"""The study of length from the command line: grids of lengths, losses by position, attention, effective contexts."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from txl.evaluation.plots import _apart, run_names

Call = Callable[..., Any]
Refused = Callable[..., str]
Study = Callable[..., dict[str, Any]]
FEW = ["--recl_step", 10, "--recl_longest", 40, "--recl_every", 5]


@pytest.fixture
def study(call: Call, run_folder: Path, text: Path, tmp_path: Path) -> Study:
    """Evaluates the trained model and returns the JSON file."""

    def study(*flags: object) -> dict[str, Any]:
        outcome = call("eval", "--work_dir", run_folder, "--data", text, "--json", tmp_path / "result.json", *flags)
        assert outcome.status == 0, outcome.err
        return json.loads((tmp_path / "result.json").read_text())

    return study


@pytest.fixture
def on_articles(call: Call, training: list[str], text: Path, tmp_path: Path) -> Study:
    """Trains a model on text with headings, evaluates it and returns the rows of the JSON file."""
    for split in ("train", "valid", "test"):
        lines = (text / f"{split}.txt").read_text().splitlines()
        (text / f"{split}.txt").write_text("\n".join([*lines[:4], " = bab = ", *lines[4:], ""]))
    assert call("train", *training, "--max_step", 1).status == 0

    def study(*flags: object) -> dict[str, Any]:
        outcome = call("eval", "--work_dir", tmp_path / "new_run", "--json", tmp_path / "result.json", *flags)
        assert outcome.status == 0, outcome.err
        return json.loads((tmp_path / "result.json").read_text())["rows"]

    return study


# grids


def test_every_segment_length_is_tried_with_every_memory_length(study: Study) -> None:
    rows = study("--split", "test", "--tgt_len", 3, 8, "--mem_len", 0, 4)["rows"]
    assert [(row["tgt_len"], row["mem_len"]) for row in rows] == [(3, 0), (3, 4), (8, 0), (8, 4)]


@pytest.mark.parametrize("flags", ["--tgt_len 3 8", "--mem_len 0 4", "--tgt_len 3 8 --mem_len 0 4"])
def test_a_grid_makes_a_picture_beside_the_json(study: Study, tmp_path: Path, flags: str) -> None:
    study(*flags.split())
    assert imread(tmp_path / "context.png").size > 0


def test_a_row_of_a_grid_is_what_its_lengths_alone_give(study: Study) -> None:
    grid = study("--split", "test", "--tgt_len", 3, 8, "--mem_len", 0, 4)["rows"]
    for row in grid:
        (alone,) = study("--split", "test", "--tgt_len", row["tgt_len"], "--mem_len", row["mem_len"])["rows"]
        assert alone["nats"] == row["nats"]


def test_each_row_has_its_speed_and_its_peak_memory(study: Study) -> None:
    for row in study("--mem_len", 0, 4)["rows"]:
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])
        assert row["peak_bytes"] is None or row["peak_bytes"] > 2**20


def test_labels_of_close_lengths_do_not_touch() -> None:
    axes = Figure(figsize=(6, 4)).subplots()
    lengths = [0, 64, 65, 128, 640]
    axes.set_xscale("symlog", linthresh=64)
    axes.plot(lengths, lengths)
    assert _apart(axes, lengths) == [0, 65, 128, 640]


def test_runs_are_named_by_what_tells_them_apart() -> None:
    assert run_names(["runs/a", "/x/b"]) == ["a", "b"]
    assert run_names(["runs/a/step_1", "runs/b/step_1"]) == ["a/step_1", "b/step_1"]
    assert run_names(["runs/a", "runs/a"]) == ["a", "a"]


# losses by position


def test_losses_by_position_sum_to_the_row(on_articles: Study) -> None:
    rows = on_articles("--loss_by_position", "--mem_len", 0, 6, "--batch_size", 3)
    assert len(rows) == 4
    for row in rows:
        for name in ("loss_by_position", "loss_by_distance"):
            assert sum(one["tokens"] for one in row[name]) == row["tokens"]
            assert sum(one["nats"] for one in row[name]) == pytest.approx(row["nats"], rel=1e-9)
        assert row["loss_by_position"][-1]["to"] == 7


@pytest.mark.parametrize("flags", ["--reset document", "--convention original", "--convention nvidia"])
def test_losses_by_position_sum_to_the_row_under_every_rule(on_articles: Study, flags: str) -> None:
    for row in on_articles("--loss_by_position", *flags.split(), "--batch_size", 2, "--mem_len", 6):
        assert sum(one["tokens"] for one in row["loss_by_distance"]) == row["tokens"]
        assert sum(one["nats"] for one in row["loss_by_position"]) == pytest.approx(row["nats"], rel=1e-9)


def test_losses_by_position_are_drawn_and_told(call: Call, run_folder: Path, text: Path) -> None:
    out = call("eval", "--work_dir", run_folder, "--data", text, "--loss_by_position", "--split", "test").out
    assert imread(run_folder / "position.png").size > 0
    assert "test, tgt_len 8, mem_len 8: position in the segment" in out
    assert "no headings like '= Title ='" in out


def test_pictures_that_are_not_asked_for_are_not_drawn(study: Study, run_folder: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run_folder.glob("*.png")}  # of tests that asked for some
    study()
    assert {path: path.stat().st_mtime_ns for path in run_folder.glob("*.png")} == before
    assert list(tmp_path.glob("*.png")) == []


# attention


def test_attention_by_distance_is_drawn_and_written(study: Study, tmp_path: Path) -> None:
    rows = study("--attention_by_distance", "--mem_len", 0, 5)["rows"]
    assert max(imread(tmp_path / "attention.png").shape) <= 2400
    for row in rows:
        shown = row["attention_by_distance"]
        assert shown["tokens"] == row["tokens"]
        assert shown["bins"][-1]["to"] == row["tgt_len"] + row["mem_len"] - 1
        for head in (head for layer in shown["share"] for head in layer):
            assert sum(head) == pytest.approx(1, rel=1e-6)


# effective context lengths


@pytest.fixture
def recl(call: Call, run_folder: Path, text: Path, tmp_path: Path) -> Study:
    """Compares the trained model with copies of itself and returns the JSON file."""

    def recl(*flags: object, n_copy: int = 0) -> dict[str, Any]:
        runs = [run_folder, *(shutil.copytree(run_folder, tmp_path / f"copy{i}") for i in range(n_copy))]
        where = ["--data", text, "--json", tmp_path / "recl.json", "--split", "test"]
        outcome = call("eval", "--recl", *runs, *FEW, *where, *flags)
        assert outcome.status == 0, outcome.err
        return json.loads((tmp_path / "recl.json").read_text()) | {"out": outcome.out}

    return recl


def test_effective_context_lengths_are_written_drawn_and_told(recl: Study, run_folder: Path, tmp_path: Path) -> None:
    result = recl(n_copy=1)
    assert result["recl"]["lengths"] == [10, 20, 30, 40]
    assert [model["run"] for model in result["recl"]["models"]] == [str(run_folder), str(tmp_path / "copy0")]
    assert imread(tmp_path / "recl.png").size > 0
    for model in result["recl"]["models"]:
        assert [one["r"] for one in model["by_share"]] == [0.1, 0.5, 1.0]
        cells = ["(>= 40|[1234]0)"] * 3
        assert re.search(rf"^{re.escape(model['run'])} +{' +'.join(cells)}$", result["out"], re.MULTILINE)


def test_a_model_beside_itself_has_the_length_it_has_alone(recl: Study) -> None:
    alone, beside = recl()["recl"]["models"][0], recl(n_copy=1)["recl"]["models"]
    assert beside[0] | {"run": ""} == beside[1] | {"run": ""} == alone | {"run": ""}


def test_every_token_with_the_longest_context_before_it_is_compared(recl: Study, text: Path) -> None:
    words = (text / "test.txt").read_text()
    assert recl()["recl"]["tokens"] == len(words.split()) + words.count("\n") - 40


def test_effective_context_lengths_do_not_depend_on_the_batch_size(recl: Study) -> None:
    one, many = (recl("--batch_size", n)["recl"]["models"][0] for n in (1, 7))
    assert one["perplexity"] == pytest.approx(many["perplexity"], rel=1e-5)


def test_runs_with_other_vocabularies_are_not_compared(
    refused: Refused, call: Call, run_folder: Path, training: list[str], tmp_path: Path, write_text: Callable[..., Path]
) -> None:
    other = write_text(tmp_path / "other", words=["only", "four", "words", "here"])
    call("train", *training, "--data", other, "--max_step", 1)
    line = refused("eval", "--recl", run_folder, tmp_path / "new_run", "--split", "test")
    assert f"--recl {tmp_path / 'new_run'}" in line
    assert "leave out one" in line
