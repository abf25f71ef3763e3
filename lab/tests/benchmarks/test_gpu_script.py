"""gpu.sh beside stand-ins for its benchmarks: each is asked what it understands, and none stops the others.
Without a GPU the real ones run with tiny models."""

import argparse
import importlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.conftest import long_test
from tests.forks import LIMIT_S, ROOT, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("timeout"), reason="needs GNU coreutils, as gpu.sh does"),
]

SCRIPT = ROOT / "lab" / "benchmarks" / "gpu.sh"


def run(folder: Path, part: int, cases: str, *, seconds: int = 585) -> tuple[int, str]:
    """Exit status and output, with a Python that does what `cases` of a shell say, by all its arguments."""
    python = folder / "python"
    python.write_text(
        f'#!/usr/bin/env bash\necho "$*" >>{folder}/calls\ncase "$*" in\n{cases}\nesac\n'
    )
    python.chmod(0o755)
    environment = os.environ | {"PYTHON": str(python), "SECONDS_IN_ALL": str(seconds)}
    command = ["bash", str(SCRIPT), str(part), "out"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, timeout=LIMIT_S
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def table(out: str) -> dict[str, str]:
    """How each benchmark ended."""
    lines = out.partition("==== benchmarks\n")[2].splitlines()
    return {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line}


ALL = {
    1: ["correctness", "eager-32", "beside"],
    2: ["attention", "head"],
    3: ["step-large", "growth"],
    4: ["train-nv-base"],
}
"""Some benchmarks of each part."""


@pytest.mark.parametrize("part", ALL)
def test_all_are_run_and_packed(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out = run(
        tmp_path, part, "*gpu_check*) echo right something ;;\n*.json*) echo 7.0 tok/s 1 MiB ;;"
    )
    assert status == 0
    assert "7.0 tok/s" in out
    assert "WRONG: 0 of" in out
    assert (tmp_path / "out" / f"part-{part}.txt").read_text() in out
    ends = table(out)
    assert all(ends[name].endswith("s done") for name in ALL[part])
    with tarfile.open(tmp_path / "out" / f"part-{part}.tar.gz") as packed:
        assert {f"part-{part}/{ALL[part][-1]}.log", f"part-{part}/table.txt"} <= set(
            packed.getnames()
        )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"part-{part}.txt",
        f"part-{part}.tar.gz",
    }

    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser) -> None:
        parse(parser)
        raise StopIteration

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    for call in (tmp_path / "calls").read_text().splitlines():
        _, module, *flags = shlex.split(call)
        monkeypatch.setattr(sys, "argv", [module, *flags])
        with pytest.raises(StopIteration):
            importlib.import_module(module).main()


def test_one_that_fails_is_named_and_those_after_it_are_run(tmp_path: Path) -> None:
    cases = """
        *check-0*) echo right one; echo WRONG another; exit 1 ;;
        *gpu_check*) echo right one ;;
        *eager-32.json*) echo "first row 1.0 MiB"; exit 124 ;;
        *compiled-256*) echo "txl failed: out of memory" ;;
        *evaluation.json*) echo "no CUDA graph, reading without: why" >&2 ;;
        *graph-32.json*) exit 3 ;;
    """
    status, out = run(tmp_path, 1, cases)
    assert status == 1
    ends = table(out)
    assert "status 1" in ends["correctness"]
    assert "stopped after" in ends["eager-32"]
    assert "a program failed" in ends["compiled-256"]
    assert "status 3" in ends["graph-32"]
    assert ends["compiled-large-16"].endswith("s done")
    assert "first row 1.0 MiB" in out
    assert "evaluation.log:no CUDA graph, reading without: why" in out
    assert "WRONG: 1 of" in out


def test_what_takes_too_long_is_stopped_and_what_no_time_is_left_for_left_out(
    tmp_path: Path,
) -> None:
    status, out = run(tmp_path, 1, "*eager-32*) exec sleep infinity ;;", seconds=20)
    assert status == 1
    assert "stopped after" in table(out)["eager-32"]
    _, out = run(tmp_path, 1, "*) ;;", seconds=1)
    assert "left out: no time" in table(out)["graph-32"]


def test_a_run_that_is_killed_leaves_what_it_has_measured(tmp_path: Path) -> None:
    """And the next one begins with the kernels that were compiled."""
    held = "touch killed; until [[ -e done ]]; do sleep 0.1; done"
    cases = f"*eager-32.json*) {held} ;;\n*) mkdir -p $TRITON_CACHE_DIR; touch $TRITON_CACHE_DIR/kernel ;;"
    python = tmp_path / "python"
    python.write_text(f'#!/usr/bin/env bash\ncd {tmp_path}\ncase "$*" in\n{cases}\nesac\n')
    python.chmod(0o755)
    command = ["bash", str(SCRIPT), "1", str(tmp_path / "out")]
    environment = os.environ | {"PYTHON": str(python), "TMPDIR": str(tmp_path)}
    script = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    wait_until((tmp_path / "killed").exists, tmp_path / "out" / "part-1.txt")
    os.killpg(script.pid, signal.SIGKILL)
    script.wait()
    (tmp_path / "done").touch()
    assert "check-graph" in table((tmp_path / "out" / "part-1.txt").read_text())
    with tarfile.open(tmp_path / "out" / "part-1.tar.gz") as packed:
        assert "part-1/check-graph.log" in packed.getnames()

    assert (
        run(tmp_path, 4, "*) mkdir -p $TRITON_CACHE_DIR; touch $TRITON_CACHE_DIR/kernel ;;")[0] == 0
    )
    _, out = run(tmp_path, 4, "*) ls $TRITON_CACHE_DIR | sed 's/^/| /' ;;")
    assert "| kernel" in out


@long_test
@pytest.mark.parametrize("part", [1, 2, 3, 4])
def test_every_benchmark_runs_without_a_gpu(part: int, tmp_path: Path) -> None:
    """However slowly: the limits are for a GPU that is lent for minutes."""
    environment = os.environ | {"PYTHON": sys.executable, "DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    environment["SECONDS_IN_ALL"] = str(20 * 585)
    command = ["bash", str(SCRIPT), str(part), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout
    ends = table((tmp_path / "out" / f"part-{part}.txt").read_text())
    assert all(
        end.endswith("done")
        for name, end in ends.items()
        if name not in ("WRONG:",) and "so far" not in end
    )


def test_a_part_that_there_is_not_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(["bash", str(SCRIPT), "5"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "bash lab/benchmarks/gpu.sh PART [FOLDER]" in done.stderr
