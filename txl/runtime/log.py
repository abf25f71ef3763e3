"""Console lines: the log lines of the 2019 code, notices, errors, progress bars."""

import logging
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from txl.files import append_whole, not_through_a_link

T = TypeVar("T")

LONGEST = 500
"""Characters of a message: what a file or a flag holds may be printed in it."""


class _AboveTheBar(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.of_texts: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        is_of_text = record.name.startswith("txl.data_utils.")
        if is_of_text and os.environ.get("RANK", "0") != "0":
            return  # all ranks read the same text
        line = in_one_line(f"note: {record.getMessage()}")
        if is_of_text:
            if line in self.of_texts:
                return  # a program may open a text several times, and reads its files in passes
            self.of_texts.add(line)
        tqdm.write(line, file=sys.stderr)
        _keep(line)


def print_notices() -> None:
    """Print log messages of txl to stderr, a line each, above any progress bar; what is to be
    known of a text once a program.
    """
    logger = logging.getLogger("txl")
    for handler in logger.handlers:
        if isinstance(handler, _AboveTheBar):
            handler.of_texts.clear()
    if not logger.handlers:
        logger.addHandler(_AboveTheBar())


def print_line(line: str) -> None:
    """Print a line of results to stdout, above any progress bar."""
    tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()
    _keep(line)


def print_error(line: str) -> None:
    """Print an error to stderr, in one line with the program's name."""
    line = in_one_line(f"{Path(sys.argv[0]).name}: {line}")
    print(line, file=sys.stderr)
    _keep(line)


class Transcript:
    """The lines that are printed, kept for a file that is not there yet when the first are."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._file: FileIO | None = None

    def add(self, line: str) -> None:
        """Keep a line."""
        self._lines.append(line)
        if self._file is not None:
            self._write(self._file)

    def write_to(self, path: Path, title: str) -> None:
        """Append a title and all lines to a file, those to come too. Raises `OSError` if it cannot
        be written to, or a link is in its place.
        """
        self._lines.insert(0, title)
        # unbuffered: nothing is lost when the process is killed
        self._file = open(path, "ab", buffering=0, opener=not_through_a_link)  # noqa: SIM115
        self._write(self._file)

    def _write(self, file: FileIO) -> None:
        text = "\n".join(self._lines) + "\n"
        self._lines.clear()
        append_whole(file, text.encode(errors="replace"))

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            self._file.close()


_transcripts: list[Transcript] = []


def _keep(line: str) -> None:
    for kept in _transcripts:
        kept.add(line)


@contextmanager
def transcript() -> Iterator[Transcript]:
    """Keeps the lines that are printed inside this context."""
    kept = Transcript()
    _transcripts.append(kept)
    try:
        yield kept
    finally:
        _transcripts.remove(kept)
        kept.close()


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
