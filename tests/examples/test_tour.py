"""The notebook runs from its first cell to its last."""

import json
from typing import Any

import pytest
import torch

from tests.forks import ROOT

NOTEBOOK = ROOT / "examples" / "tour.ipynb"


def test_every_cell_of_the_notebook_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a second of training; two segments are one pass, and the memory of the last is read."""
    monkeypatch.delenv("LLAMA", raising=False)
    names: dict[str, Any] = {}
    cells = [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    assert len(cells) == 10
    for i, cell in enumerate(cells):
        assert cell["outputs"] == []
        source = "".join(cell["source"]).replace("seconds = 25", "seconds = 1")
        exec(compile(source, f"cell {i + 1}", "exec"), names)
        assert capsys.readouterr().out
    assert names["difference"] < 1e-5
    assert (names["without"] - names["second"]).abs().max() > 1e-3
    assert 0 < names["attention_to_memory"](1) < 1
    assert not torch.is_inference_mode_enabled()
