"""What a file asks for in time and memory is bounded, and said in one line."""

import copy
import os
import pickle
import select
import signal
from pathlib import Path

import pytest

from txl.data_utils.errors import DataError
from txl.language import processes
from txl.language.processes import Apart


class Thing:
    """Does what it is asked to."""

    def double(self, n: int) -> int:
        return 2 * n

    def fail(self, error: BaseException) -> None:
        raise error

    def take(self, n_byte: int) -> int:
        return len(bytes(n_byte))

    def spin(self) -> None:
        while True:
            pass

    def abort(self) -> None:
        os.write(2, b"noise of a library\n")
        os.abort()

    def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd")) - 1  # of the folder itself


def test_a_process_answers_fails_and_is_started_again() -> None:
    thing = Apart(Thing, "thing")
    assert thing.call("double", 4, seconds=9) == 8
    for error in (KeyError("x"), BaseException("a panic\nof many lines")):
        with pytest.raises(ValueError, match=r"^(a panic|'x')$"):
            thing.call("fail", error, seconds=9)
    with pytest.raises(DataError, match="thing: takes more than 2048 MiB of memory, or fails"):
        thing.call("abort", seconds=9)
    for again in (thing, copy.copy(thing), pickle.loads(pickle.dumps(thing))):
        assert again.call("double", 5, seconds=9) == 10


def test_memory_and_time_are_bounded(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MEMORY", 1 << 20)
    monkeypatch.setattr(processes, "_A_THREAD", 0)
    thing = Apart(Thing, "thing")
    with pytest.raises(ValueError, match="MemoryError"):
        thing.call("take", 1 << 28, seconds=9)
    with pytest.raises(DataError, match="thing: takes more than 0 s of processor time"):
        thing.call("spin", seconds=0)
    assert capfd.readouterr().err == ""


def test_locks_and_pipes_of_the_parent_are_not_held_on(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w"):
        # three streams and the pipe
        assert Apart(Thing, "thing").call("descriptors", seconds=9) == 4


def test_a_process_ends_though_another_holds_its_pipe() -> None:
    """One that was forked since and lives as long."""
    thing = Apart(Thing, "thing")
    thing.call("double", 1, seconds=9)
    ending = os.pidfd_open(thing._pid)
    holder = os.fork()
    if holder == 0:
        ended, _, _ = select.select([ending], [], [], 60)
        os._exit(0 if ended else 1)
    del thing
    assert os.waitpid(holder, 0) == (holder, 0)
    os.close(ending)


def test_a_process_ends_with_its_object() -> None:
    thing = Apart(Thing, "thing")
    thing.call("double", 1, seconds=9)
    pid = thing._pid
    del thing
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert signal.getsignal(signal.SIGXCPU) == signal.SIG_DFL


def test_a_fork_asks_a_process_of_its_own() -> None:
    thing = Apart(Thing, "thing")
    assert thing.call("double", 1, seconds=9) == 2
    first = thing._pid
    thing._owner = 0  # as in a fork of this process
    assert thing.call("double", 3, seconds=9) == 6
    assert thing._pid != first
