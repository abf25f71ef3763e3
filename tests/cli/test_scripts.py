"""run_wt103.sh beside a stand-in for Python that notes what it is asked to run."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "run_wt103.sh"


def run(folder: Path, *words: str, **environment: str) -> tuple[int, str, list[str]]:
    """Exit status, what was said, and the programs that were run, by their words."""
    python, calls = folder / "python", folder / "calls"
    python.write_text(
        f'#!/usr/bin/env bash\n[[ $2 != *count* ]] || echo 0\n[[ $1 != -c ]] || exit 0\necho "$*" >>{calls}\n'
    )
    python.chmod(0o755)
    calls.write_text("")
    known = {name: value for name, value in os.environ.items() if name not in ("NPROC", "NNODES", "NODE_RANK")}
    done = subprocess.run(
        ["bash", SCRIPT, *words], capture_output=True, text=True, env=known | {"PYTHON": str(python)} | environment
    )
    return done.returncode, done.stdout + done.stderr, calls.read_text().splitlines()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"NPROC": "abc"}, "NPROC=abc: must be a number"),
        ({"NNODES": "abc"}, "NNODES=abc: must be a number"),
        ({"NNODES": "2", "NODE_RANK": "x", "MASTER_ADDR": "h"}, "NODE_RANK=x: must be a number"),
        ({"NNODES": "2", "NODE_RANK": "2", "MASTER_ADDR": "h"}, "NODE_RANK=2: hosts are counted from 0 to 1"),
        ({"NNODES": "2", "NODE_RANK": "0"}, "MASTER_ADDR: NNODES is set"),
        ({"NNODES": "2", "MASTER_ADDR": "h"}, "NODE_RANK: NNODES is set"),
        ({"PYTHON": "/typo"}, "PYTHON=/typo: no Python that runs"),
    ],
)
def test_a_bad_variable_starts_nothing(tmp_path: Path, environment: dict[str, str], said: str) -> None:
    status, line, calls = run(tmp_path, "train", "base", **environment)
    assert (status, calls) == (2, [])
    assert said in line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("words", [["--work_dir", "mine"], ["--work-dir", "mine"], ["--lr", "1", "--work_dir=mine"]])
def test_the_demo_evaluates_the_folder_it_trained_in_and_loses_none_of_a_user(tmp_path: Path, words: list[str]) -> None:
    _, _, (train, evaluation, generation) = run(tmp_path, "demo", *words)
    assert train.endswith(" ".join(words))
    assert "--overwrite" not in train
    assert "eval.py --work_dir mine " in evaluation
    assert "generate.py --work_dir mine " in generation
    _, _, (train, *_) = run(tmp_path, "demo")
    assert "--overwrite" in train


@pytest.mark.parametrize("words", [["demo", "--help"], ["--help"]])
def test_help_runs_nothing(tmp_path: Path, words: list[str]) -> None:
    status, out, calls = run(tmp_path, *words)
    assert (status, calls) == (0, [])
    assert out.startswith("usage: run_wt103.sh demo")


def test_torchrun_passes_on_the_signals_that_a_run_understands(tmp_path: Path) -> None:
    _, _, (call,) = run(tmp_path, "train", "base", NPROC="2")
    assert "SIGUSR1" in call.partition("--signals_to_handle ")[2].split()[0]


@pytest.mark.parametrize(
    ("script", "name", "folder"),
    [("run_wt103.sh", "wt103", "wikitext-103"), ("scripts/run_lm1b.sh", "lm1b", "one-billion-words")],
)
def test_data_loads_the_text_to_where_it_is_read(tmp_path: Path, script: str, name: str, folder: str) -> None:
    python, calls, root = tmp_path / "python", tmp_path / "calls", SCRIPT.parent
    python.write_text(f'#!/usr/bin/env bash\n[[ $1 = -c ]] || echo "$*" >{calls}\n')
    python.chmod(0o755)
    words = ["bash", root / script, "data", "--mirror", "m"]
    subprocess.run(words, check=True, env=os.environ | {"PYTHON": str(python)})
    assert calls.read_text() == f"-m data_utils.download {name} --out {root}/data/{folder} --mirror m\n"
