"""What a run says: the console line of 2019, notices, metrics."""

import json
import logging
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tqdm import tqdm

from txl.files import naming

T = TypeVar("T")

RECORDS, CURVES = "metrics.jsonl", "tensorboard"
"""A file and a folder in a run's folder."""


class _AboveTheBar(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("txl.data_utils.") and os.environ.get("RANK", "0") != "0":
            return  # all ranks read the same text, one tells what there is to tell
        tqdm.write(f"note: {record.getMessage()}", file=sys.stderr)


def show_notices() -> None:
    """Send the notices of both libraries to stderr, a line each, above any progress bar."""
    for library in ("txl", "data_utils"):
        logger = logging.getLogger(library)
        if not logger.handlers:
            logger.addHandler(_AboveTheBar())


def say(line: str) -> None:
    """Print a line of results to stdout, above any progress bar."""
    tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()


def complain(line: str) -> None:
    """Print why the program ends to stderr, in one line with the program's name."""
    print(f"{Path(sys.argv[0]).name}: {' '.join(line.split())}", file=sys.stderr)


def progress(what: str, n_segment: int, *, shown: bool) -> tqdm:
    """A progress bar over segments, where there is a terminal and it is `shown` at all: by one process of many."""
    return tqdm(total=n_segment, desc=what, unit="segment", leave=False, disable=None if shown else True)


def ticking(segments: Iterable[T], bar: tqdm) -> Iterator[T]:
    """The same segments, each a tick of a progress bar."""
    for segment in segments:
        yield segment
        bar.update()


def perplexity(nats_per_token: float) -> float:
    """exp(nats per token); infinity where that is beyond a float."""
    try:
        return math.exp(nats_per_token)
    except OverflowError:
        return math.inf


def train_line(*, epoch: int, step: int, batch: int, lr: float, ms_per_batch: float, nats: float) -> str:
    """The line that kimiyoung/transformer-xl prints every log_interval, which scripts out there parse."""
    return (
        f"| epoch {epoch:3d} step {step:>8d} | {batch:>6d} batches | lr {lr:.3g} "
        f"| ms/batch {ms_per_batch:5.2f} | loss {nats:5.2f} | ppl {perplexity(nats):9.3f}"
    )


def eval_line(*, index: int, step: int, seconds: float, nats: float) -> str:
    """The line it prints after an evaluation on the valid split."""
    return (
        f"| Eval {index:3d} at step {step:>8d} | time: {seconds:5.2f}s "
        f"| valid loss {nats:5.2f} | valid ppl {perplexity(nats):9.3f}"
    )


class Metrics:
    """What is measured in a run, for people and programs; a context manager.

    Curves go to TensorBoard, and every record to metrics.jsonl, a JSON object a line, with units in the keys. The first
    record of each start says what was started.

    Args:
        work_dir: the run's folder; None writes nothing, as on all ranks but the first.
    """

    def __init__(self, work_dir: Path | None) -> None:
        self._records: FileIO | None = None
        self._curves: FileIO | None = None
        if work_dir is not None:
            # no buffers: nothing pends when the disk is full or the process is killed
            self._records = (work_dir / RECORDS).open("ab", buffering=0)
            (work_dir / CURVES).mkdir(exist_ok=True)
            name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}"
            self._curves = (work_dir / CURVES / name).open("ab", buffering=0)
            self._event(file_version="brain.Event:2")

    def start(self, **what: Any) -> None:
        """The first record of a start."""
        self._record({"kind": "start", **what})

    def add(self, kind: str, step: int, values: dict[str, float]) -> None:
        """A record of measurements, and a point of each curve.

        Args:
            kind: train or valid.
            values: by name, for example "train/nll_nats" or "speed/tok_per_s".
        """
        self._record({"kind": kind, "step": step, **values})
        if self._curves is not None:
            from tensorboard.compat.proto.summary_pb2 import Summary

            points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            self._event(step=step, summary=Summary(value=points))

    def _record(self, record: dict[str, Any]) -> None:
        if self._records is not None:
            with naming(Path(self._records.name)):
                self._records.write(json.dumps(_finite(record), allow_nan=False).encode() + b"\n")

    def _event(self, **fields: Any) -> None:
        """Without torch's SummaryWriter, whose thread cannot tell us that the disk is full."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self._curves is not None
        with naming(Path(self._curves.name)):
            RecordWriter(self._curves).write(Event(wall_time=time.time(), **fields).SerializeToString())

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._records, self._curves):
            if file is not None:
                file.close()


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for numbers that are not finite: None."""
    bad = {name for name, value in record.items() if isinstance(value, float) and not math.isfinite(value)}
    return {name: None if name in bad else value for name, value in record.items()}


def provenance() -> dict[str, Any]:
    """The command line, versions, and the commit of the code, with a flag if it was changed since."""
    import torch

    def git(*words: str) -> str | None:
        try:
            here = Path(__file__).parent
            return subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None

    status = git("status", "--porcelain", "--untracked-files=no")
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "git_commit": git("rev-parse", "HEAD"),
        "git_dirty": None if status is None else bool(status),
    }
