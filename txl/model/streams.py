"""What all layers remember of several streams: rows joined, parted and moved, tensors by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.model.memory import State


@dataclass(frozen=True, eq=False)
class Memory:
    """A state for each layer. A model takes one and returns the next; `None` in its place is the
    empty one.

    Differs from kimiyoung/transformer-xl: n_layer tensors of hidden states instead of n_layer + 1,
    whose last was never read.
    """

    states: tuple[State, ...]

    @property
    def layers(self) -> tuple[Tensor, ...]:
        """The hidden states, (B, M, D) for each layer."""
        return tuple(state.hidden_BMD for state in self.states)

    @property
    def length(self) -> int:
        """Remembered tokens whose hidden states are there."""
        return self.states[0].hidden_BMD.shape[1]

    @property
    def batch_size(self) -> int:
        return self.states[0].hidden_BMD.shape[0]

    def named(self) -> dict[str, Tensor]:
        """All tensors: those of layer i are `i` and `i.name`."""
        tensors = {str(i): state.hidden_BMD for i, state in enumerate(self.states)}
        for i, state in enumerate(self.states):
            tensors |= {f"{i}.{name}": tensor for name, tensor in state.extra.items()}
        return tensors

    def map(self, change: Callable[[Tensor], Tensor]) -> "Memory":
        """With all tensors changed in the same way, without a loss."""
        return Memory(tuple(_changed(state, change) for state in self.states))

    def rows(self, index_B: Tensor) -> "Memory":
        """The rows with these indices, which may repeat, in their order."""
        return self.map(lambda tensor: tensor.index_select(0, index_B))

    def to(self, device: torch.device) -> "Memory":
        """A copy on a device. Copies to the host are synchronous: it can read them at once."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=device.type != "cpu"))

    def detached(self) -> "Memory":
        """Without the graph of what it was computed from."""
        return self.map(Tensor.detach)


def _changed(state: State, change: Callable[[Tensor], Tensor]) -> State:
    extra = {name: change(tensor) for name, tensor in state.extra.items()}
    return State(change(state.hidden_BMD), extra)


def of_hidden(layers: Sequence[Tensor]) -> Memory:
    """The memory of these hidden states, (B, M, D) for each layer."""
    return Memory(tuple(State(hidden_BMD) for hidden_BMD in layers))


def of_named(tensors: Mapping[str, Tensor]) -> Memory:
    """The memory of these tensors; see `Memory.named`."""
    n_layer = sum(name.isdigit() for name in tensors)
    extra: list[dict[str, Tensor]] = [{} for _ in range(n_layer)]
    for name, tensor in tensors.items():
        layer, _, kept = name.partition(".")
        if kept:
            extra[int(layer)][kept] = tensor
    return Memory(tuple(State(tensors[str(i)], extra[i]) for i in range(n_layer)))


def joined(memories: Sequence[Memory]) -> Memory:
    """The memory of the streams of several, in their order.

    Raises:
        ValueError: if they hold different numbers of states, and nothing says how many each row
            holds.
    """
    named = [memory.named() for memory in memories]
    _require_joinable(named)
    return of_named({name: rows_joined([tensors[name] for tensors in named]) for name in named[0]})


def chunks(memory: Memory, n: int) -> list[Memory]:
    """The memories of n equal parts of the streams."""
    parts = {name: tensor.chunk(n) for name, tensor in memory.named().items()}
    return [of_named({name: part[i] for name, part in parts.items()}) for i in range(n)]


def swapped_out(memory: Memory) -> Memory:
    """A copy in the host's RAM, page-locked: a GPU makes it without waiting, and must be
    synchronised before the host reads it."""

    def copied(tensor: Tensor) -> Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return host.copy_(tensor, non_blocking=True)

    return memory.map(copied)


def rows_joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of several tensors. Zeros stand first in those that are shorter along the second
    axis."""
    longest = max(part.shape[1] if part.ndim > 1 else 0 for part in parts)
    return torch.cat([_lengthened(part, longest) for part in parts])


def _lengthened(x: Tensor, length: int) -> Tensor:
    if x.ndim == 1:
        return x
    return F.pad(x, (0, 0) * (x.ndim - 2) + (length - x.shape[1], 0))


def per_row(row_B: Tensor, tensor: Tensor) -> Tensor:
    """One number a row, in the shape in which it is broadcast over all that a tensor holds of the
    row."""
    return row_B.view(-1, *[1] * (tensor.ndim - 1))


def of_rows(tensor: Tensor) -> Tensor:
    """All that a tensor holds of each row, (B, X), also of one with a single number a row."""
    return tensor[..., None].flatten(1)


def _require_joinable(memories: Sequence[Mapping[str, Tensor]]) -> None:
    """Raise `ValueError` unless the rows of memories, see `Memory.named`, can stand in one.

    Rows that hold less than others are filled with zeros, which only states with an age tell from
    what is remembered.
    """
    if not memories:
        raise ValueError("no memories to join: give at least one")
    names = memories[0].keys()
    if any(tensors.keys() != names for tensors in memories):
        raise ValueError("memories of different models: give those of one")
    for name in names:
        layer, _, kept = name.partition(".")
        shapes = sorted({tuple(tensors[name].shape[1:]) for tensors in memories})
        if len(shapes) == 1 or f"{layer}.age" in names:
            continue
        axes = zip(*shapes, strict=True)
        axis = next(i for i, sizes in enumerate(axes) if len(set(sizes)) > 1)
        sizes = sorted({shape[axis] for shape in shapes})
        what = f"states ({kept})" if kept else "steps"
        raise ValueError(f"memories of {' and '.join(map(str, sizes))} {what}: give memories of one length")


def grown(state: State, mem_len: int, lengths: Mapping[str, int] | None = None) -> State:
    """A state of zeros that has grown from an empty one to `mem_len`, or the length that its name
    has in `lengths`; that of hidden states is `hidden`."""
    lengths = lengths or {}

    def full(x: Tensor, length: int) -> Tensor:
        return x.new_zeros([size or length for size in x.shape])

    extra = {name: full(x, lengths.get(name, mem_len)) for name, x in state.extra.items()}
    return State(full(state.hidden_BMD, lengths.get("hidden", mem_len)), extra)
