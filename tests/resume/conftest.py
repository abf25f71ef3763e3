"""The text, and the runs that nobody stops: one in one process, one in two."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.resume.runs import ENVIRONMENT, ROOT, Starts, command, write_text


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("resume") / "text")


@pytest.fixture(scope="session")
def alone(text: Path) -> Path:
    """The uninterrupted run of one process."""
    run = text.parent / "alone"
    _finish([sys.executable, "train.py", *command(text, run)])
    return run


@pytest.fixture(scope="session")
def pair(text: Path) -> Path:
    """The uninterrupted run of two processes."""
    run = text.parent / "pair"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    _finish([*torchrun, "train.py", *command(text, run)])
    return run


@pytest.fixture(scope="session")
def starts() -> Iterator[Starts]:
    with Starts() as starts:
        yield starts


def _finish(words: list[str]) -> None:
    ended = subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
