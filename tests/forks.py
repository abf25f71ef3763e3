"""Processes that start without waiting for imports, and processes that are waited for.

Python with torch takes seconds to start. Here a server, started once, has imported all and forks a process for each
start, with a process group of its own. It is no fork of the tests: what they left open, under numbers of files that
something else would get, would be closed there. `python -m tests.forks` is that server.
"""

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import tqdm

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
            assert select.select([ended], [], [], LIMIT_S)[0], (
                f"hangs; {self.log}:\n{self.log.read_text()[-3000:]}"
            )
        finally:
            os.close(ended)
        return self._ask(status_of=self.pid)


class Forks:
    """Starts processes that have imported all. What still runs at the end is killed."""

    def __init__(self) -> None:
        self._server: socket.socket | None = None

    def __call__(
        self, target: str, log: Path, *, environment: dict[str, str] | None = None, **named: Any
    ) -> Fork:
        """Start "module:function" with JSON-ready arguments; both its outputs are appended to the log."""
        return Fork(
            self._ask(target=target, log=str(log), environment=environment or {}, named=named),
            log,
            self._ask,
        )

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._lines.close()
            self._server.close()
            self._process.wait()

    def _ask(self, **request: Any) -> Any:
        if self._server is None:
            self._begin()
        self._lines.write(json.dumps(request) + "\n")
        self._lines.flush()
        return json.loads(self._lines.readline())

    def _begin(self) -> None:
        self._server, theirs = socket.socketpair()
        words = [sys.executable, "-m", "tests.forks", str(theirs.fileno())]
        self._process = subprocess.Popen(
            words, cwd=ROOT, env=ENVIRONMENT, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self._lines = self._server.makefile("rw")


start = Forks()


def console(
    program: str,
    *flags: object,
    folder: Path,
    environment: dict[str, str] | None = None,
    closed: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run train.py, eval.py or generate.py as the console would, in this folder; `closed`: without standard output."""
    out, err = folder / ".out", folder / ".err"
    for path in (out, err):
        path.write_text("")
    words = [str(ROOT / f"{program}.py"), *map(str, flags)]
    named = {"words": words, "folder": str(folder), "err": str(err), "closed": closed}
    status = start("tests.forks:run_program", out, environment=environment, **named).wait()
    done = subprocess.CompletedProcess(words, status, out.read_text(), err.read_text())
    out.unlink()
    err.unlink()
    return done


def run_program(words: list[str], folder: str, err: str, closed: bool) -> None:
    """The process of `console`."""
    os.chdir(folder)
    descriptor = os.open(err, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    if closed:
        sys.stdout.close()
        sys.stdout = None
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


def wait_until(condition: Callable[[], object], log: Path) -> None:
    """Wait for something that must come true; fails with the end of the log if it never does."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"not within {LIMIT_S} s; {log}:\n{log.read_text()[-3000:]}"
        time.sleep(0.02)


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _import_all() -> None:
    from tests import processors

    processors.answer()  # before other modules of txl ask

    import torch._dynamo
    import torch.distributed.checkpoint
    import torch.utils.tensorboard  # noqa: F401

    import txl.programs.eval
    import txl.programs.generate
    import txl.programs.train
    import txl.runs.evaluation
    import txl.runs.generation
    import txl.runs.text_scores
    import txl.runs.training  # noqa: F401
    from txl.training import meter

    meter.measured_peak_flops = peak_flops


def peak_flops(*_: Any) -> float:
    """Not measured: half precision is emulated here, and takes seconds."""
    return 1e12


def _serve(requests: int) -> None:
    """Answer every line: start a process, or tell the exit status of one that has ended."""
    lines, alive = socket.socket(fileno=requests).makefile("rw"), set()
    for line in lines:
        request = json.loads(line)
        if "status_of" in request:
            pid, status = os.waitpid(request["status_of"], 0)
            alive.discard(pid)
            answer: int = os.waitstatus_to_exitcode(status)
        elif (answer := os.fork()) == 0:
            _run(requests, **request)
        else:
            with contextlib.suppress(PermissionError):
                # here too: whoever gets the pid may kill the group at once
                os.setpgid(answer, answer)
            alive.add(answer)
        lines.write(f"{answer}\n")
        lines.flush()
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _run(
    requests: int, target: str, log: str, environment: dict[str, str], named: dict[str, Any]
) -> NoReturn:
    """Be a process of one's own, which must not return to the server."""
    os.setpgid(0, 0)
    os.close(requests)
    for name, flags, numbers in (
        (os.devnull, os.O_RDONLY, (0,)),
        (log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, (1, 2)),
    ):
        descriptor = os.open(name, flags)
        for number in numbers:
            os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(
            number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler
        )
    warnings.resetwarnings()
    tqdm.tqdm.set_lock(threading.RLock())  # a thread of the tests may have held the other
    os.environ.update(environment)
    status = 1
    try:
        module, _, function = target.partition(":")
        getattr(import_module(module), function)(**named)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # as Python does at its end
    if sys.stdout is not None:
        sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    _import_all()
    _serve(int(sys.argv[1]))
