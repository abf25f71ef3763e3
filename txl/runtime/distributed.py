"""Communication between the processes that torchrun starts; a single process needs none."""

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from txl.config import Limits, UsageError, refusal, require
from txl.errors import RunFailed

T = TypeVar("T")


class LostContactError(RunFailed):
    """Another process of the run has ended or cannot be reached."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run."""

    rank: int
    world: int
    device: torch.device
    control: dist.ProcessGroup | None = None
    """A gloo group for decisions of the host, which never waits for a GPU."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, on each of them. Changes the tensor."""
        if self.world > 1:
            with lost_contact_errors(self.rank):
                dist.all_reduce(value)
        return value

    def gathered(self, value: T) -> list[T]:
        """The objects of all ranks, by rank, on each of them."""
        if self.world == 1:
            return [value]
        values: list[T | None] = [None] * self.world
        with lost_contact_errors(self.rank):
            dist.all_gather_object(values, value, group=self.control)
        return values  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.gathered(None)

    def with_own_group(self, timeout_s: float) -> "Ranks":
        """These ranks with a control group of their own, for a thread.

        All ranks call it together.
        """
        if self.world == 1:
            return self
        with lost_contact_errors(self.rank):
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        return replace(self, control=cast(dist.ProcessGroup, group))

    def main_first(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0, then on the others, which find the files that it has written.

        The others wait without a timeout: tokenising a large corpus takes longer than that of any
        collective.
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
        with lost_contact_errors(self.rank):
            store.wait([key], timedelta(days=7))
        if store.get(key) == b"failed":
            raise LostContactError(f"rank {self.rank} ends because rank 0 has failed")
        return work()

    def by_main(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0; its result is returned, and its usage and I/O errors are raised, on
        all ranks.
        """
        result: T | Exception | None = None
        if self.is_main:
            try:
                result = work()
            except (UsageError, OSError) as error:
                result = error
        result = self.gathered(result)[0]
        if isinstance(result, Exception):
            raise result
        return cast(T, result)

    def columns(self, batch_size: int) -> slice:
        """The streams of the global batch that this rank computes."""
        each = batch_size // self.world
        return slice(self.rank * each, (self.rank + 1) * each)


_count = [0]


@contextmanager
def process_group(*, timeout_s: float, device: str = "auto") -> Iterator[Ranks]:
    """Connect to the other processes that torchrun has started, over NCCL on GPUs and gloo on CPUs.
    Once per process.

    Args:
        timeout_s: seconds to wait for another process.
        device: see `device_of`; without a number if there are several processes.
    Raises:
        LostContactError: if the others cannot be reached.
        UsageError: if environment variables that torchrun sets are missing or wrong.
    """
    chosen = device_of(device)
    world = from_environment("WORLD_SIZE", 1)
    if world == 1:
        yield Ranks(0, 1, chosen)
        return
    require(
        chosen.index is None,
        f"--device {device}: {world} processes would share it; give cuda without a number",
    )
    require(chosen.type != "mps", f"--device {device}: works in one process only; give cpu")
    on_gpu = chosen.type == "cuda"
    rank = from_environment("RANK")
    require(
        0 <= rank < world,
        f"RANK={rank}: must be from 0 to WORLD_SIZE - 1 ({world - 1}); {_USE_TORCHRUN}",
    )
    require(
        "MASTER_ADDR" in os.environ,
        f"WORLD_SIZE={world}, but MASTER_ADDR is not set; {_USE_TORCHRUN}",
    )
    from_environment("MASTER_PORT")
    if on_gpu:
        chosen = device_of(f"cuda:{from_environment('LOCAL_RANK')}")
        torch.cuda.set_device(chosen)
    timeout = timedelta(seconds=timeout_s)
    with lost_contact_errors(rank):
        store, _, _ = next(iter(rendezvous("env://", rank, world, timeout=timeout)))
        store = PrefixStore(_name_of_attempt(store, rank, world, timeout_s), store)
        if on_gpu:
            backend = "nccl"
        else:
            backend = "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
        control = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timeout))
    with lost_contact_errors(rank):
        yield Ranks(rank, world, chosen, control)
        dist.barrier(group=control)  # no process leaves while another still communicates
    # the group is not destroyed: that would wait for processes that have ended, or abort


def device_of(name: str) -> torch.device:
    """The device of this name; auto: CUDA if available, else the CPU. Raises `UsageError` if there
    is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    there = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }
    found = re.fullmatch(rf"({'|'.join(there)})(?::(0|[1-9]\d*))?", name, re.ASCII)
    if found is None:
        raise UsageError(f"--device {name}: no such kind of device; give cpu, cuda, cuda:1 or mps")
    kind, number = found.groups()
    require(
        int(number or 0) < there[kind],
        f"--device {name}: this machine has {there[kind]} of this kind; give cpu",
    )
    return torch.device(name)


MOST_PROCESSES = 2**20
_ENVIRONMENT: dict[str, Limits] = {
    "WORLD_SIZE": {"minimum": 1, "maximum": MOST_PROCESSES},
    "RANK": {"minimum": 0, "below": MOST_PROCESSES},
    "LOCAL_WORLD_SIZE": {"minimum": 1, "maximum": MOST_PROCESSES},
    "TORCHELASTIC_RESTART_COUNT": {"minimum": 0},
    "LOCAL_RANK": {"minimum": 0, "below": MOST_PROCESSES},
    "MASTER_PORT": {"minimum": 1, "below": 2**16},
}
_USE_TORCHRUN = "start the processes with torchrun, or unset WORLD_SIZE for a single one"


def from_environment(name: str, default: int | None = None) -> int:
    """The number in a variable of torchrun.

    Raises `UsageError` if it is none, or is missing without a default.
    """
    if default is not None and name not in os.environ:
        return default
    value = os.environ.get(name, "")
    is_number = value.isascii() and value.isdigit() and len(value) < 20
    if is_number:
        must_be = refusal(int(value), _ENVIRONMENT[name])
    else:
        must_be = "a whole number"
    require(not must_be, f"{name}={value}: must be {must_be}; {_USE_TORCHRUN}")
    return int(value)


def _name_of_attempt(store: Store, rank: int, world: int, timeout_s: float) -> str:
    """A name that the processes of this attempt share and no earlier attempt has used.

    torchrun keeps its store when it restarts processes; without a new name they would find the
    addresses of processes that have ended. Rank 0 proposes a name, the others answer with an id of
    their own and accept the name when rank 0 returns that id; under an old name only old ids are
    returned.
    """
    mine = uuid.uuid4().hex
    if rank == 0:
        store.set("attempt", mine)
        for other in range(1, world):
            store.wait([f"{mine}/answer/{other}"], timedelta(seconds=timeout_s))
            store.set(f"{mine}/taken/{other}", store.get(f"{mine}/answer/{other}").decode())
        return mine
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        store.wait(["attempt"], timedelta(seconds=timeout_s))
        name = store.get("attempt").decode()
        store.set(f"{name}/answer/{rank}", mine)
        for _ in range(10):
            if (
                store.check([f"{name}/taken/{rank}"])
                and store.get(f"{name}/taken/{rank}").decode() == mine
            ):
                return name
            time.sleep(0.02)
    raise LostContactError(f"rank {rank}: rank 0 has not answered within {timeout_s:.0f} s")


@contextmanager
def lost_contact_errors(rank: int) -> Iterator[None]:
    """Turn the errors of a collective whose peer has ended into `LostContactError`."""
    try:
        yield
    except (dist.DistError, RuntimeError) as error:
        if isinstance(error, LostContactError) or not _is_about_peers(error):
            raise
        if str(error).strip():
            first = str(error).strip().splitlines()[0]
        else:
            first = type(error).__name__
        raise LostContactError(
            f"rank {rank} has lost contact with the other processes ({first[:200]})"
        ) from error


def _is_about_peers(error: Exception) -> bool:
    """Gloo raises plain RuntimeErrors, so their messages must be searched."""
    text = str(error).lower()
    signs = (
        "gloo",
        "nccl",
        "closed by peer",
        "reset by peer",
        "connection refused",
        "timed out",
        "timeout",
    )
    return isinstance(error, dist.DistError) or any(sign in text for sign in signs)


def is_in_shards(tensor: Tensor) -> bool:
    """True if each rank has a part of a tensor, a DTensor. Importing that class takes half a
    second, so that only what makes one imports it.
    """
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor in shards, without gradient; any other as it is."""
    return tensor.to_local().detach() if is_in_shards(tensor) else tensor.detach()  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """A tensor in shards, whole on each rank; any other as it is. All ranks call it together."""
    return tensor.full_tensor() if is_in_shards(tensor) else tensor  # type: ignore[attr-defined]


class Vote:
    """The maximum of a number over ranks, without waiting: several ranks get it at the next call, a
    single rank at once. All ranks call `agree` in every step.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._flag = torch.zeros(1, dtype=torch.int64)
        self._pending: dist.Work | None = None

    def agree(self, value: int) -> int:
        """Send this rank's number; returns the maximum of those sent in the previous call."""
        if self._ranks.world == 1:
            return value
        agreed = self.close()
        self._flag.fill_(value)
        with lost_contact_errors(self._ranks.rank):
            self._pending = dist.all_reduce(
                self._flag, op=dist.ReduceOp.MAX, group=self._ranks.control, async_op=True
            )
        return agreed

    def now(self, value: int) -> int:
        """The number itself for a single rank, which need not wait for the next call; 0 for
        several.
        """
        if self._ranks.world == 1:
            return value
        return 0

    def close(self) -> int:
        """Wait for the maximum of the numbers sent last, and return it."""
        if self._pending is None:
            return 0
        with lost_contact_errors(self._ranks.rank):
            self._pending.wait()
        self._pending = None
        return int(self._flag)
