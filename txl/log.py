"""What a run says: the console line of 2019, notices, metrics."""

import json
import logging
import math
import platform
import subprocess
import sys
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from txl.files import naming


class _AboveTheBar(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
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
        self._writer: Any = None
        self._file: FileIO | None = None
        self._work_dir = work_dir
        if work_dir is not None:
            from torch.utils.tensorboard import SummaryWriter  # takes seconds to import: only who trains waits

            self._writer = SummaryWriter(str(work_dir / "tensorboard"))
            self._file = (work_dir / "metrics.jsonl").open("ab", buffering=0)  # nothing pends if the disk is full

    def start(self, **what: Any) -> None:
        """The first record of a start."""
        self._write({"kind": "start", **what})

    def add(self, kind: str, step: int, values: dict[str, float]) -> None:
        """A record of measurements, and a point of each curve.

        Args:
            kind: train or valid.
            values: by name, for example "train/nll_nats" or "speed/tok_per_s".
        """
        self._write({"kind": kind, "step": step, **values})
        if self._writer is not None and self._work_dir is not None:
            with naming(self._work_dir / "tensorboard"):
                for name, value in values.items():
                    self._writer.add_scalar(name, value, step)

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            with naming(Path(self._file.name)):
                self._file.write(json.dumps(record).encode() + b"\n")

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None and self._work_dir is not None:
            with naming(self._work_dir / "tensorboard"):
                self._writer.close()
        if self._file is not None:
            self._file.close()


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
