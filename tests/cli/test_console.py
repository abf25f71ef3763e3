"""The `txl` command, what `pip install .` gives, and what is set before the libraries are imported."""

import errno
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import txl
from tests.conftest import long_test
from tests.forks import ROOT
from txl import TransformerXL
from txl.__main__ import main, show_programs
from txl.config import Context, ModelConfig
from txl.config import build as built
from txl.programs import launch
from txl.programs.launch import PROGRAMS
from txl.programs.run import run
from txl.runs.resolve import shape_of

TINY = "--dataset text --d_model 16 --n_layer 2 --n_head 2 --d_head 8 --d_inner 32 --batch_size 4 --tgt_len 8".split()


def wheel_of_the_clone(folder: Path) -> Path:
    """Built from a copy: building writes into the source tree."""
    copy = folder / "source"
    copy.mkdir()
    for name in ("txl", "data_utils"):
        shutil.copytree(
            ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(copy)], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(wheel: Path, folder: Path) -> Path:
    """An empty environment with nothing but this wheel, which sees the libraries of the present one."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    subprocess.run(
        [*pip, "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True
    )
    # a path that stands behind the environment's own, and whose .pth files are not followed
    (site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return site


@long_test
@pytest.mark.slow
def test_the_installed_command_works_elsewhere(
    tmp_path: Path, write_text: Callable[..., Path]
) -> None:
    """Also beside another project's data_utils.py."""
    site = installed(wheel_of_the_clone(tmp_path), tmp_path / "environment")
    (tmp_path / "data_utils.py").write_text("raise RuntimeError('not yours')\n")
    write_text(tmp_path / "text")
    assert (site / "txl" / "py.typed").is_file()
    assert not (site / "data_utils").exists()
    assert not (site / "lab").exists()
    found = [tmp_path / "environment" / "bin" / "python", "-c", "import txl; print(txl.__file__)"]
    of_wheel = subprocess.run(found, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(of_wheel.stdout.strip()) == site / "txl" / "__init__.py"

    def command(*flags: str) -> subprocess.CompletedProcess[str]:
        words = [str(tmp_path / "environment" / "bin" / "txl"), *flags]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)

    trained = command(
        "train", "--data", "text", "--work_dir", "run", "--max_step", "4", "--mem_len", "8", *TINY
    )
    assert trained.returncode == 0, trained.stderr
    assert command("eval", "--work_dir", "run").returncode == 0
    assert command("generate", "--work_dir", "run", "--length", "5").returncode == 0
    assert command("report", "run").returncode == 0
    assert (tmp_path / "run" / "report.html").is_file()
    tried = command("try", "text", "--minutes", "0.3")
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.splitlines()[-1].startswith("| too short to tell")
    assert [path.name for path in tmp_path.glob("runs/try-*/report.*")]
    refused = command("eval", "--work_dir", "nowhere")
    assert refused.returncode == 2
    assert refused.stderr.startswith("txl eval: nowhere: no such file or folder")


@pytest.mark.parametrize(
    ("words", "now"),
    [
        ("txl recl run", "python -m lab.recl RUN RUN"),
        ("txl study x.toml", "python -m lab.studies FILE"),
        ("txl occurrences x.toml", "python -m lab.studies.occurrences FILE"),
        ("txl fill x.md", "python -m lab.studies.fill PAGE.md"),
        ("txl.studies x.toml", "python -m lab.studies FILE"),
        ("txl.studies.occurrences x.toml", "python -m lab.studies.occurrences FILE"),
        ("txl.studies.fill x.md", "python -m lab.studies.fill PAGE.md"),
        ("txl estimate --gpus 8", "docs/scaling.md"),
    ],
)
def test_a_program_that_is_gone_names_what_there_is(words: str, now: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words.split()], cwd=ROOT, capture_output=True, text=True
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert now in line


@pytest.mark.parametrize(("name", "status"), [("--help", 0), ("", 2), ("dance", 2)])
def test_txl_says_what_there_is(
    name: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["txl", *([name] if name else [])])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    said = err if status else out
    assert stop.value.code == status
    assert all(program in said for program in PROGRAMS)
    assert len(said.splitlines()) == (1 if status else 2 + len(PROGRAMS))
    assert max(map(len, said.splitlines())) <= 160


class Stopped(Exception):
    pass


def stop(name: str) -> None:
    raise Stopped(name)


def test_nobody_need_read_all_that_txl_says_of_its_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `txl --help | head` does."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        show_programs()


def test_a_program_gets_the_flags_behind_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["txl", "score", "my.txt", "--mem_len", "3"])
    monkeypatch.setattr("txl.__main__.launch", stop)
    with pytest.raises(Stopped, match="score"):
        main()
    assert sys.argv == ["txl score", "my.txt", "--mem_len", "3"]


