"""Two hosts train together: a wire that is cut, and a rank that is killed on one of them."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.resume.runs import command, hidden, last_step, records, torchrun, wait_until, weights, workers

pytestmark = pytest.mark.slow

TIMEOUT_S = 10


@contextlib.contextmanager
def on_both(
    hosts: Callable[..., list[str]], flags: list[str], run: Path, log: Path
) -> Iterator[list[subprocess.Popen]]:
    """torchrun on both hosts, a process each; what is said on host a goes to the log's name with _a behind."""
    train = shlex.join([sys.executable, "train.py", *flags]) + '; status=$?; echo "| ended with $status"; exit $status'
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
    flags = command(text, run, "--timeout_s", str(TIMEOUT_S))
    with on_both(hosts, flags, run, tmp_path / "cut"):
        wait_until(lambda: last_step(run), 60, logs[0])
        subprocess.run(hosts("cut"), check=True)
        wait_until(lambda: not workers(run), TIMEOUT_S + 20, logs[0])
        ended = "| ended with 1\n"
        wait_until(lambda: all(ended in log.read_text() for log in logs), 5, logs[1])
        # torchrun itself is killed here: on host b it waits for its own rendezvous for as long as TCP tries
    for rank, log in enumerate(logs):
        assert f"rank {rank} has lost contact with the other processes" in log.read_text()
        assert "Traceback" not in log.read_text().partition(ended)[0]
    step = last_step(run)
    assert step < last_step(pair)
    subprocess.run(hosts("mend"), check=True)
    with on_both(hosts, [*flags, "--resume"], run, tmp_path / "mended") as agents:
        statuses = [agent.wait(timeout=120) for agent in agents]
    assert statuses == [0, 0], (tmp_path / "mended_a").read_text()
    assert [record["resumed_from_step"] for record in records(run) if record["kind"] == "start"] == [None, step]
    assert weights(run) == weights(pair)
    assert hidden(run) == []


def test_a_rank_killed_on_one_host_is_restarted_and_both_go_on_from_the_checkpoint(
    text: Path, pair: Path, tmp_path: Path
) -> None:
    """The other rank, which writes, hangs meanwhile, so that only the victim's torchrun counts a restart and tells its
    process so: --overwrite must not be obeyed again."""
    run, logs = tmp_path / "run", [tmp_path / "0", tmp_path / "1"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{probe.getsockname()[1]}"
    words = ("--nnodes=2", "--nproc_per_node=1", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-endpoint", place)
    flags = command(text, run, "--overwrite")
    with (
        torchrun(*words, "train.py", *flags, run=run, log=logs[0]) as first,
        torchrun(*words, "train.py", *flags, run=run, log=logs[1]) as second,
    ):
        wait_until(lambda: last_step(run), 60, logs[0])
        step, ranks = last_step(run), workers(run)
        os.kill(ranks[0], signal.SIGSTOP)
        os.kill(ranks[1], signal.SIGKILL)
        told = f"Sending process {ranks[0]} closing signal SIGTERM"
        wait_until(lambda: any(told in log.read_text() for log in logs), 60, logs[0])
        os.kill(ranks[0], signal.SIGCONT)
        statuses = [first.wait(timeout=120), second.wait(timeout=120)]
    assert statuses == [0, 0], [log.read_text() for log in logs]
    resumed = [record["resumed_from_step"] for record in records(run) if record["kind"] == "start"]
    assert resumed[0] is None
    assert len(resumed) > 1
    assert all(again is not None and again >= step for again in resumed[1:]), resumed
    assert weights(run) == weights(pair)
    assert hidden(run) == []
