"""Extras that are not installed are named in one line."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("module", "library", "message"),
    [
        ("txl.hf", "transformers", r'needs transformers 5.4 or newer: pip install "txl\[hf\]"'),
        ("txl.lm_eval", "lm_eval.api.model", r'needs lm-evaluation-harness: pip install "txl\[lm-eval\]"'),
    ],
)
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, module: str, library: str, message: str) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=message):
        importlib.import_module(module)


def test_an_old_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("txl.hf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(__version__="4.57.6"))
    with pytest.raises(ImportError, match=r"needs transformers 5.4 or newer, this is 4.57.6"):
        importlib.import_module("txl.hf")


def test_the_command_of_the_harness_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "lm_eval.py").write_text("raise ImportError")
    command = [sys.executable, "-m", "txl.lm_eval", "--tasks", "wikitext"]
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install" in done.stderr
