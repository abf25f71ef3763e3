"""A run and exports that were written before memory crossed a layer's border are read as they were."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forks import ROOT

OLDER = ROOT / "tests/golden/older.tar.xz"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(OLDER) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def nats(call: Callable[..., Any], folder: str, *flags: str) -> float:
    outcome = call("eval", "--work_dir", folder, *flags, "--split", "test", "--json", "out.json")
    assert outcome.status == 0, outcome.err
    return json.loads(Path("out.json").read_text())["rows"][0]["nats"]


@pytest.mark.usefixtures("folder")
def test_a_run_is_evaluated_and_resumed_as_by_the_code_that_began_it(
    call: Callable[..., Any],
) -> None:
    """Of a compressive memory, whose settings stood among those of all models."""
    assert nats(call, "run") == pytest.approx(590.3752315, abs=1e-3)
    longer = ("--max_step", "8", "--max_step_scheduler", "8")
    outcome = call("train", "--work_dir", "run", "--resume", *longer)
    assert outcome.status == 0, outcome.err
    assert nats(call, "run") == pytest.approx(589.7013371, abs=1e-3)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("export", ["huggingface", "original"])
def test_an_export_gives_its_figures(call: Callable[..., Any], export: str) -> None:
    found = nats(call, export, "--data", "text", "--dataset", "text")
    assert found == pytest.approx(587.5152569, abs=1e-3)
