"""Runs of train.py that can be killed at any moment, and what they leave behind.

A start takes seconds of imports. `Starts` pays for them once: a server process imports everything and forks a process
for each start, with a process group of its own. `python -m tests.resume.runs` is that server.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
N_STEP = 80
FLAGS = (
    "--dataset text --d_model 16 --n_layer 2 --n_head 2 --d_head 8 --d_inner 32 --dropout 0.1 --dropatt 0.1 --lr 0.01 "
    f"--batch_size 4 --tgt_len 8 --mem_len 8 --max_step {N_STEP} --log_interval 1 --save_interval 2 "
    "--eval_interval 10 --eval_tgt_len 8 --sample_length 2 --timeout_s 10"
).split()


def write_text(folder: Path) -> Path:
    """A folder of random text in 64 words."""
    dice = random.Random(0)
    words = [a + b for a in ("ba", "de", "fi", "go", "ku", "lo", "mi", "ne") for b in "bdfklnrs"]
    folder.mkdir(parents=True)
    for split, n in {"train": 3000, "valid": 200, "test": 100}.items():
        drawn = [*words, *dice.choices(words, k=n - len(words))]
        lines = [" ".join(drawn[i : i + 10]) for i in range(0, n, 10)]
        (folder / f"{split}.txt").write_text("".join(f" {line} \n" for line in lines), encoding="utf-8")
    return folder


def command(text: Path, run: Path, *more: str) -> list[str]:
    """The flags of a training; later ones win."""
    return ["--data", str(text), "--work_dir", str(run), *FLAGS, *more]


@dataclass(frozen=True)
class Start:
    """A process that runs train.py."""

    pid: int
    log: Path
    ask: Callable[..., Any]

    def kill(self) -> None:
        """kill -9 of the process and all that it has started."""
        os.killpg(self.pid, signal.SIGKILL)

    def wait(self, *, limit_s: float = 60) -> int:
        """The exit status, once there is one; negative: the signal that ended it."""
        seen: list[int | None] = []
        wait_until(lambda: seen.append(self.ask(status_of=self.pid)) or seen[-1] is not None, limit_s, self.log)
        return int(seen[-1])  # type: ignore[arg-type]


class Starts:
    """Starts train.py; a context manager. What still runs at the end is killed."""

    def __enter__(self) -> "Starts":
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.resume.runs"],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def __call__(self, flags: list[str], log: Path, *, environment: dict[str, str] | None = None, **trap: Any) -> Start:
        """Start train.py with these flags.

        Args:
            log: both outputs are appended to it.
            trap: what is to go wrong meanwhile; see `_lay`.
        """
        pid = self._ask(flags=flags, log=str(log), environment=environment or {}, trap=trap)
        return Start(pid, log, self._ask)

    def pair(self, flags: list[str], logs: Path, *, trap_of_1: dict[str, Any] | None = None) -> list[Start]:
        """Start two processes that train together, as torchrun would, but with nobody who watches over them."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": "2"}
        traps = ({}, trap_of_1 or {})
        logs.mkdir(exist_ok=True)
        return [
            self(flags, logs / f"{i}", environment={**place, "RANK": f"{i}", "LOCAL_RANK": f"{i}"}, **traps[i])
            for i in range(2)
        ]

    def _ask(self, **request: Any) -> Any:
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


@contextlib.contextmanager
def torchrun(*words: str, run: Path, log: Path, prefix: tuple[str, ...] = ()) -> Iterator[subprocess.Popen]:
    """torchrun in the background; at the end it and the processes of this run are killed."""
    with in_background([*prefix, sys.executable, "-m", "torch.distributed.run", *words], run=run, log=log) as agent:
        yield agent


@contextlib.contextmanager
def in_background(
    words: list[str], *, run: Path, log: Path, environment: dict[str, str] = ENVIRONMENT, kills_workers: bool = True
) -> Iterator[subprocess.Popen]:
    """A program that starts processes; at the end it is killed and, unless told otherwise, those of this run."""
    with log.open("a") as out:
        agent = subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield agent
    finally:
        agent.kill()
        for pid in workers(run).values() if kills_workers else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()


def workers(run: Path) -> dict[int, int]:
    """The living processes of a run that torchrun has started: {rank: pid}."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = (process / "cmdline").read_bytes().split(b"\0")
            if bytes(run) in words and any(word.endswith(b"train.py") for word in words):
                variables = dict(v.partition(b"=")[::2] for v in (process / "environ").read_bytes().split(b"\0"))
                if b"RANK" in variables:
                    found[int(variables[b"RANK"])] = int(process.name)
    return found


def wait_until(condition: Callable[[], object], limit_s: float, log: Path) -> None:
    """Wait for something that must come true; fails with the end of the log if it does not."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s} s; {log}:\n{log.read_text()[-3000:]}"
        time.sleep(0.01)


