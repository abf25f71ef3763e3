"""The text, and the runs that nobody stops: one in one process, one in two."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.resume.runs import command, pair_of, start, write_text


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("resume") / "text")


@pytest.fixture(scope="session")
def alone(text: Path) -> Path:
    """The uninterrupted run of one process."""
    run, log = text.parent / "alone", text.parent / "alone_log"
    assert start(command(text, run), log).wait() == 0, log.read_text()
    return run


@pytest.fixture(scope="session")
def pair(text: Path) -> Path:
    """The uninterrupted run of two processes."""
    run = text.parent / "pair"
    ranks = pair_of(command(text, run), text.parent / "pair_logs")
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.log.read_text() for rank in ranks]
    return run


@pytest.fixture
def hosts() -> Iterator[Callable[..., list[str]]]:
    """Two network namespaces; makes commands of two_hosts.sh about them."""

    def words(action: str, *more: str) -> list[str]:
        return [str(Path(__file__).with_name("two_hosts.sh")), action, f"txl{os.getpid()}", *more]

    up = subprocess.run(words("up"), capture_output=True, text=True)
    if up.returncode == 77:
        pytest.skip(f"no network namespaces here: {up.stderr}")
    assert up.returncode == 0, up.stderr
    try:
        yield words
    finally:
        subprocess.run(words("down"), check=True)
