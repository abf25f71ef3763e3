"""run_wt103.sh beside a stand-in for Python that notes what it is asked to run."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.forks import ROOT

Ran = tuple[int, str, list[str]]
HOSTS = {"NNODES": "2:4", "NODE_RANK": "1", "MASTER_ADDR": "h", "NPROC": "2"}
BAD: list[tuple[dict[str, str], str]] = [
    ({"NPROC": "abc"}, "NPROC=abc: must be a number"),
    ({"NNODES": "abc"}, "NNODES=abc: must be a number of hosts, or a range like 2:4"),
    ({"NNODES": "2:"}, "NNODES=2:: must be a number of hosts, or a range like 2:4"),
    ({"NNODES": "4:2"}, "NNODES=4:2: must be at least 1, and the smaller number first"),
    (HOSTS | {"NODE_RANK": "4"}, "NODE_RANK=4: hosts are counted from 0 to 3"),
    (HOSTS | {"NODE_RANK": "x"}, "NODE_RANK=x: must be a number"),
    ({"NNODES": "2", "NODE_RANK": "0"}, "MASTER_ADDR: NNODES is set"),
    ({"NNODES": "2", "MASTER_ADDR": "h"}, "NODE_RANK: NNODES is set"),
    ({"PYTHON": "/typo"}, "PYTHON=/typo: no Python that runs"),
]


def run(
    folder: Path, line: str | list[str], *, script: str = "run_wt103.sh", **environment: str
) -> Ran:
    """Exit status, what was said, and the programs that were run, each a line as one would type it."""
    python, calls = folder / "python", folder / "calls"
    python.write_text(
        f"""#!/usr/bin/env bash
