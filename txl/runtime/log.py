"""Console lines: the log lines of the 2019 code, notices, errors, progress bars."""

import logging
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")

LONGEST = 500
"""Characters of a message: what a file or a flag holds may be printed in it."""


class _AboveTheBar(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("txl.data_utils.") and os.environ.get("RANK", "0") != "0":
            return  # all ranks read the same text
        tqdm.write(in_one_line(f"note: {record.getMessage()}"), file=sys.stderr)


def print_notices() -> None:
    """Print log messages of txl to stderr, a line each, above any progress bar."""
    logger = logging.getLogger("txl")
    if not logger.handlers:
        logger.addHandler(_AboveTheBar())


def print_line(line: str) -> None:
    """Print a line of results to stdout, above any progress bar."""
    tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()


def print_error(line: str) -> None:
    """Print an error to stderr, in one line with the program's name."""
    print(in_one_line(f"{Path(sys.argv[0]).name}: {line}"), file=sys.stderr)


def in_one_line(message: str) -> str:
    """A message without line breaks and other control characters, which could come from a file, and
    without its middle where it is longer than `LONGEST`: it begins with the name of the thing and
    ends with what to do.
    """
    line = re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", " ".join(message.split()))
    if len(line) <= LONGEST:
        return line
    cut = " [...] "
    end = LONGEST // 3
    return line[: LONGEST - end - len(cut)] + cut + line[-end:]


def progress(what: str, n_segment: int, *, shown: bool) -> tqdm:
    """A progress bar over segments, if there is a terminal and this process is the one that shows
    it.
    """
    return tqdm(
        total=n_segment, desc=what, unit="segment", leave=False, disable=None if shown else True
    )


def ticking(segments: Iterable[T], bar: tqdm) -> Iterator[T]:
    """The segments, each of which advances the progress bar."""
    for segment in segments:
        yield segment
        bar.update()


def perplexity(nats_per_token: float) -> float:
    """exp(nats per token), infinity on overflow."""
    try:
        return math.exp(nats_per_token)
    except OverflowError:
        return math.inf


def train_line(
    *, epoch: int, step: int, batch: int, lr: float, ms_per_batch: float, nats: float
) -> str:
    """The line that kimiyoung/transformer-xl prints every log_interval, in its format, which users'
    scripts parse.
    """
    return (
        f"| epoch {epoch:3d} step {step:>8d} | {batch:>6d} batches | lr {lr:.3g} "
        f"| ms/batch {ms_per_batch:5.2f} | loss {nats:5.2f} | ppl {perplexity(nats):9.3f}"
    )


def eval_line(*, index: int, step: int, seconds: float, nats: float) -> str:
    """The line that it prints after an evaluation on the valid split."""
    return (
        f"| Eval {index:3d} at step {step:>8d} | time: {seconds:5.2f}s "
        f"| valid loss {nats:5.2f} | valid ppl {perplexity(nats):9.3f}"
    )
