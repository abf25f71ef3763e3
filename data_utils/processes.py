"""Work shared by several processes. Each has a pipe of its own: who waits for one that is killed learns of its end."""

import multiprocessing
import pickle
import signal
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeVar

from .raw_text import DataError

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def in_processes(work: Callable[[Task], Answer], tasks: Iterable[Task], n_process: int) -> Iterator[Answer]:
    """The answers to tasks, in their order, of forked processes, two tasks ahead for each. Raises what `work` raises,
    and `DataError` if a process was killed."""
    context, pipes, processes = multiprocessing.get_context("fork"), list[Connection](), []
    idle, waiting = SimpleQueue[Connection](), deque[Future[Answer]]()
    threads = ThreadPoolExecutor(n_process)
    try:
        for _ in range(n_process):
            here, there = context.Pipe()
            pipes.append(here)
            process = context.Process(target=_answer, args=(work, there, pipes), daemon=True)
            with there, warnings.catch_warnings():  # of threads, none of which a process of these needs
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            processes.append(process)
            idle.put(here)
        for task in tasks:
            waiting.append(threads.submit(_asked, task, idle))
            if len(waiting) > 2 * n_process:  # more would pile up
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join()


def _asked(task: object, idle: SimpleQueue[Connection]) -> Any:
    """The answer of a process that has nothing to do; there is one for each thread."""
    pipe = idle.get()
    try:
        pipe.send(task)
        answer, error = pipe.recv()
    except (EOFError, OSError):
        killed = "a process that read it was killed, perhaps for want of memory"
        raise DataError(f"the text: {killed}; free some and start again") from None
    finally:
        idle.put(pipe)
    if error is not None:
        raise error
    return answer


def _answer(work: Callable[[Any], object], pipe: Connection, of_parent: list[Connection]) -> None:
    """Answer until the parent closes its end, which nobody else may hold. Ctrl-C is left to the parent; SIGTERM ends
    the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for one in of_parent:
        one.close()
    with suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            try:
                answer = pickle.dumps((work(task), None))
            except Exception as error:
                error.add_note(traceback.format_exc())
                answer = pickle.dumps((None, error))
            pipe.send_bytes(answer)