[[ $2 != *count* ]] || echo 0
[[ $1 != -c ]] || exit 0
printf '%s\\0' "$@" END >>{shlex.quote(str(calls))}
"""
    )
    python.chmod(0o755)
    calls.write_text("")
    known = {name: value for name, value in os.environ.items() if name not in HOSTS}
    environment = known | {"PYTHON": str(python)} | environment
    words = line.split() if isinstance(line, str) else line
    done = subprocess.run(["bash", ROOT / script, *words], capture_output=True, env=environment)
    said = (done.stdout + done.stderr).decode(errors="surrogateescape")
    found = calls.read_bytes().decode(errors="surrogateescape").split("\0END\0")[:-1]
    return done.returncode, said, [shlex.join(call.split("\0")) for call in found]


@pytest.mark.parametrize(("environment", "said"), BAD)
def test_a_bad_variable_starts_nothing(
    tmp_path: Path, environment: dict[str, str], said: str
) -> None:
    status, line, calls = run(tmp_path, "train base", **environment)
    assert (status, calls) == (2, [])
    assert said in line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("flags", ["--work_dir mine", "--work-dir mine", "--lr 1 --work_dir=mine"])
def test_the_demo_evaluates_the_folder_it_trained_in_and_loses_none_of_a_user(
    tmp_path: Path, flags: str
) -> None:
    _, _, (train, generation, report) = run(tmp_path, f"demo {flags}")
    assert train.endswith(flags)
    assert "--overwrite" not in train
    assert " --work_dir=mine --prompt " in generation
    assert "-m txl report --runs=mine --split test " in report
    _, _, (train, *_) = run(tmp_path, "demo")
    assert "--overwrite" in train


def test_a_text_is_tried_with_the_words_that_are_given(tmp_path: Path) -> None:
    assert asked(
        tmp_path, ["try", "my text.txt", "--minutes", "2"]
    ) == "-m|txl|try|my text.txt|--minutes|2".split("|")


def test_help_runs_nothing(tmp_path: Path) -> None:
    for line in ("demo --help", "--help"):
        status, out, calls = run(tmp_path, line)
        assert (status, calls) == (0, [])
        assert out.startswith("usage: run_wt103.sh demo")


def test_hosts_that_come_and_go_resume_the_run(tmp_path: Path) -> None:
    """torchrun passes on the signals that a run understands."""
    _, _, (call,) = run(tmp_path, "train base --seed 3", RDZV_CONF="read_timeout=9", **HOSTS)
    assert {"SIGUSR1", "SIGUSR2", "SIGHUP"} <= {
        *call.partition("--signals_to_handle ")[2].split()[0].split(",")
    }
    for words in ("--nnodes 2:4", "--rdzv_conf is_host=false,read_timeout=9", "--max_restarts 100"):
        assert f" {words} " in call
    assert call.endswith("--seed 3 --resume")
    _, _, (call,) = run(tmp_path, "train base --resume 3", **HOSTS)
    assert call.endswith("--resume 3")
    _, _, (call,) = run(tmp_path, "train base", **HOSTS | {"NNODES": "2"})
    assert "--resume" not in call


def test_an_estimate_is_refused_with_what_there_is(tmp_path: Path) -> None:
    status, said, calls = run(tmp_path, "estimate large --gpus 64")
    assert (status, calls) == (2, [])
    assert "docs/scaling.md" in said
    assert said.count("\n") == 1


def test_data_go_to_where_they_are_read(tmp_path: Path) -> None:
    names = {
        "run_wt103.sh": ("wt103", "wikitext-103"),
        "scripts/run_lm1b.sh": ("lm1b", "one-billion-words"),
    }
    for script, (name, folder) in names.items():
        _, _, calls = run(tmp_path, "data --mirror m", script=script)
        assert calls == [
            f"-m data_utils.download {name} --out {shlex.quote(f'{ROOT}/data/{folder}')} --mirror m"
        ]


HOSTILE = [
    "a b",
    "--x",
    "two\nlines",
    "*",
    "$(touch it)",
    "`touch it`",
    "a[$(touch it)]",
    "; touch it",
    "é\udcff",
]


def asked(
    tmp_path: Path, words: list[str], *, script: str = "run_wt103.sh", **environment: str
) -> list[str]:
    """The words of the only program that was run."""
    status, said, calls = run(tmp_path, words, script=script, **environment)
    assert (status, len(calls)) == (0, 1), said
    return shlex.split(calls[0])


@pytest.mark.parametrize("word", HOSTILE)
def test_words_are_passed_on_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for what in ("train", "eval", "generate"):
        assert asked(tmp_path, [what, "base", "--prompt", word])[-2:] == ["--prompt", word]
    assert asked(tmp_path, ["data", word], script="scripts/run_ptb.sh")[-1] == word
    hosts = HOSTS | {"RUN_ID": word, "MASTER_ADDR": word, "RDZV_CONF": word}
    words = asked(tmp_path, ["train", "base"], **hosts)
    assert {f"--rdzv_id={word}", f"--rdzv_endpoint={word}:29500", f"is_host=false,{word}"} <= {
        *words
    }
    _, _, calls = run(tmp_path, ["demo", f"--work_dir={word}"])
    for call, flag in zip(calls, ("work_dir", "work_dir", "runs"), strict=True):
        assert f"--{flag}={word}" in shlex.split(call)
    assert not Path("it").exists()


@pytest.mark.parametrize("word", HOSTILE)
def test_no_variable_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    numbers = (
        "NPROC",
        "NNODES",
        "NODE_RANK",
        "MASTER_PORT",
        "MAX_RESTARTS",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    )
    for name in numbers:
        status, said, calls = run(tmp_path, ["train", "base"], **HOSTS | {name: word})
        assert (status, calls) == (2, [])
        assert f"{name}={word}: must be a number".replace("\n", " ") in said
        assert said.count("\n") == 1
    for script, name in (
        ("lab/benchmarks/gpu.sh", "SECONDS_IN_ALL"),
        ("scripts/slurm.sbatch", "SLURM_JOB_ID"),
    ):
        status, said, calls = run(tmp_path, ["1"], script=script, **{name: word})
        assert (status, calls) == (2, [])
        assert Path(script).name in said
    assert run(tmp_path, ["train", "base"], PYTHON=word)[0] == 2
    assert not Path("it").exists()


@pytest.mark.parametrize(
    "size", ["base base_modern", "", "*", "bas", "base\n", "base[$(touch it)]"]
)
def test_a_size_is_one_of_those_that_are_there(tmp_path: Path, size: str) -> None:
    status, said, calls = run(tmp_path, ["train", size])
    assert (status, calls) == (2, [])
    assert said.startswith("run_wt103.sh: train")
    assert said.endswith("give one of base base_modern large nv_base nv_large\n")
    assert said.count("\n") == 1


def test_a_command_that_is_none_is_named(tmp_path: Path) -> None:
    status, said, calls = run(tmp_path, ["nonsense"])
    assert (status, calls) == (2, [])
    assert said.startswith("run_wt103.sh: nonsense: no such command; give one of demo, try, data")
    status, said, _ = run(tmp_path, ["demo"], script="scripts/run_ptb.sh")
    assert "no such command; give one of data, train" in said


def test_a_flag_whose_text_names_resume_does_not_resume(tmp_path: Path) -> None:
    assert asked(tmp_path, ["train", "base", "--prompt", "a --resume b"], **HOSTS)[-1] == "--resume"


def test_other_folders_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CDPATH makes cd print, and go elsewhere."""
    (tmp_path / "scripts").mkdir()
    monkeypatch.chdir(ROOT)
    words = asked(tmp_path, ["train", "base"], script="scripts/run_ptb.sh", CDPATH=f"{tmp_path}:.")
    assert words[0] == f"{ROOT}/train.py"
    monkeypatch.chdir(tmp_path)
    words = asked(tmp_path, ["tests/laws"], script="run_tests.sh", PYTHON="./python")
    assert words[:2] == ["-m", "pytest"]
