"""The `txl` command, `txl estimate`, what `pip install .` gives, and what is set before the libraries are imported."""

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
from tests.cli.conftest import Here
from tests.conftest import long_test
from tests.forks import ROOT
from txl import TransformerXL
from txl.__main__ import main, show_programs
from txl.cli import launch
from txl.cli.launch import PROGRAMS
from txl.cli.run import run
from txl.commands.settings import shape_of
from txl.config import Context, ModelConfig
from txl.config import build as built

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
        ("txl recl run", "lab.recl RUN RUN"),
        ("txl study x.toml", "lab.studies FILE"),
        ("txl occurrences x.toml", "lab.studies.occurrences FILE"),
        ("txl fill x.md", "lab.studies.fill PAGE.md"),
        ("txl.studies x.toml", "lab.studies FILE"),
        ("txl.studies.occurrences x.toml", "lab.studies.occurrences FILE"),
        ("txl.studies.fill x.md", "lab.studies.fill PAGE.md"),
    ],
)
def test_a_program_that_moved_names_its_new_command(words: str, now: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words.split()], cwd=ROOT, capture_output=True, text=True
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert f"type python -m {now}" in line


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
    files = [path for folder in ("txl", "data_utils") for path in (ROOT / folder).rglob("*.py")]
    started = {
        path.relative_to(ROOT) for path in files if 'if __name__ == "__main__":' in path.read_text()
    }
    modules = {
        ".".join(path.with_suffix("").parts).removesuffix(".__main__") for path in started
    } - {"txl", "txl.commands.train_many"}
    same = {program.same for program in PROGRAMS.values()}
    scripts = {path.name for path in ROOT.glob("*.py")}
    aliases = {
        "./run_wt103.sh try",
        "python -m txl estimate",
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


# txl estimate

SMALL = "estimate --dataset wt2 --n_layer 2 --d_model 64 --n_head 2 --d_head 32 --d_inner 128 --tgt_len 16 --mem_len 16"
LIMITS = {
    "--gpu_gib 0.01": r"Memory is the limit: a GPU has 0.01 GiB and needs \S+ with --shard",
    "--gpu_gib 0.045": r"of 0.045 GiB would be needed without --shard; with it, ",
    "--tflops 1e-6 --mfu 0.01 --compile": "Computation is the limit",
    "--within 1e-6": "Communication is the limit",
    "--between 1e-6 --gpus_per_host 4": "Communication is the limit",
    "--gpu l40s --dtype float32": "Launches are the limit",
}


def test_the_table_and_the_file_say_the_same(here: Here) -> None:
    plan = here.result(
        f"{SMALL} --gpus 16 --gpus_per_host 4 --batch_size 32 --max_step 1000 --dropatt 0.1"
    )
    *table, last = plan["out"].splitlines()[2:]
    for at, name in enumerate(("DDP", "shards"), start=1):
        rows, of = (
            {row[0]: row[at] for row in (re.split(r"  +", line[2:]) for line in table)},
            plan[name],
        )
        assert rows["memory in all, GiB a GPU"] == f"{of['peak'] / 2**30:.2f}"
        assert of["peak"] == sum(of["memory"].values())
        assert rows["tokens per second"] == f"{of['tok_per_s']:,.0f}"
        assert of["tok_per_s"] * of["step_s"] == pytest.approx(32 * 16)
        assert rows["hours for 1000 steps"] == f"{of['step_s'] / 3.6:,.1f}"
    assert plan["limit"] in last


def test_a_plan_counts_gradients_and_state_of_what_learns(here: Here) -> None:
    every, last = (here.result(f"{SMALL} --gpus 2 --train {what}") for what in ("all", "last:1"))
    for kind in ("DDP", "shards"):
        assert last[kind]["memory"]["optimizer"] < every[kind]["memory"]["optimizer"] / 50
        assert last[kind]["memory"]["weights"] == every[kind]["memory"]["weights"]
        assert last[kind]["sent"] < every[kind]["sent"]
    said = "--train memory: --memory fifo has no weights that could learn"
    assert said in here.refused(f"{SMALL} --train memory")


def test_a_batch_that_does_not_divide_is_raised_and_what_divides_it_is_named(here: Here) -> None:
    out = here(f"{SMALL} --gpus 12 --batch_size 20 --batch_chunk 2").out
    assert (
        "does not divide into 12 processes times --batch_chunk 2, which can be 1, 2, 5, 10." in out
    )
    assert "These figures are for --batch_size 24." in out
    assert "does not divide" not in here(f"{SMALL} --gpus 12 --local_batch_size 2").out


def test_the_limit_is_named(here: Here) -> None:
    for flags, said in LIMITS.items():
        last = here(f"{SMALL} --gpus 8 --batch_size 8 {flags}").out.splitlines()[-1]
        assert re.search(said, last), flags
    here(f"{SMALL} --dataset text --n_token 50")  # whose size only the text knows


def test_a_graph_is_estimated_for_one_gpu_without_shards(here: Here) -> None:
    small = f"{SMALL} --gpu l40s --dtype float32 --batch_size 8"
    plan = here.result(f"{small} --cuda_graph")
    assert plan["DDP"]["launch_s"] == 0 < plan["shards"]["launch_s"]
    assert plan["limit"].startswith("Computation is the limit")
    assert here.result(small)["limit"].endswith("or try --compile or --cuda_graph.")
    assert here.result(f"{small} --gpus 8")["limit"].endswith("or try --compile.")
    refusal = here.refused(f"{small} --gpus 8 --cuda_graph")
    assert "--cuda_graph: for one process, and there are 8, where --compile has" in refusal
    for word, launches in (("on", False), ("auto", False), ("off", True)):
        plan = here.result(f"{small} --cuda_graph {word}")
        assert (plan["DDP"]["launch_s"] > 0) == launches
    assert here.result(f"{small} --gpus 8 --cuda_graph auto")["DDP"]["launch_s"] > 0


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
