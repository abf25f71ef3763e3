"""Runs of train.py that are stopped at a drawn place, and what they leave behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import forks
from tests.forks import ENVIRONMENT, ROOT, Fork, free_port

N_STEP = 24
FLAGS = (
    "--dataset text --d_model 16 --n_layer 2 --n_head 2 --d_head 8 --d_inner 32 --dropout 0.1 --dropatt 0.1 --lr 0.01 "
    f"--batch_size 4 --tgt_len 8 --mem_len 8 --max_step {N_STEP} --log_interval 1 --save_interval 2 "
    "--eval_interval 6 --eval_tgt_len 8 --sample_length 2"
).split()


def command(text: Path, run: Path, *more: str) -> list[str]:
    """The flags of a training; later ones win."""
    return ["--data", str(text), "--work_dir", str(run), *FLAGS, *more]


def start(
    flags: list[str], log: Path, *, environment: dict[str, str] | None = None, **trap: Any
) -> Fork:
    """Start train.py with these flags and a trap; see `tests.resume.traps.lay`."""
    traps = [trap] if trap else []
    return forks.start(
        "tests.resume.traps:train", log, environment=environment, flags=flags, traps=traps
    )


def pair_of(
    flags: list[str], logs: Path, *, traps: tuple[dict[str, Any], ...] = ({}, {})
) -> list[Fork]:
    """Start two processes that train together, as torchrun would, but with nobody who watches over them."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    logs.mkdir(exist_ok=True)
    return [
        start(
            flags,
            logs / f"{i}",
            environment={**place, "RANK": f"{i}", "LOCAL_RANK": f"{i}"},
            **trap,
        )
        for i, trap in enumerate(traps)
    ]


def finish(flags: list[str], log: Path, *, status: int = 0, **trap: Any) -> None:
    """Run train.py until it ends, with this status."""
    assert start(flags, log, **trap).wait() == status, log.read_text()


def finish_pair(
    flags: list[str], logs: Path, *, status: int = 0, traps: tuple[dict[str, Any], ...] = ({}, {})
) -> list[Fork]:
    """The same with two processes."""
    ranks = pair_of(flags, logs, traps=traps)
    assert [rank.wait() for rank in ranks] == [status] * 2, [rank.log.read_text() for rank in ranks]
    return ranks


def trapped(*traps: dict[str, Any], flags: list[str]) -> list[str]:
    """What python or torchrun is to start: train.py with traps."""
    return ["-m", "tests.resume.traps", json.dumps(traps), *flags]


@contextlib.contextmanager
def torchrun(
    *words: str, run: Path, log: Path, prefix: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen]:
    """torchrun in the background; at the end it and the processes of this run are killed."""
    with in_background(
        [*prefix, sys.executable, "-m", "torch.distributed.run", *words], run=run, log=log
    ) as agent:
        yield agent


@contextlib.contextmanager
def in_background(
    words: list[str],
    *,
    run: Path,
    log: Path,
    environment: dict[str, str] = ENVIRONMENT,
    kills_workers: bool = True,
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
            if bytes(run) in (process / "cmdline").read_bytes().split(b"\0"):
                variables = dict(
                    v.partition(b"=")[::2] for v in (process / "environ").read_bytes().split(b"\0")
                )
                if b"RANK" in variables:
                    found[int(variables[b"RANK"])] = int(process.name)
    return found


def is_stopped(pid: int) -> bool:
    """True once SIGSTOP has stopped a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


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
    # the last may be half written
    return [json.loads(line) for line in lines if line.endswith("\n")]


def resumed_from(run: Path) -> list[int | None]:
    """The step that each start of the run went on from; None: it began."""
    return [record["resumed_from_step"] for record in records(run) if record["kind"] == "start"]


def trained_steps(run: Path) -> list[int]:
    """Steps that were logged, in the order of the file."""
    return [record["step"] for record in records(run) if record["kind"] == "train"]


def evaluations(run: Path) -> list[tuple[int, float]]:
    """Steps and losses on the valid split."""
    return [
        (record["step"], record["valid/nll_nats"])
        for record in records(run)
        if record["kind"] == "valid"
    ]


def hidden(run: Path) -> list[str]:
    """What has been half written in a run's folder, or left there."""
    return sorted(path.name for path in run.glob(".*"))
