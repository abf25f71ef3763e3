"""train.py with traps: at a counted event, and so at the same place on every machine, a signal is sent.

`torchrun ... -m tests.resume.traps TRAPS FLAGS...` is train.py with traps, as JSON, below torchrun.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from txl.checkpoint import Background
from txl.programs import train as program
from txl.programs.run import run
from txl.training import loop
from txl.training.metrics import Metrics
from txl.training.step import TrainState


def train(flags: list[str], traps: Sequence[dict[str, Any]]) -> None:
    """Run train.py with these flags and traps; see `lay`."""
    sys.argv = ["train.py", *flags]
    for trap in traps:
        lay(**trap)
    run(program.main)


def lay(
    at: tuple[str, int],
    send: int = signal.SIGKILL,
    *,
    rank: int | None = None,
    once: str | None = None,
    to: str = "me",
) -> None:
    """Send a signal at the n-th event of a kind in this process.

    Args:
        at: (kind, n), n counted from 1. Kinds: "step", "evaluation" (both when they begin), "segment" (read in an
            evaluation), "record" (of metrics.jsonl, before it is written), "flush" (of a file or folder), "best" (of
            the pointer to the best checkpoint), "beside" (the step or segment that begins, or the wait for the write,
            while the n-th flush of the thread that writes in the background is held up).
        rank: only in the process of this rank.
        once: a file; there is no trap once it is there, and it is made at the event.
        to: "me", this process; "parent", the one that has started it, whose end is waited for; "group", both and all
            that either has started; "agent", the parent, which passes it on, and this process when it has done so.
    """
    if (once and Path(once).exists()) or (rank is not None and os.environ["RANK"] != str(rank)):
        return
    kind, nth = at
    count = itertools.count(1)
    held, is_waited_for, one_at_a_time = threading.Event(), threading.Event(), threading.Lock()

    def passes(here: str) -> None:
        if here == kind and next(count) == nth:
            fire()

    def fire() -> None:
        if once:
            Path(once).touch()
        passed_on = threading.Event()
        # by a handler: a blocked signal may be taken by another thread before it is waited for
        if to == "agent":
            before = signal.signal(send, lambda *_: passed_on.set())
        parent = os.getppid()
        os.kill({"me": os.getpid(), "group": 0}.get(to, parent), send)
        while to == "parent" and os.getppid() == parent:
            time.sleep(0.001)
        if to == "agent":
            passed_on.wait()
            signal.signal(send, before)
            os.kill(os.getpid(), send)

    def flush(descriptor: int) -> None:
        passes("flush")
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("best"):
            passes("best")
        in_background = threading.current_thread() is not threading.main_thread()
        if kind == "beside" and in_background and next(count) == nth:
            with one_at_a_time:
                held.set()
                if is_waited_for.is_set():
                    fire()
            threading.Event().wait()

    def wait(self: Background) -> None:
        with one_at_a_time:
            is_waited_for.set()
            if held.is_set():
                fire()
        _wait(self)
        is_waited_for.clear()

    def progresses(here: str) -> None:
        passes(here)
        if held.is_set():
            fire()

    def step(self: TrainState, *batch: Any) -> Any:
        progresses("step")
        return _step(self, *batch)

    def evaluate(*arguments: Any, **named: Any) -> Any:
        passes("evaluation")
        return _evaluate(*arguments, **named)

    def until_stopped(*arguments: Any) -> Iterator[Any]:
        for segment in _until_stopped(*arguments):
            progresses("segment")
            yield segment

    def add(*arguments: Any, **named: Any) -> None:
        passes("record")
        _add(*arguments, **named)

    _step, _evaluate, _until_stopped, _add = (
        TrainState.step,
        loop.evaluate,
        loop.until_stopped,
        Metrics.add,
    )
    _wait = Background.wait
    # no power cut comes after a kill: nothing is flushed
    os.fsync, TrainState.step, Metrics.add = flush, step, add
    loop.evaluate, loop.until_stopped, Background.wait = evaluate, until_stopped, wait


if __name__ == "__main__":
    train(sys.argv[2:], json.loads(sys.argv[1]))
