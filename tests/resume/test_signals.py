"""Requests to stop: a run is saved at the next step, ends with the status asked for, and can go on unharmed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import long_test
from tests.forks import ENVIRONMENT, LIMIT_S, ROOT, wait_until
from tests.resume.runs import (
    command,
    evaluations,
    finish,
    finish_pair,
    hidden,
    last_step,
    records,
    torchrun,
    trained_steps,
    trapped,
    weights,
    workers,
)

pytestmark = pytest.mark.slow

# neither this step nor the next is one of an evaluation or of a checkpoint that is due anyway
ASKED_IN = 13
RARELY = ("--save_interval", "10")


@pytest.mark.parametrize(
    ("name", "status"),
    [("SIGTERM", 143), ("SIGUSR1", 0), ("SIGUSR2", 0), ("SIGINT", 130), ("SIGHUP", 129)],
)
def test_a_signal_stops_a_run_after_the_next_step(
    name: str, status: int, text: Path, alone: Path, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    finish(
        command(text, run, *RARELY),
        log,
        status=status,
        at=("step", ASKED_IN),
        send=signal.Signals[name],
    )
    assert last_step(run) == trained_steps(run)[-1] in (ASKED_IN, ASKED_IN + 1)
    assert f"after step {last_step(run)}; saved in" in log.read_text()
    assert "Traceback" not in log.read_text()
    finish(command(text, run, *RARELY, "--resume"), log)
    assert weights(run) == weights(alone)
    assert hidden(run) == []


def test_a_signal_to_one_of_two_ranks_stops_both_after_the_same_step(
    text: Path, pair: Path, tmp_path: Path
) -> None:
    """Had they stopped after different steps, one would wait for the other and end with another status."""
    run, logs = tmp_path / "run", tmp_path / "logs"
    trap = {"at": ("step", ASKED_IN), "send": signal.SIGUSR1}
    finish_pair(command(text, run, *RARELY), logs, traps=({}, trap))
    step = last_step(run)
    assert step == trained_steps(run)[-1] in (ASKED_IN, ASKED_IN + 1)
    # best and last
    assert {folder.name for folder in run.glob("step_*")} == {"step_00000012", f"step_{step:08d}"}
    assert hidden(run) == []
    finish_pair(command(text, run, *RARELY, "--resume"), logs)
    assert weights(run) == weights(pair)


def test_a_signal_in_an_evaluation_stops_both_ranks(text: Path, pair: Path, tmp_path: Path) -> None:
    run, logs = tmp_path / "run", tmp_path / "logs"
    trap = {"at": ("evaluation", 3), "send": signal.SIGTERM}
    finish_pair(command(text, run, *RARELY), logs, status=143, traps=({}, trap))
    assert last_step(run) == 18
    assert [step for step, _ in evaluations(run)] == [6, 12]
    finish_pair(command(text, run, *RARELY, "--resume"), logs)
    assert weights(run) == weights(pair)
    assert evaluations(run) == evaluations(pair)


@long_test
def test_a_request_while_the_program_starts_up_is_kept_until_it_can_be_answered(
    text: Path, tmp_path: Path
) -> None:
    """It comes when torch is imported."""
    run = tmp_path / "run"
    code = """
import os, runpy, signal, sys

class Asks:
    def find_spec(self, name, *_):
        if name == "torch":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGUSR1)

sys.meta_path.insert(0, Asks())
sys.path.insert(0, ".")
runpy.run_path("train.py", run_name="__main__")
"""
    words = [sys.executable, "-c", code, *command(text, run)]
    done = subprocess.run(
        words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "stopped by SIGUSR1 after step 1; saved in" in done.stderr


@long_test
def test_what_a_killed_torchrun_leaves_behind_saves_and_ends(
    text: Path, pair: Path, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    trap = {"at": ("step", ASKED_IN), "send": signal.SIGKILL, "rank": 1, "to": "parent"}
    words = (
        "--standalone",
        "--nproc_per_node=2",
        *trapped(trap, flags=command(text, run, "--eval_interval", "200")),
    )
    with torchrun(*words, run=run, log=log) as agent:
        assert agent.wait(timeout=LIMIT_S) == -signal.SIGKILL
        wait_until(lambda: workers(run) == {}, log)
    assert (
        f"torchrun has ended, so this run has too, after step {last_step(run)}; saved in"
        in log.read_text()
    )
    assert last_step(run) in (ASKED_IN, ASKED_IN + 1)
    assert hidden(run) == []
    finish_pair(command(text, run, "--resume"), tmp_path / "logs")
    assert weights(run) == weights(pair)


@long_test
@pytest.mark.parametrize("to", ["agent", "me"])
def test_sigterm_below_torchrun_leaves_no_process(
    to: str, text: Path, pair: Path, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    trap = {"at": ("step", ASKED_IN), "send": signal.SIGTERM, "rank": 1, "to": to}
    words = (
        "--standalone",
        "--nproc_per_node=2",
        *trapped(trap, flags=command(text, run, "--eval_interval", "200")),
    )
    with torchrun(*words, run=run, log=log) as agent:
        assert agent.wait(timeout=LIMIT_S) != 0
        assert workers(run) == {}
    said = log.read_text()
    assert [record["world_size"] for record in records(run) if record["kind"] == "start"] == [2]
    assert last_step(run) in (ASKED_IN, ASKED_IN + 1)
    assert f"after step {last_step(run)}; saved in" in said
    assert "lost contact" not in said
    assert [folder.name for folder in run.glob("step_*")] == [f"step_{trained_steps(run)[-1]:08d}"]
    assert hidden(run) == []
    finish_pair(command(text, run, "--resume"), tmp_path / "logs")
    assert weights(run) == weights(pair)
