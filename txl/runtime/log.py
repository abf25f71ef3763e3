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
from io import BytesIO, FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tqdm import tqdm

from txl.config import require
from txl.files import naming, written_whole

T = TypeVar("T")

RECORDS, CURVES = "metrics.jsonl", "tensorboard"
"""A file and a folder in a run's folder."""
_OURS = ".txl"
"""Ends the names of our event files: others are never removed."""


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
        resumed_from: the step of the checkpoint that the run goes on from; what was recorded of later ones is dropped.
        owes_evaluation: the evaluation of that step is still to be made.
    """

    def __init__(
        self, work_dir: Path | None, *, resumed_from: int | None = None, owes_evaluation: bool = False
    ) -> None:
        self._records: FileIO | None = None
        self._curves: FileIO | None = None
        if work_dir is not None:
            for left in work_dir.glob(f".tmp.*.{RECORDS}"):  # by a kill
                left.unlink()
            if resumed_from is not None:
                _cut(work_dir / RECORDS, resumed_from, owes_evaluation=owes_evaluation)
            # no buffers: nothing pends when the disk is full or the process is killed
            self._records = (work_dir / RECORDS).open("ab", buffering=0)
            (work_dir / CURVES).mkdir(exist_ok=True)
            name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}{_OURS}"
            self._curves = (work_dir / CURVES / name).open("ab", buffering=0)
            self._event(file_version="brain.Event:2")
            if resumed_from is not None:  # TensorBoard drops points from this step on that older files hold
                self._event(step=resumed_from + 1, session_log={"status": 1})

    def start(self, **what: Any) -> None:
        """The first record of a start."""
        self._record({"kind": "start", **what})

    def add(self, kind: str, step: int, values: dict[str, float], **place: int) -> None:
        """A record of measurements, and a point of each curve.

        Args:
            kind: train or valid.
            values: by name, for example "train/nll_nats" or "speed/tok_per_s".
            place: what else tells where the training was; no curves.
        """
        self._record({"kind": kind, "step": step, "time/unix_s": time.time(), **place, **values})
        if self._curves is not None:
            from tensorboard.compat.proto.summary_pb2 import Summary

            points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            self._event(step=step, summary=Summary(value=points))

    def _record(self, record: dict[str, Any]) -> None:
        if self._records is not None:
            finite = {name: finite_or_none(value) for name, value in record.items()}
            _append(self._records, json.dumps(finite, allow_nan=False).encode() + b"\n")

    def _event(self, **fields: Any) -> None:
        """Without torch's SummaryWriter, whose thread cannot tell us that the disk is full."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self._curves is not None
        content = BytesIO()
        RecordWriter(content).write(Event(wall_time=time.time(), **fields).SerializeToString())
        _append(self._curves, content.getvalue())

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._records, self._curves):
            if file is not None:
                file.close()


def finite_or_none(value: Any) -> Any:
    """JSON has no word for numbers that are not finite: None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def require_own_records(work_dir: Path) -> None:
    """Raise `UsageError` if the folder's records are not of a run of ours, to which they could be added."""
    path = work_dir / RECORDS
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            ours = file.readline(2**20).startswith(b'{"kind": "start", ')
        require(ours, f"{path}: not written by txl; name another folder with --work_dir, or move the file")


def remove_records(work_dir: Path) -> None:
    """Remove what `Metrics` has written, and nothing else."""
    (work_dir / RECORDS).unlink(missing_ok=True)
    for path in (work_dir / CURVES).glob(f"events.out.tfevents.*{_OURS}"):
        path.unlink()


def _append(file: FileIO, content: bytes) -> None:
    """All or nothing: on a full disk a file would end in half a record, to which the next one would be glued."""
    begin = os.fstat(file.fileno()).st_size
    with naming(Path(file.name)):
        try:
            while content:
                content = content[file.write(content) :]
        except BaseException:
            os.ftruncate(file.fileno(), begin)
            raise


def _cut(path: Path, step: int, *, owes_evaluation: bool) -> None:
    """Drop the records of later steps, which are made again, and half a line at the end."""
    if not path.is_file():
        return
    with path.open("rb") as old, written_whole(path) as temporary, temporary.open("wb") as new:
        for line in old:
            try:
                record = json.loads(line)
                late = record.get("step", 0) > step or (
                    owes_evaluation and record.get("kind") == "valid" and record["step"] == step
                )
            except (ValueError, AttributeError, TypeError):  # not ours to judge, but for the last one cut short
                late = not line.endswith(b"\n")
            if not late:
                new.write(line if line.endswith(b"\n") else line + b"\n")


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
