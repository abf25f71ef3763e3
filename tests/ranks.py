"""Processes that are joined over gloo and wait for work, of which each leaves them warm for the next."""

import pickle
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client, Listener, wait
from pathlib import Path
from typing import Any

import torch

from tests.forks import LIMIT_S, free_port, start
from txl.runtime.distributed import process_group


def on_ranks(world: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work(ranks, *args)` returns on each of `world` ranks. It leaves them as they were."""
    if world not in _pools:
        _pools[world] = _Pool(world)
    return _pools[world].run(work, args)


def close() -> None:
    """End all ranks."""
    for world in list(_pools):
        _pools.pop(world).close()


class _Pool:
    def __init__(self, world: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._world, self._forks, self._lines = world, [], []
        place = {
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        with Listener(f"{self._folder.name}/socket") as listener:
            for i in range(world):
                log, environment = Path(self._folder.name, f"log_{i}"), place | {"RANK": str(i)}
                named = {"environment": environment, "address": listener.address}
                self._forks.append(start(f"{__name__}:be_rank", log, **named))
                self._lines.append(listener.accept())

    def run(self, work: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
        for line in self._lines:
            line.send_bytes(pickle.dumps((work, args)))
        results: dict[Any, Any] = {}
        error = None
        while len(results) < len(self._lines):
            ready = wait([line for line in self._lines if line not in results], LIMIT_S)
            for line in ready:
                try:
                    results[line], error = pickle.loads(line.recv_bytes())  # type: ignore[attr-defined]
                except (EOFError, OSError):
                    error = "has ended"
                if error:
                    break
            if not ready or error:
                said = "\n".join(fork.log.read_text() for fork in self._forks)
                _pools.pop(self._world).close()
                raise AssertionError(f"{error or 'hangs'}\n{said}")
        return [results[line] for line in self._lines]

    def close(self) -> None:
        for fork in self._forks:
            fork.kill()
            fork.wait()
        for line in self._lines:
            line.close()
        self._folder.cleanup()


_pools: dict[int, _Pool] = {}


def be_rank(address: str) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    line = Client(address)
    with process_group(timeout_s=LIMIT_S) as ranks:
        while True:
            work, args = pickle.loads(line.recv_bytes())
            try:
                answer = work(ranks, *args), None
            except BaseException:
                answer = None, traceback.format_exc()
            line.send_bytes(pickle.dumps(answer))
