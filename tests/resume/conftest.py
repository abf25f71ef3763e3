"""The text, and the runs that nobody stops: one in one process, one in two."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import random_text
from tests.resume.runs import command, finish, finish_pair


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume") / "text"
    return random_text(folder, n_word={"train": 3000, "valid": 200, "test": 100})


@pytest.fixture(scope="session")
def alone(text: Path) -> Path:
    """The uninterrupted run of one process."""
    run, log = text.parent / "alone", text.parent / "alone_log"
    finish(command(text, run), log)
    return run


@pytest.fixture(scope="session")
def pair(text: Path) -> Path:
    """The uninterrupted run of two processes."""
    run = text.parent / "pair"
    finish_pair(command(text, run), text.parent / "pair_logs")
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
