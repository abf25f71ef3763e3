"""The comparison of position encodings runs, goes on, and leaves a table, a picture and a JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from benchmarks import positions
from benchmarks.positions import main

SMALL = "--d_model 16 --n_layer 2 --n_head 2 --d_head 8 --d_inner 16 --batch_size 4 --dtype float32"


def test_encodings_are_trained_and_read_at_several_lengths(
    call: Callable[..., Any], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs are called in this process; in the test below they are processes of their own."""

    def called(program: str, *flags: str) -> None:
        assert call(program.removesuffix(".py"), *flags).status == 0

    monkeypatch.setattr(positions, "called", called)
    out = tmp_path / "out"
    command = f"--encodings alibi rotary --steps 3 --dataset text --tgt_len 4 --mem_len 4 --out {out} {SMALL}".split()
    assert main(["--data", str(text), *command]) == 0
    results = json.loads((out / "positions.json").read_text())
    assert results["settings"]["lengths"] == [8, 16, 32, 64, 128]
    assert [row["position"] for row in results["rows"]] == ["alibi", "rotary"]
    assert all(len(row["perplexity"]) == 5 and min(row["perplexity"]) > 1 for row in results["rows"])
    table = (out / "positions.md").read_text()
    assert f"{results['rows'][1]['perplexity'][4]:.2f}" in table
    assert "128 (16x)" in table
    assert imread(out / "positions.png").std() > 0

    metrics = (out / "runs" / "alibi" / "metrics.jsonl").read_text()
    assert main(["--data", str(text), *command, "--times", "1", "4"]) == 0
    assert len((out / "runs" / "alibi" / "metrics.jsonl").read_text().splitlines()) <= len(metrics.splitlines()) + 2
    assert json.loads((out / "positions.json").read_text())["settings"]["lengths"] == [8, 32]
    assert sorted((out / "runs" / "alibi").glob("step_*"))[-1].name == "step_00000003"


@pytest.mark.slow
def test_an_encoding_that_fails_is_told_in_the_table_and_by_the_status(
    text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = f"--encodings rotary --steps 1 --dataset text --out {out} {SMALL} --d_head 5".split()
    assert main(["--data", str(text), *command]) == 1
    assert "| rotary | train.py: --d_head 5: --position rotary rotates pairs of channels" in capfd.readouterr().out
    assert "error" in json.loads((out / "positions.json").read_text())["rows"][0]
