"""Processes that start without waiting for imports, and processes that are waited for.

Python with torch takes seconds to start. `Forks` pays for that once: a server process imports everything and forks a
process for each start, with a process group of its own. `python -m tests.forks` is that server.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
LIMIT_S = 600
"""Ends what hangs. Nothing that a test shows depends on it."""


@dataclass(frozen=True)
class Fork:
    """A process that runs a function."""

    pid: int
    log: Path
    _ask: Callable[..., Any]

    def kill(self) -> None:
        """kill -9 of the process and all that it has started."""
        os.killpg(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """The exit status, once there is one; negative: the signal that ended it."""
        ended = os.pidfd_open(self.pid)
        try:
            assert select.select([ended], [], [], LIMIT_S)[0], f"hangs; {self.log}:\n{self.log.read_text()[-3000:]}"
        finally:
            os.close(ended)
        return self._ask(status_of=self.pid)


class Forks:
    """Starts processes that have imported all; a context manager. What still runs at the end is killed."""

    def __enter__(self) -> "Forks":
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forks"],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def __call__(self, target: str, log: Path, *, environment: dict[str, str] | None = None, **named: Any) -> Fork:
        """Start "module:function" with JSON-ready arguments; both its outputs are appended to the log."""
        return Fork(self._ask(target=target, log=str(log), environment=environment or {}, named=named), log, self._ask)

    def _ask(self, **request: Any) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


def wait_until(condition: Callable[[], object], log: Path) -> None:
    """Wait for something that must come true; fails with the end of the log if it never does."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"not within {LIMIT_S} s; {log}:\n{log.read_text()[-3000:]}"
        time.sleep(0.02)


def _serve() -> None:
    """Answer every line of stdin: start a process, or tell the exit status of one that has ended."""
    import torch
    import torch._dynamo
    import torch.utils.tensorboard

    import txl.commands.train  # noqa: F401

    torch.set_num_threads(1)
    alive = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "status_of" in request:
            pid, status = os.waitpid(request["status_of"], 0)
            alive.discard(pid)
            print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
        elif (pid := os.fork()) == 0:
            os.setpgid(0, 0)
            _redirect(request["log"])
            os.environ.update(request["environment"])
            module, _, name = request["target"].partition(":")
            getattr(import_module(module), name)(**request["named"])
            sys.exit()
        else:
            with contextlib.suppress(PermissionError):
                os.setpgid(pid, pid)  # here too: whoever gets the pid may kill the group at once
            alive.add(pid)
            print(json.dumps(pid), flush=True)
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _redirect(log: str) -> None:
    for name, flags, numbers in (
        (os.devnull, os.O_RDONLY, (0,)),
        (log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, (1, 2)),
    ):
        descriptor = os.open(name, flags)
        for number in numbers:
            os.dup2(descriptor, number)


if __name__ == "__main__":
    _serve()