def last_step(run: Path) -> int | None:
    """The step of the last whole checkpoint."""
    steps = [int(folder.name.removeprefix("step_")) for folder in run.glob("step_*")]
    return max(steps, default=None)


def weights(run: Path, step: int = N_STEP) -> bytes:
    """The weights of a checkpoint as they are on disk."""
    return (run / f"step_{step:08d}" / "model.safetensors").read_bytes()


def records(run: Path) -> list[dict[str, Any]]:
    """What the run has measured so far."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be half written


def trained_steps(run: Path) -> list[int]:
    """Steps that were logged, in the order of the file."""
    return [record["step"] for record in records(run) if record["kind"] == "train"]


def evaluations(run: Path) -> list[tuple[int, float]]:
    """Steps and losses on the valid split."""
    return [(record["step"], record["valid/nll_nats"]) for record in records(run) if record["kind"] == "valid"]


def hidden(run: Path) -> list[str]:
    """What has been half written in a run's folder, or left there."""
    return sorted(path.name for path in run.glob(".*"))


def _serve() -> None:
    """Answer every line of stdin: start a process, or tell the exit status of one that was started."""
    import torch
    import torch._dynamo
    import torch.utils.tensorboard  # noqa: F401

    from txl.cli import run
    from txl.commands import train

    alive = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "status_of" in request:
            pid, status = os.waitpid(request["status_of"], os.WNOHANG)
            alive.discard(pid)
            print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
        elif (pid := os.fork()) == 0:
            os.setpgid(0, 0)
            _redirect(request["log"])
            os.environ.update(request["environment"])
            sys.argv = ["train.py", *request["flags"]]
            _lay(**request["trap"])
            run(train.main)
        else:
            with contextlib.suppress(PermissionError):
                os.setpgid(pid, pid)  # here too: whoever gets the pid may kill the group at once
            alive.add(pid)
            print(json.dumps(pid), flush=True)
    for pid in alive:
        os.killpg(pid, signal.SIGKILL)


def _redirect(log: str) -> None:
    for name, flags, numbers in (
        (os.devnull, os.O_RDONLY, (0,)),
        (log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, (1, 2)),
    ):
        descriptor = os.open(name, flags)
        for number in numbers:
            os.dup2(descriptor, number)


def _lay(
    *,
    slow_flush_s: float = 0,
    die_at_flush: int | None = None,
    die_at_flush_of_best: int | None = None,
    signal_in_step: tuple[int, int] | None = None,
    signal_in_evaluation: tuple[int, int] | None = None,
) -> None:
    """Lay traps in this process.

    Args:
        slow_flush_s: every flush of a file or folder takes so much longer.
        die_at_flush: kill -9 at this flush, counted from 1.
        die_at_flush_of_best: kill -9 at this flush of the pointer to the best checkpoint, counted from 1.
        signal_in_step: (number, step): this signal arrives in the middle of this step.
        signal_in_evaluation: (number, n): this signal arrives during evaluation n of this start.
    """
    from txl.training import loop
    from txl.training.step import TrainState

    flush, step, evaluate = os.fsync, TrainState.step, loop.evaluate
    n_flush = n_best = n_evaluation = 0

    def trapped_flush(descriptor: int) -> None:
        nonlocal n_flush, n_best
        n_flush += 1
        is_best = os.readlink(f"/proc/self/fd/{descriptor}").endswith("best")
        n_best += is_best
        time.sleep(slow_flush_s)
        if n_flush == die_at_flush or (is_best and n_best == die_at_flush_of_best):
            os.kill(os.getpid(), signal.SIGKILL)
        flush(descriptor)

    def trapped_step(self: TrainState, *batch: Any) -> Any:
        if signal_in_step and self.progress.step + 1 == signal_in_step[1]:
            os.kill(os.getpid(), signal_in_step[0])
        return step(self, *batch)

    def trapped_evaluate(*arguments: Any, **named: Any) -> Any:
        nonlocal n_evaluation
        n_evaluation += 1
        if signal_in_evaluation and n_evaluation == signal_in_evaluation[1]:
            os.kill(os.getpid(), signal_in_evaluation[0])
        return evaluate(*arguments, **named)

    os.fsync, TrainState.step, loop.evaluate = trapped_flush, trapped_step, trapped_evaluate


if __name__ == "__main__":
    _serve()
