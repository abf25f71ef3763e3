"""train.py --reset document: tokens attend to their own document only."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
FLAGS = ("--reset", "document", "--roll", "--varlen", "--dropout", "0.1")


@pytest.fixture
def articles(training: list[str], text: Path) -> list[str]:
    """Flags of a training on a text with a heading before every third line."""
    for path in text.glob("*.txt"):
        lines = path.read_text().splitlines()
        path.write_text("".join(" = bab = \n" * (i % 3 == 0) + f"{line}\n" for i, line in enumerate(lines)))
    return training


def last_loss(run: Path, kind: str) -> float:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line[f"{kind}/nll_nats"] for line in lines if line["kind"] == kind][-1]


def test_evaluations_follow_the_training(call: Call, articles: list[str], tmp_path: Path) -> None:
    run = tmp_path / "new_run"
    assert call("train", *articles, *FLAGS, "--eval_test").status == 0

    def nats(*flags: str) -> float:
        assert call("eval", "--work_dir", run, "--json", tmp_path / "x.json", *flags).status == 0
        (row,) = json.loads((tmp_path / "x.json").read_text())["rows"]
        return row["nats_per_token"]

    best = min(json.loads(p.read_text())["valid_nats_per_token"] for p in run.glob("step_*/config.json"))
    assert nats("--split", "valid") == pytest.approx(best, rel=1e-5)
    assert nats("--split", "test") == pytest.approx(last_loss(run, "test"), rel=1e-5)
    assert nats("--split", "test", "--reset", "never") != pytest.approx(last_loss(run, "test"), rel=1e-3)


def test_a_resumed_training_goes_on_as_if_never_stopped(call: Call, articles: list[str], tmp_path: Path) -> None:
    run, parts = tmp_path / "new_run", tmp_path / "parts"
    assert call("train", *articles, *FLAGS).status == 0
    in_parts = [*articles, *FLAGS, "--work_dir", parts, "--max_step_scheduler", 4]
    assert call("train", *in_parts, "--max_step", 3).status == 0
    assert call("train", *in_parts, "--resume").status == 0
    assert last_loss(parts, "valid") == last_loss(run, "valid")


def test_documents_make_a_difference_and_chunks_none(call: Call, articles: list[str], tmp_path: Path) -> None:
    def loss(name: str, *flags: str) -> float:
        assert call("train", *articles, "--work_dir", tmp_path / name, *flags).status == 0
        return last_loss(tmp_path / name, "train")

    plain, documents = loss("a"), loss("b", "--reset", "document")
    assert documents != pytest.approx(plain, rel=1e-4)
    assert loss("c", "--reset", "document", "--batch_chunk", "2", "--recompute") == pytest.approx(documents, rel=1e-5)