def test_what_python_m_starts_and_what_txl_starts_are_one_list() -> None:
    """But for `python -m txl` itself, and what scripts/launch.sh alone starts."""
    files = list((ROOT / "txl").rglob("*.py"))
    started = {
        path.relative_to(ROOT) for path in files if 'if __name__ == "__main__":' in path.read_text()
    }
    modules = {
        ".".join(path.with_suffix("").parts)
        .removesuffix(".__main__")
        .replace("txl.data_utils.", "data_utils.")  # as in 2019
        for path in started
    } - {"txl", "txl.programs.train_many"}
    same = {program.same for program in PROGRAMS.values()}
    scripts = {path.name for path in ROOT.glob("*.py")}
    aliases = {
        "./run_wt103.sh try",
        "python -m txl read",
        "python -m txl report",
        "python eval.py --text",
    }
    assert same - aliases == {f"python -m {m}" for m in modules} | {f"python {s}" for s in scripts}
    assert all(find_spec(program.module.removesuffix(".__main__")) for program in PROGRAMS.values())


def test_a_name_to_be_completed_is_among_those_that_txl_offers() -> None:
    assert dir(txl) == sorted(txl.__all__)
    assert {name for name in dir(txl) if getattr(txl, name).__class__ is type} >= {
        "TransformerXL",
        "Context",
    }
    with pytest.raises(AttributeError, match=r"^module 'txl' has no attribute"):
        _ = txl.transformer


PASSIVE = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "20000"}


@pytest.mark.parametrize(
    "given", [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}], ids=str
)
def test_threads_spin_as_the_user_says(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PASSIVE:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "import_module", stop)
    with pytest.raises(Stopped):
        launch.launch("eval")
    assert {name: os.environ[name] for name in PASSIVE.keys() & os.environ.keys()} == (
        given or PASSIVE
    )


def test_the_shape_of_a_model_follows_from_its_text() -> None:
    """Cutoffs by the vocabulary; tails share their projection, as in the original, the shortlist does not; the tables
    are shared unless --not_tied."""
    sizes = {"n_layer": 1, "n_head": 1, "d_head": 4, "d_model": 8, "d_embed": 4, "d_inner": 4}

    def shape(n_token: int, dataset: str, **flags: Any) -> ModelConfig:
        return shape_of(sizes | flags, built(Context, flags)).of_words(n_token, dataset)

    assert shape(66, "text", adaptive=True).cutoffs == (4, 9, 49)
    assert shape(267_735, "wt103", adaptive=True).cutoffs == (20_000, 40_000, 200_000)
    assert shape(66, "text", tgt_len=5, mem_len=7, position="relative_keys").n_position == 12
    assert shape(66, "text", tgt_len=5, mem_len=7).own == {}
    clusters = {"cutoffs": (10, 30)}
    for flags in ({}, clusters, clusters | {"div_val": 2}, clusters | {"not_tied": True}):
        torch.manual_seed(0)
        model = TransformerXL(shape(50, "text", **flags))
        words_in, words_out = model.word_emb, model.softmax
        n = len(words_out.projs)
        theirs = [words_in.projs[0 if len(words_in.projs) == 1 else i] for i in range(n)]
        shared = [ours is their for ours, their in zip(words_out.projs, theirs, strict=True)]
        assert shared == [False, True, True][:n]
        tied = {
            ours is their for ours, their in zip(words_out.tables, words_in.tables, strict=True)
        }
        assert tied == {"not_tied" not in flags}


def test_memory_that_a_system_call_lacks_is_no_disk(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(argv: Sequence[str]) -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(SystemExit) as stop:
        run(lacks)
    assert stop.value.code == 2
    assert re.fullmatch(r"train\.py: out of memory: .*\n", capsys.readouterr().err)


def test_a_clone_has_the_text_library_under_both_names_once() -> None:
    """Without a link, so that a system without symbolic links has it too."""
    assert not (ROOT / "txl" / "data_utils").is_symlink()
    code = (
        "import data_utils.errors, txl.data_utils.errors, txl.data_utils\n"
        "from data_utils.corpus import Corpus\n"
        "from txl.data_utils.corpus import Corpus as same\n"
        "print(data_utils is txl.data_utils, data_utils.errors is txl.data_utils.errors, Corpus is same)\n"
        "print(Corpus.__module__, data_utils.errors.__spec__.name)"
    )
    python = [sys.executable, "-c", code]
    done = subprocess.run(python, capture_output=True, text=True, cwd=ROOT, check=True)
    names = "txl.data_utils.corpus txl.data_utils.errors"
    assert done.stdout == f"True True True\n{names}\n"
    program = [sys.executable, "-m", "data_utils.download", "--help"]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "usage: python -m data_utils.download" in done.stdout
