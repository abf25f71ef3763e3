"""What `pip install .` gives: the library and the console command, away from the checkout."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import txl
from tests.conftest import long_test
from txl.launch import PROGRAMS

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

    def command(*flags: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, str(installed / "bin" / "txl"), *flags]
        env = os.environ | {"PYTHONPATH": str(installed)}
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    trained = command("train", "--data", "text", "--work_dir", "run", "--max_step", "4", "--mem_len", "8", *TINY)
    assert trained.returncode == 0, trained.stderr
    assert command("eval", "--work_dir", "run").returncode == 0
    assert command("generate", "--work_dir", "run", "--length", "5").returncode == 0
    refused = command("eval", "--work_dir", "nowhere")
    assert refused.returncode == 2
    assert refused.stderr.startswith("txl eval: nowhere: no such file or folder")


@pytest.mark.parametrize(("name", "status"), [("--help", 0), ("", 2), ("dance", 2)])
def test_the_console_command_says_what_there_is(name: str, status: int) -> None:
    command = [sys.executable, "-m", "txl", *([name] if name else [])]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = outcome.stderr if status else outcome.stdout
    assert outcome.returncode == status
    assert all(program in said for program in PROGRAMS)
    assert len(said.splitlines()) == (1 if status else 2 + len(PROGRAMS))
    assert max(map(len, said.splitlines())) <= 120


def test_what_python_m_starts_and_what_txl_starts_are_one_list() -> None:
    """But for `python -m txl` itself."""
    files = [path for folder in ("txl", "data_utils") for path in (ROOT / folder).rglob("*.py")]
    started = {path.relative_to(ROOT) for path in files if 'if __name__ == "__main__":' in path.read_text()}
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__main__") for path in started} - {"txl"}
    same = {program.same for program in PROGRAMS.values()}
    scripts = {path.name for path in ROOT.glob("*.py")}
    aliases = {"python -m txl estimate", "python eval.py --text", "python eval.py --recl"}
    assert same - aliases == {f"python -m {m}" for m in modules} | {f"python {s}" for s in scripts}
    assert all(find_spec(program.module.removesuffix(".__main__")) for program in PROGRAMS.values())


def test_a_name_to_be_completed_is_among_those_that_txl_offers() -> None:
    assert dir(txl) == sorted(txl.__all__)
    assert all(hasattr(txl, name) for name in dir(txl))
