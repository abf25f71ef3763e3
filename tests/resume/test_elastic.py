"""Two hosts, of which one leaves and comes back: the run goes on with those that are there."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import long_test
from tests.forks import ENVIRONMENT, LIMIT_S, ROOT, wait_until
from tests.resume.runs import command, finish, in_background, last_step, records

pytestmark = [pytest.mark.slow, long_test]

FLAGS = "--adaptive --cutoffs 20 40 --dropout 0 --dropatt 0 --lr 0.0001 --max_step_scheduler 100000".split()


@contextlib.contextmanager
def host(on: list[str], rank: int, flags: list[str], run: Path, log: Path) -> Iterator[subprocess.Popen]:
    """`run_wt103.sh train` on a host; at the end it is killed, and with the first host all processes of the run."""
    own = {
        "PYTHON": sys.executable,
        "NNODES": "1:2",
        "NODE_RANK": str(rank),
        "NPROC": "1",
        "MASTER_ADDR": "10.77.0.1",
        "RDZV_CONF": "keep_alive_interval=1,last_call_timeout=2",
        "PET_LOCAL_ADDR": f"10.77.0.{rank + 1}",  # both have the name of this machine
    }
    words = [*on, str(ROOT / "run_wt103.sh"), "train", "base", *flags]
    with in_background(words, run=run, log=log, environment=ENVIRONMENT | own, kills_workers=not rank) as agent:
        yield agent


def test_a_host_leaves_and_comes_back(hosts: Callable[..., list[str]], text: Path, tmp_path: Path) -> None:
    run, logs = tmp_path / "run", [tmp_path / "a", tmp_path / "b"]
    flags = command(text, run, *FLAGS, "--max_step", "100000", "--eval_interval", "100000")
    sides = [hosts("on", side) for side in "ab"]

    def worlds() -> list[int]:
        return [record["world_size"] for record in records(run) if record["kind"] == "start"]

    def wait_for_steps() -> None:
        enough = (last_step(run) or 0) + 6
        wait_until(lambda: (last_step(run) or 0) >= enough, logs[0])

    with host(sides[0], 0, flags, run, logs[0]) as first:
        with host(sides[1], 1, flags, run, logs[1]) as second:
            wait_for_steps()
            second.send_signal(signal.SIGTERM)
            second.wait(timeout=LIMIT_S)
        wait_until(lambda: worlds() == [2, 1], logs[0])
        wait_for_steps()
        with host(sides[1], 1, flags, run, logs[1]) as second:
            wait_until(lambda: worlds() == [2, 1, 2], logs[0])
            wait_for_steps()
            first.send_signal(signal.SIGTERM)
            first.wait(timeout=LIMIT_S)

    losses = [(record["step"], record["train/nll_nats"]) for record in records(run) if record["kind"] == "train"]
    n_step = len(losses)
    assert [step for step, _ in losses] == list(range(1, n_step + 1))
    alone = tmp_path / "alone"
    more = ["--max_step", str(n_step), "--eval_interval", "100000", "--save_interval", "100000"]
    finish(command(text, alone, *FLAGS, *more), tmp_path / "log")
    expected = [record["train/nll_nats"] for record in records(alone) if record["kind"] == "train"]
    assert [loss for _, loss in losses] == pytest.approx(expected, rel=1e-4)
