"""An update that is recorded once and repeated as a CUDA graph (--cuda_graph)."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from txl.config import UsageError
from txl.model.streams import Memory
from txl.ops.lookup import Room, check_ids, shapes_for_any_ids
from txl.runtime.distributed import Ranks
from txl.runtime.recording import Record, on_device
from txl.training.config import TrainConfig
from txl.training.nats import Batch

_LOG = logging.getLogger(__name__)
_PATIENCE = 100
"""Updates after which it is said that none could be recorded."""


class Update(NamedTuple):
    """What an update leaves.

    Attributes:
        nll_BT: the nats of the segment's tokens, detached.
        memories: for the next segment, one for each part of the batch.
        grad_norm: the norm of the gradient.
        memory_loss: what the memory adds to the loss, detached; None: nothing.
    """

    nll_BT: Tensor
    memories: list[Memory | None]
    grad_norm: Tensor
    memory_loss: Tensor | None


def why_no_graph(config: TrainConfig, ranks: Ranks) -> str:
    """Why these processes record no update with these settings; empty: the model decides."""
    if ranks.device.type != "cuda":
        return f"the device is {ranks.device.type}"
    if ranks.world > 1:
        return f"for one process, and there are {ranks.world}; several can have --compile"
    if config.unlike_updates:
        return f"no graph can hold {config.unlike_updates}"
    return ""


def is_recorded(config: TrainConfig, ranks: Ranks) -> bool:
    """True if --cuda_graph has these processes record updates, should the model allow it."""
    return bool(config.cuda_graph) and not why_no_graph(config, ranks)


class RepeatedUpdate:
    """Makes updates as `update` does, from the second over a full memory on as one CUDA graph.

    The first is made kernel by kernel. So are all of other shapes (while the memory grows, the
    short last segment of an epoch), and those that the graph has no room for. What a repetition
    returns is valid until the next one.

    Args:
        update: reads a batch over memories and updates the weights. It may depend on nothing else
            that changes on the host from one time to the next.
        n_token: of the vocabulary.
        room: for the ids of each part that `update` computes at a time.
        parts: cuts ids, (B, T), into these parts.
        must_record: False: where an update cannot be recorded, a line says so, and all are made
            kernel by kernel.
    """

    def __init__(
        self,
        update: Callable[[Batch, list[Memory | None]], Update],
        device: torch.device,
        n_token: int,
        room: Room,
        parts: Callable[[Tensor], list[Tensor]],
        record: Record,
        *,
        must_record: bool,
    ) -> None:
        self._alone = update
        self._update = shapes_for_any_ids(room)(update)
        self._device = device
        self._n_token = n_token
        self._room = room
        self._parts = parts
        self._record = record
        self._must_record = must_record
        self._gave_up = False
        self._last_shapes: list[torch.Size] | None = None
        self._recording: _Recording | None = None
        self._n_alone = 0

    def __call__(self, batch: Batch, memories: list[Memory | None]) -> Update:
        """Make one update. Raises `UsageError` if it cannot be recorded but must be."""
        if self._gave_up or not self._has_room(batch):
            self._last_shapes = None  # what is recorded has been made in its room just before
            return self._alone(batch, memories)
        shapes = _shapes(batch, memories)
        if self._recording is None and self._is_settled(shapes):
            self._recording = self._recorded(batch, memories)
        self._last_shapes = shapes
        if self._recording is None or self._recording.shapes != shapes:
            self._note()
            return self._update(batch, memories)
        for ids in batch[:2]:
            check_ids(ids, self._n_token)
        return self._recording.repeat(batch, memories)

    def _has_room(self, batch: Batch) -> bool:
        """True if each cluster has room for its ids of each part of the batch."""
        return all(self._room.holds(part) for ids in batch[:2] for part in self._parts(ids))

    def _is_settled(self, shapes: list[torch.Size] | None) -> bool:
        """True if the last update had these shapes, and left memories of the same."""
        return shapes is not None and shapes == self._last_shapes

    def _note(self) -> None:
        """Say so where the flag is of no use: nothing has been recorded for long."""
        self._n_alone += 1
        if self._recording is None and self._n_alone == _PATIENCE:
            _LOG.warning(
                "--cuda_graph: of %d updates none could be recorded, since each read a memory or a"
                " segment of another length than the one before; they are faster without it",
                _PATIENCE,
            )

    def _recorded(self, batch: Batch, memories: list[Memory | None]) -> "_Recording | None":
        try:
            with on_device(self._device):
                return _Recording(self._update, batch, memories, self._device, self._record)
        except RuntimeError as error:  # a layer may have operations that a graph cannot hold
            why = f"an update cannot be recorded ({str(error).splitlines()[0]})"
            if self._must_record:
                raise UsageError(f"--cuda_graph: {why}; give --no_cuda_graph") from None
            _LOG.warning("--cuda_graph auto: off: %s", why)
            self._gave_up = True
            return None


class _Recording:
    """An update of given shapes, with operands at fixed places."""

    def __init__(
        self,
        update: Callable[[Batch, list[Memory | None]], Update],
        batch: Batch,
        memories: list[Memory | None],
        device: torch.device,
        record: Record,
    ) -> None:
        self.shapes = _shapes(batch, memories)
        input_BT, target_BT, since_BT = batch
        if since_BT is not None:
            since_BT = torch.empty_like(since_BT, device=device)
        self._batch = (
            torch.empty_like(input_BT, device=device),
            torch.empty_like(target_BT, device=device),
            since_BT,
        )
        self._memories: list[Memory | None] = []
        for memory in memories:
            assert memory is not None
            self._memories.append(memory.map(torch.clone))
        self._load(batch, memories)
        self._left: Update | None = None

        def work() -> None:
            left = update(self._batch, self._memories)
            copy_memories(left.memories, self._memories)
            self._left = left

        self._repeat = record(work)

    def repeat(self, batch: Batch, memories: list[Memory | None]) -> Update:
        """Make the update again."""
        self._load(batch, memories)
        self._repeat()
        assert self._left is not None
        return self._left._replace(memories=self._memories)

    def _load(self, batch: Batch, memories: list[Memory | None]) -> None:
        for place, given in zip(self._batch, batch, strict=True):
            if place is not None and given is not None:
                if place.is_cuda and not given.is_cuda:
                    given = given.pin_memory()  # or the copy waits
                place.copy_(given, non_blocking=True)
        if memories is not self._memories:
            copy_memories(memories, self._memories)


def copy_memories(memories: Sequence[Memory | None], into: Sequence[Memory | None]) -> None:
    """Write memories where others of the same shapes are; those of a part in one kernel."""
    for memory, place in zip(memories, into, strict=True):
        assert memory is not None
        assert place is not None
        given = memory.named()
        places = place.named()
        torch._foreach_copy_([*places.values()], [given[name] for name in places])  # type: ignore[attr-defined]  # no public form


def _shapes(batch: Batch, memories: list[Memory | None]) -> list[torch.Size] | None:
    """Of all that an update reads; None while there is no memory."""
    tensors = [x for x in batch if x is not None]
    for memory in memories:
        if memory is None:
            return None
        tensors += memory.named().values()
    return [x.shape for x in tensors]
