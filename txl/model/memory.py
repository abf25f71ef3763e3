"""What a layer remembers of earlier segments: the memory of the paper, and what all have in common."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from txl.config import Context, ModelConfig
from txl.model.rule import MemoryRule, Traits
from txl.model.span import Span


class State(NamedTuple):
    """What one layer remembers: plain tensors, one row a stream. Never written to.

    Attributes:
        hidden_BMD: inputs of the layer for the last tokens, without positions.
        extra: further tensors of other memories, by name.
        loss: what the last segment adds to the training loss, a mean over streams; None: nothing.
    """

    hidden_BMD: Tensor
    extra: Mapping[str, Tensor] = {}
    loss: Tensor | None = None


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

    @property
    def loss(self) -> Tensor | None:
        """What the last segment adds to the training loss; None: nothing."""
        losses = [state.loss for state in self.states if state.loss is not None]
        return torch.stack(losses).sum() if losses else None

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


@dataclass(frozen=True, eq=False)
class Reading:
    """One segment as all layers read it.

    Attributes:
        span: where the segment and what is remembered stand.
        pos: the position encoding.
        like: hidden states, for the dtype and the device of features.
        feats: the position features of the span, once they are prepared.
    """

    context: Context
    span: Span
    pos: Any
    like: Tensor
    feats: Any = None

    def prepared(self) -> "Reading":
        """With the position features that all layers share."""
        return replace(self, feats=self.pos.prepare(self.span, like=self.like))


class Fifo(MemoryRule):
    """The detached inputs of the layer for the last tokens, first in first out:

    m' = SG([m, h])_(-M:)          M = mem_len, SG stops the gradient

    Source: Dai et al. 2019, sec. 3.2. With `--recurrence same` the layer's outputs are kept (Ding
    et al. 2021, ERNIE-Doc).
    """

    traits = Traits(works_with={}, is_bounded=True, is_queue=True)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.keeps_output = config.recurrence == "same"

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        """See `MemoryRule.empty`."""
        return State(like.new_empty(batch_size, 0, config.d_model))

    @classmethod
    def full(cls, config: ModelConfig, context: Context, batch_size: int, *, like: Tensor) -> State:
        """See `MemoryRule.full`."""
        return State(like.new_zeros(batch_size, context.mem_len, config.d_model))

    def forward(self, layer: Any, h_BTD: Tensor, state: State, reading: Reading) -> tuple[Tensor, State]:
        """See `MemoryRule.forward`."""
        out_BTD = layer.attend(h_BTD, state.hidden_BMD, reading.feats, reading.span)
        return out_BTD, self.next_state(state, h_BTD, out_BTD, reading.context)

    def next_state(self, state: State, h_BTD: Tensor, out_BTD: Tensor, context: Context) -> State:
        """The state after a segment that the layer read as h and returned as `out`."""
        new_BTD = out_BTD if self.keeps_output else h_BTD
        return State(last_tokens(state.hidden_BMD, new_BTD, context))


def last_tokens(mem_BMD: Tensor, new_BTD: Tensor, context: Context) -> Tensor:
    """The last mem_len tokens of [memory, segment], detached, without the last ext_len of the
    segment. The result does not reference its inputs' storage.

    Differs from kimiyoung/transformer-xl, which calls `_update_mems` with two arguments swapped:
    there a memory shorter than ext_len keeps tokens that the next segment reads again.
    """
    n_mem = mem_BMD.shape[1]
    n_new = max(0, new_BTD.shape[1] - context.ext_len)
    begin = max(0, n_mem + n_new - context.mem_len)
    new_BTD = new_BTD.detach()[:, max(0, begin - n_mem) : n_new]
    return torch.cat([mem_BMD[:, begin:], new_BTD], dim=1)
