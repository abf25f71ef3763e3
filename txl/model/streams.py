"""What all layers remember of several streams: rows joined, parted and moved, tensors by name.

What is not finite in a document, or an episode, reaches no later one of its row. Attention gives
hidden tokens the probability 0, and 0 times NaN is NaN, in values and in gradients. So what is not
finite is taken out where its document has ended, and the outputs that it belongs to are NaN all the
same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.model.memory import State, make_states
from txl.model.span import Span
from txl.ops.numbers import total


@dataclass(frozen=True, eq=False)
class Memory:
    """A state for each layer. A model takes one and returns the next; `None` in its place is the
    empty one.

    Differs from kimiyoung/transformer-xl: n_layer tensors of hidden states instead of n_layer + 1,
    whose last was never read.

    Args:
        states: of each layer, or its hidden states alone, (B, M, D).
    Raises:
        TypeError: if one is neither.
    """

    states: tuple[State, ...]

    __post_init__ = make_states

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

    @property
    def loss(self) -> Tensor | None:
        """What the last segment adds to the training loss; None: nothing."""
        return total(state.loss for state in self.states)

    def named(self) -> dict[str, Tensor]:
        """All tensors: those of layer i are `i` and `i.name`."""
        tensors = {}
        for i, state in enumerate(self.states):
            tensors[str(i)] = state.hidden_BMD
        for i, state in enumerate(self.states):
            for name, tensor in state.extra.items():
                tensors[f"{i}.{name}"] = tensor
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
    extra = {}
    for name, tensor in state.extra.items():
        extra[name] = change(tensor)
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
    parts = {}
    for name, tensor in memory.named().items():
        parts[name] = tensor.chunk(n)
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
        if kept:
            what = f"states ({kept})"
        else:
            what = "steps"
        raise ValueError(
            f"memories of {' and '.join(map(str, sizes))} {what}: give memories of one length"
        )


def grown(state: State, mem_len: int, lengths: Mapping[str, int] | None = None) -> State:
    """A state of zeros that has grown from an empty one to `mem_len`, or the length that its name
    has in `lengths`; that of hidden states is `hidden`."""
    lengths = lengths or {}

    def full(x: Tensor, length: int) -> Tensor:
        return x.new_zeros([size or length for size in x.shape])

    extra = {name: full(x, lengths.get(name, mem_len)) for name, x in state.extra.items()}
    return State(full(state.hidden_BMD, lengths.get("hidden", mem_len)), extra)


_NEVER = -(2**31)
"""A place that no token sees."""


class MadeFinite(NamedTuple):
    """A segment and what is remembered before it, which are finite but for the memory of rows whose
    document goes on through all of the segment.

    Attributes:
        h_BTD: the vectors of the segment.
        memory: what is remembered.
        spoiled_BT: True for tokens that see something that was not finite and is taken out.
        goes_on_B: True where such a vector of the segment belongs to the row's last document.
    """

    h_BTD: Tensor
    memory: Any
    spoiled_BT: Tensor
    goes_on_B: Tensor

    def marked(self, out_BTD: Tensor) -> Tensor:
        """The output of the segment, with NaN where it would be NaN if nothing
        had been taken out.
        """
        return torch.where(self.spoiled_BT[..., None], torch.nan, out_BTD)

    def marked_memory(self, memory: Any) -> Any:
        """What is remembered after the segment, of NaN in rows whose last document is spoiled: so
        the next segment knows until the document ends.
        """
        if not isinstance(memory, Memory):
            return memory.spoiled(self.goes_on_B)
        states = []
        for state in memory.states:
            spoiled = _changed(state, lambda tensor: _of_nan(tensor, self.goes_on_B))
            states.append(spoiled._replace(loss=state.loss))
        return Memory(tuple(states))


def _of_nan(tensor: Tensor, row_B: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.masked_fill(per_row(row_B, tensor), torch.nan)


def made_finite(h_BTD: Tensor, memory: Any, span: Span) -> MadeFinite:
    """Zeros in place of what is not finite: keys that are NaN spoil also what does not see them.

    What is not finite in the memory of a row whose document goes on through the segment stays: all
    of its tokens see it.

    Args:
        h_BTD: the vectors of the segment, (B, T, D).
        span: says how many tokens before each one belong to its document.
    """
    since_BT = span.since_BT
    assert since_BT is not None
    t_T = torch.arange(h_BTD.shape[1], device=h_BTD.device)
    last_begin_B = t_T[-1] - since_BT[:, -1]
    bad_BT = ~h_BTD.isfinite().all(-1)
    goes_on_B = (bad_BT & (t_T >= last_begin_B[:, None])).any(1)
    if isinstance(memory, Memory):
        finite_in = _finite_in
    else:
        finite_in = type(memory).finite_in
    memory, was_bad_B = finite_in(memory, last_begin_B >= 0)
    place_BT = torch.where(bad_BT, t_T, _NEVER).cummax(dim=1).values
    # the memory stands before token 0
    place_BT = torch.where(was_bad_B[:, None], place_BT.clamp(min=-1), place_BT)
    first_seen_BT = (t_T - since_BT).clamp(min=_NEVER + 1)
    h_BTD = h_BTD.masked_fill(bad_BT[..., None], 0)
    return MadeFinite(h_BTD, memory, place_BT >= first_seen_BT, goes_on_B)


def _finite_in(memory: Memory, row_B: Tensor) -> tuple[Memory, Tensor]:
    """With zeros for what is not finite in the rows where `row_B` is True, (B,), and in which rows
    that was."""
    tensors = memory.named()
    bad = {}
    for name, tensor in tensors.items():
        bad[name] = not_finite_in(tensor, row_B)
    was_bad_B = torch.stack([of_rows(bad_BX).any(1) for bad_BX in bad.values()]).any(0)
    return of_named({name: x.masked_fill(bad[name], 0) for name, x in tensors.items()}), was_bad_B


def not_finite_in(tensor: Tensor, row_B: Tensor) -> Tensor:
    """True where a tensor of rows is not finite, in the rows where `row_B` is True."""
    return ~tensor.isfinite() & per_row(row_B, tensor)
