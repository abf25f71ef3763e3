"""Two hosts train together: a wire that is cut, and a rank that is killed on one of them."""

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
from tests.forks import LIMIT_S, free_port, wait_until
from tests.resume.runs import (
    command,
    hidden,
    is_stopped,
    last_step,
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
    train = shlex.join([sys.executable, *words]) + '; status=$?; echo "| ended with $status"; exit $status'
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


def test_both_hosts_tell_that_their_wire_is_cut_and_go_on_from_the_checkpoint_when_it_is_mended(
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


def test_a_rank_killed_on_one_host_is_restarted_and_both_go_on_from_the_checkpoint(
    text: Path, pair: Path, tmp_path: Path
) -> None:
    """The other rank, which writes, hangs meanwhile, so that only the victim's torchrun counts a restart and tells its
    process so: --overwrite must not be obeyed again."""
    run, logs = tmp_path / "run", [tmp_path / "0", tmp_path / "1"]
    place = f"127.0.0.1:{free_port()}"
    words = ("--nnodes=2", "--nproc_per_node=1", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-endpoint", place)
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
