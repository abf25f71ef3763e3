"""One process or many: the same program. torchrun starts the processes, this file joins them."""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from txl.config import require

T = TypeVar("T")


class LostContactError(RuntimeError):
    """Another process of the run has gone or cannot be reached."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run; without torchrun the only one."""

    rank: int
    world: int
    device: torch.device
    control: dist.ProcessGroup | None = None
    """Over gloo, for what the host decides; never waits for a GPU."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, on each of them."""
        if self.world > 1:
            with telling_lost_contact(self.rank):
                dist.all_reduce(value)
        return value

    def gathered(self, value: T) -> list[T]:
        """An object of every rank, by rank, on each of them."""
        if self.world == 1:
            return [value]
        values: list[T | None] = [None] * self.world
        with telling_lost_contact(self.rank):
            dist.all_gather_object(values, value, group=self.control)
        return values  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.gathered(None)

    def main_first(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0, then on the others, who find in place what it has written.

        The others wait as long as it takes: tokenising a large corpus takes longer than any timeout of a collective.
        """
        if self.world == 1:
            return work()
        store = dist.distributed_c10d._get_default_store()
        _count[0] += 1
        key = f"main_first/{_count[0]}"
        if self.is_main:
            try:
                result = work()
            except BaseException:
                store.set(key, "failed")
                raise
            store.set(key, "done")
            return result
        with telling_lost_contact(self.rank):
            store.wait([key], timedelta(days=7))
        if store.get(key) == b"failed":
            raise LostContactError(f"rank {self.rank} ends because rank 0 has failed")
        return work()

    def columns(self, batch_size: int) -> slice:
        """The columns of a global batch that this rank computes."""
        each = batch_size // self.world
        return slice(self.rank * each, (self.rank + 1) * each)


_count = [0]


@contextmanager
def joined(*, timeout_s: float, device: str = "auto") -> Iterator[Ranks]:
    """Join the other processes that torchrun has started, over NCCL on GPUs and gloo on CPUs. Once in a process.

    Args:
        timeout_s: seconds after which a process that does not answer is given up.
        device: see `device_of`; for several processes without a number.
    Raises:
        LostContactError: if the others cannot be reached.
        UsageError: if what torchrun sets in the environment is incomplete.
    """
    chosen = device_of(device)
    world = _from_environment("WORLD_SIZE") if "WORLD_SIZE" in os.environ else 1
    if world == 1:
        yield Ranks(0, 1, chosen)
        return
    require(chosen.index is None, f"--device {device}: {world} processes would share it; give cuda without a number")
    require(chosen.type != "mps", f"--device {device}: works in one process only; give cpu")
    on_gpu = chosen.type == "cuda"
    rank = _from_environment("RANK")
    require(0 <= rank < world, f"RANK={rank}: must be from 0 to WORLD_SIZE - 1 ({world - 1}); {_USE_TORCHRUN}")
    require("MASTER_ADDR" in os.environ, f"WORLD_SIZE={world}, but MASTER_ADDR is not set; {_USE_TORCHRUN}")
    _from_environment("MASTER_PORT")
    if on_gpu:
        chosen = device_of(f"cuda:{_from_environment('LOCAL_RANK')}")
        torch.cuda.set_device(chosen)
    timeout = timedelta(seconds=timeout_s)
    with telling_lost_contact(rank):
        store, _, _ = next(iter(dist.rendezvous("env://", rank, world, timeout=timeout)))
        store = dist.PrefixStore(_name_of_attempt(store, rank, world, timeout_s), store)
        backend = "nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
        control = dist.new_group(backend="gloo", timeout=timeout)
    with telling_lost_contact(rank):
        yield Ranks(rank, world, chosen, control)
        dist.barrier(group=control)  # nobody hangs up while another still listens
    # the group is left to the end of the process: taken apart, it waits for peers that are gone, or aborts


def device_of(name: str) -> torch.device:
    """The device of this name; auto: a GPU that CUDA knows, else the CPU.

    Raises:
        UsageError: if there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    known = kind in there and (not number or number.isdigit())
    require(known, f"--device {name}: no such kind of device; give cpu, cuda, cuda:1 or mps")
    require(int(number or 0) < there[kind], f"--device {name}: this machine has {there[kind]} of this kind; give cpu")
    return torch.device(name)


_USE_TORCHRUN = "start the processes with torchrun, or unset WORLD_SIZE for a single one"


def _from_environment(name: str) -> int:
    value = os.environ.get(name, "")
    require(value.isascii() and value.isdigit(), f"{name}={value}: must be a whole number; {_USE_TORCHRUN}")
    return int(value)


def _name_of_attempt(store: dist.Store, rank: int, world: int, timeout_s: float) -> str:
    """A name that the processes of this attempt share, and no attempt before has had.

    torchrun keeps its store when it starts lost processes again; without a name of their own they would find the
    addresses of those before, who are gone. Rank 0 proposes a name, the others answer it with a number of their own,
    and take it when that number comes back: an old name's answers are old numbers.
    """
    mine = uuid.uuid4().hex
    if rank == 0:
        store.set("attempt", mine)
        for other in range(1, world):
            store.wait([f"{mine}/answer/{other}"], timedelta(seconds=timeout_s))
            store.set(f"{mine}/taken/{other}", store.get(f"{mine}/answer/{other}"))
        return mine
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        store.wait(["attempt"], timedelta(seconds=timeout_s))
        name = store.get("attempt").decode()
        store.set(f"{name}/answer/{rank}", mine)
        for _ in range(10):
            if store.check([f"{name}/taken/{rank}"]) and store.get(f"{name}/taken/{rank}").decode() == mine:
                return name
            time.sleep(0.02)
    raise LostContactError(f"rank {rank}: rank 0 has not come within {timeout_s:.0f} s")


@contextmanager
def telling_lost_contact(rank: int) -> Iterator[None]:
    """Turn what a collective raises when a peer is gone into one sentence."""
    try:
        yield
    except (dist.DistError, RuntimeError) as error:
        if isinstance(error, LostContactError) or not _speaks_of_peers(error):
            raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LostContactError(f"rank {rank} has lost contact with the other processes ({first[:200]})") from error


def _speaks_of_peers(error: Exception) -> bool:
    """Gloo raises plain RuntimeErrors; they name the connection or the wait."""
    text = str(error).lower()
    signs = ("gloo", "nccl", "closed by peer", "reset by peer", "connection refused", "timed out", "timeout")
    return isinstance(error, dist.DistError) or any(sign in text for sign in signs)


def parallel(module: nn.Module, ranks: Ranks) -> nn.Module:
    """The module with gradients averaged over ranks; itself where there is one rank only.

    Every parameter gets a gradient in every step, so nothing has to look for unused ones. What the module is given
    stays on the device where it is.
    """
    if ranks.world == 1:
        return module
    return DistributedDataParallel(module, gradient_as_bucket_view=True)


class Vote:
    """Agrees over ranks on the largest of a small number, without anybody waiting: several ranks learn of it at the
    next call, one rank at once. All ranks call it in every step."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._flag = torch.zeros(1, dtype=torch.int64)
        self._pending: dist.Work | None = None

    def agree(self, value: int) -> int:
        """Send this rank's number; returns what was agreed on of those sent in the call before."""
        if self._ranks.world == 1:
            return value
        agreed = self.close()
        self._flag.fill_(value)
        with telling_lost_contact(self._ranks.rank):
            self._pending = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, group=self._ranks.control, async_op=True)
        return agreed

    def now(self, value: int) -> int:
        """One rank alone need not wait for the next call; 0 where there are several."""
        return value if self._ranks.world == 1 else 0

    def close(self) -> int:
        """What was agreed on of the numbers sent last; nothing is under way afterwards."""
        if self._pending is None:
            return 0
        with telling_lost_contact(self._ranks.rank):
            self._pending.wait()
        self._pending = None
        return int(self._flag)
