"""The text, and the runs that nobody stops: one in one process, one in two."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.resume.runs import Starts, command, write_text


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("resume") / "text")


@pytest.fixture(scope="session")
def starts() -> Iterator[Starts]:
    with Starts() as starts:
        yield starts


@pytest.fixture(scope="session")
def alone(starts: Starts, text: Path) -> Path:
    """The uninterrupted run of one process."""
    run, log = text.parent / "alone", text.parent / "alone_log"
    assert starts(command(text, run), log).wait() == 0, log.read_text()
    return run


@pytest.fixture(scope="session")
def pair(starts: Starts, text: Path) -> Path:
    """The uninterrupted run of two processes."""
    run = text.parent / "pair"
    ranks = starts.pair(command(text, run), text.parent / "pair_logs")
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.log.read_text() for rank in ranks]
    return run
