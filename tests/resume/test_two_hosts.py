"""Two hosts train together: a wire that is cut, a rank that is killed on one of them, and a host that leaves and comes
back, while the run goes on with those that are there."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import long_test
from tests.forks import ENVIRONMENT, LIMIT_S, ROOT, free_port, wait_until
from tests.resume.runs import (
    command,
    finish,
    hidden,
    in_background,
    is_stopped,
    last_step,
    records,
    resumed_from,
    torchrun,
    trapped,
    weights,
    workers,
)

pytestmark = [pytest.mark.slow, long_test]


@contextlib.contextmanager
def on_both(
    hosts: Callable[..., list[str]], words: list[str], run: Path, log: Path
) -> Iterator[list[subprocess.Popen]]:
    """torchrun on both hosts, a process each; what is said on host a goes to the log's name with _a behind."""
    train = (
        shlex.join([sys.executable, *words])
        + '; status=$?; echo "| ended with $status"; exit $status'
    )
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                torchrun(
                    "--nnodes=2",
                    "--nproc_per_node=1",
                    "--rdzv-backend=c10d",
                    "--rdzv-endpoint=10.77.0.1:29400",
                    f"--rdzv-conf=is_host={side == 'a'}",
                    f"--local-addr=10.77.0.{number}",
                    *("--no-python", "bash", "-c", train),
                    run=run,
                    log=log.with_name(f"{log.name}_{side}"),
                    prefix=tuple(hosts("on", side)),
                )
            )
            for number, side in ((1, "a"), (2, "b"))
        ]


def test_both_hosts_tell_that_their_wire_is_cut_and_go_on(
    hosts: Callable[..., list[str]], text: Path, pair: Path, tmp_path: Path
) -> None:
    run, logs = tmp_path / "run", [tmp_path / "cut_a", tmp_path / "cut_b"]
    trap = {"at": ("step", 6), "send": signal.SIGSTOP, "rank": 0}
    flags, ended = command(text, run), "| ended with 1\n"
    with on_both(hosts, trapped(trap, flags=[*flags, "--timeout_s", "30"]), run, tmp_path / "cut"):
        wait_until(lambda: 0 in workers(run) and is_stopped(workers(run)[0]), logs[0])
        subprocess.run(hosts("cut"), check=True)
        os.kill(workers(run)[0], signal.SIGCONT)
        wait_until(lambda: all(ended in log.read_text() for log in logs), logs[1])
        # torchrun itself is killed here: on host b it waits for its own rendezvous for as long as TCP tries
    for rank, log in enumerate(logs):
        assert f"rank {rank} has lost contact with the other processes" in log.read_text()
        assert "Traceback" not in log.read_text().partition(ended)[0]
    assert last_step(run) == 4
    subprocess.run(hosts("mend"), check=True)
    with on_both(hosts, ["train.py", *flags, "--resume"], run, tmp_path / "mended") as agents:
        statuses = [agent.wait(timeout=LIMIT_S) for agent in agents]
    assert statuses == [0, 0], (tmp_path / "mended_a").read_text()
    assert resumed_from(run) == [None, 4]
    assert weights(run) == weights(pair)
    assert hidden(run) == []


def test_a_rank_killed_on_one_host_is_restarted(text: Path, pair: Path, tmp_path: Path) -> None:
    """The other rank, which writes, hangs meanwhile, so that only the victim's torchrun counts a restart and tells its
    process so: --overwrite must not be obeyed again."""
    run, logs = tmp_path / "run", [tmp_path / "0", tmp_path / "1"]
    place = f"127.0.0.1:{free_port()}"
    words = (
        "--nnodes=2",
        "--nproc_per_node=1",
        "--max-restarts=3",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint",
        place,
    )
    flags = command(text, run, "--overwrite")
    traps = [
        {"at": ("step", 6), "send": number, "rank": rank, "once": str(tmp_path / f"trapped_{rank}")}
        for rank, number in enumerate((signal.SIGSTOP, signal.SIGKILL))
    ]
    started = trapped(*traps, flags=flags)
    with (
        torchrun(*words, *started, run=run, log=logs[0]) as first,
        torchrun(*words, *started, run=run, log=logs[1]) as second,
    ):
        wait_until(lambda: 0 in workers(run) and is_stopped(workers(run)[0]), logs[0])
        stopped = workers(run)[0]
        told = f"Sending process {stopped} closing signal SIGTERM"
        wait_until(lambda: any(told in log.read_text() for log in logs), logs[0])
        os.kill(stopped, signal.SIGCONT)
        statuses = [first.wait(timeout=LIMIT_S), second.wait(timeout=LIMIT_S)]
    assert statuses == [0, 0], [log.read_text() for log in logs]
    resumed = resumed_from(run)
    assert resumed[0] is None
    assert len(resumed) > 1
    assert all(again is not None and again >= 4 for again in resumed[1:]), resumed
    assert weights(run) == weights(pair)
    assert hidden(run) == []


# elastic

FLAGS = "--adaptive --cutoffs 20 40 --dropout 0 --dropatt 0 --lr 0.0001 --max_step_scheduler 100000".split()


@contextlib.contextmanager
def host(
    on: list[str], rank: int, flags: list[str], run: Path, log: Path
) -> Iterator[subprocess.Popen]:
    """`run_wt103.sh train` on a host; at the end it is killed, and with the first host all processes of the run."""
    own = {
        "PYTHON": sys.executable,
        "NNODES": "1:2",
        "NODE_RANK": str(rank),
        "NPROC": "1",
        "MASTER_ADDR": "10.77.0.1",
    }
    own |= {"RDZV_CONF": "keep_alive_interval=1,last_call_timeout=2"}
    own |= {"PET_LOCAL_ADDR": f"10.77.0.{rank + 1}"}  # both have the name of this machine
    words = [*on, str(ROOT / "run_wt103.sh"), "train", "base", *flags]
    with in_background(
        words, run=run, log=log, environment=ENVIRONMENT | own, kills_workers=not rank
    ) as agent:
        yield agent


def test_a_host_leaves_and_comes_back(
    hosts: Callable[..., list[str]], text: Path, tmp_path: Path
) -> None:
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

    losses = [
        (record["step"], record["train/nll_nats"])
        for record in records(run)
        if record["kind"] == "train"
    ]
    n_step = len(losses)
    assert [step for step, _ in losses] == list(range(1, n_step + 1))
    alone = tmp_path / "alone"
    more = ["--max_step", str(n_step), "--eval_interval", "100000", "--save_interval", "100000"]
    finish(command(text, alone, *FLAGS, *more), tmp_path / "log")
    expected = [record["train/nll_nats"] for record in records(alone) if record["kind"] == "train"]
    assert [loss for _, loss in losses] == pytest.approx(expected, rel=1e-4)
