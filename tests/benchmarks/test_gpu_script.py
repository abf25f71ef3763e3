"""benchmarks/gpu.sh beside stand-ins for its parts: each is asked what it understands, and none stops the others."""

import argparse
import importlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("timeout"), reason="needs GNU coreutils, as gpu.sh does")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"


def run(folder: Path, cases: str, *, seconds: int = 585) -> tuple[int, str]:
    """Exit status and output, with a Python that does what `cases` of a shell say, by all its arguments."""
    python = folder / "python"
    python.write_text(f'#!/usr/bin/env bash\necho "$*" >>{folder}/calls\ncase "$*" in\n{cases}\nesac\n')
    python.chmod(0o755)
    environment = os.environ | {"PYTHON": str(python), "SECONDS_IN_ALL": str(seconds)}
    command = ["bash", str(SCRIPT), "out"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout


def table(out: str) -> dict[str, str]:
    """How each part ended."""
    lines = out.partition("==== parts\n")[2].splitlines()
    return {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line}


def test_all_parts_are_run_as_they_can_be_called_and_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out = run(tmp_path, "*gpu_check*) echo right something ;;\n*generation*) echo 7.0 tok/s 1 MiB ;;")
    assert status == 0
    assert "7.0 tok/s" in out
    assert "WRONG: 0 of" in out
    assert f"packed into {tmp_path}/out.tar.gz" in out
    ends = table(out)
    assert all(ends[name].endswith("s done") for name in ("correctness", "attention", "step-large", "compiled-large"))
    with tarfile.open(tmp_path / "out.tar.gz") as packed:
        assert {"out/attention.log", "out/check-0.log", "out/table.txt"} <= set(packed.getnames())

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


def test_a_part_that_fails_is_named_and_those_after_it_are_run(tmp_path: Path) -> None:
    cases = """
        *check-0*) echo right one; echo WRONG another; exit 1 ;;
        *gpu_check*) echo right one ;;
        *attention.json*) echo "first row 1.0 MiB"; exit 124 ;;
        *step-base*) echo "txl failed: out of memory" ;;
        *evaluation.json*) echo "no CUDA graph, reading without: why" >&2 ;;
        *profile*) exit 3 ;;
    """
    status, out = run(tmp_path, cases)
    assert status == 1
    ends = table(out)
    assert "status 1" in ends["correctness"]
    assert "stopped after" in ends["attention"]
    assert "a program failed" in ends["step-base"]
    assert "status 3" in ends["profile"]
    assert ends["generation"].endswith("s done")
    assert "first row 1.0 MiB" in out
    assert "evaluation.log:no CUDA graph, reading without: why" in out
    assert "WRONG: 1 of" in out


def test_what_takes_too_long_is_stopped_and_what_no_time_is_left_for_left_out(tmp_path: Path) -> None:
    status, out = run(tmp_path, "*check-0*) exec sleep 30 ;;", seconds=6)
    assert status == 1
    assert "stopped after 1 s" in table(out)["correctness"]
    _, out = run(tmp_path, "*) ;;", seconds=1)
    assert "left out: no time" in table(out)["attention"]


def test_files_of_others_are_not_removed(tmp_path: Path) -> None:
    assert run(tmp_path, "*) ;;")[0] == 0
    assert run(tmp_path, "*) ;;")[0] == 0  # its own may go
    for name in ("out/mine.log", "out/mine.json", "out.tar.gz"):
        shutil.rmtree(tmp_path / "out")
        (tmp_path / "out").mkdir()
        (tmp_path / "out.tar.gz").unlink(missing_ok=True)
        (tmp_path / name).write_text("mine")
        command = ["bash", str(SCRIPT), "out"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert done.returncode == 2
        assert f"{name}: not written by this script" in done.stderr
        assert (tmp_path / name).read_text() == "mine"
