"""What a run says: the console line of 2019, notices, TensorBoard."""

import logging
import math
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm


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


class Scalars:
    """Curves for TensorBoard in a run's folder; a context manager."""

    def __init__(self, work_dir: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes seconds to import: only who trains waits

        self._writer: Any = SummaryWriter(str(work_dir / "tensorboard"))

    def add(self, step: int, **values: float) -> None:
        """One point of each curve; a double underscore in a name becomes a slash."""
        for name, value in values.items():
            self._writer.add_scalar(name.replace("__", "/"), value, step)

    def __enter__(self) -> "Scalars":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
