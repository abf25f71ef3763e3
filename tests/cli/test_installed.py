"""What `pip install .` gives: the library and the console command, away from the checkout."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import long_test

ROOT = Path(__file__).parents[2]
TINY = "--dataset text --d_model 16 --n_layer 2 --n_head 2 --d_head 8 --d_inner 32 --batch_size 4 --tgt_len 8".split()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the package is installed into, from a copy: building writes into the source tree."""
    folder = tmp_path_factory.mktemp("installed")
    copy = folder / "source"
    copy.mkdir()
    for name in ("txl", "data_utils"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder / "site"), str(copy)], check=True, capture_output=True)
    return folder / "site"


@long_test
@pytest.mark.slow
def test_the_console_command_trains_evaluates_and_generates_elsewhere(
    installed: Path, tmp_path: Path, write_text: Callable[..., Path]
) -> None:
    """Also beside another project's data_utils.py."""
    (tmp_path / "data_utils.py").write_text("raise RuntimeError('not yours')\n")
    write_text(tmp_path / "text")
    assert (installed / "txl" / "py.typed").is_file()
    assert not (installed / "data_utils").exists()

    def txl(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(installed / "bin" / "txl"), *flags]
        env = os.environ | {"PYTHONPATH": str(installed)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    trained = txl("train", "--data", "text", "--work_dir", "run", "--max_step", "4", "--mem_len", "8", *TINY)
    assert trained.returncode == 0, trained.stderr
    assert txl("eval", "--work_dir", "run").returncode == 0
    assert txl("generate", "--work_dir", "run", "--length", "5").returncode == 0
    refused = txl("eval", "--work_dir", "nowhere")
    assert refused.returncode == 2
    assert refused.stderr.startswith("txl eval: --work_dir nowhere: no such folder")


@pytest.mark.parametrize(("name", "status"), [("--help", 0), ("", 2), ("dance", 2)])
def test_the_console_command_says_what_there_is(name: str, status: int) -> None:
    command = [sys.executable, "-m", "txl", *([name] if name else [])]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = outcome.stderr if status else outcome.stdout
    assert outcome.returncode == status
    assert "train|eval|generate|convert" in said
    assert len(said.splitlines()) == 1
