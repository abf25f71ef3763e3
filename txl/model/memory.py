"""What a layer remembers of earlier segments: the memory of the paper, and what all have in common."""

from collections.abc import Mapping, Sequence
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
class Reading:
    """One segment as all layers read it: its context, and where it stands.

    Attributes:
        pos: the position encoding; `like` has the dtype and the device of its features.
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

    Source: Dai et al. 2019, sec. 3.2. With `--recurrence same` outputs are kept (Ding et al. 2021, ERNIE-Doc).
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

    @classmethod
    def n_kept(cls, state: State) -> int:
        """See `MemoryRule.n_kept`."""
        return state.hidden_BMD.shape[1]

    def forward(self, layer: Any, h_BTD: Tensor, state: State, reading: Reading) -> tuple[Tensor, State]:
        """See `MemoryRule.forward`."""
        out_BTD = layer.attend(h_BTD, state.hidden_BMD, reading.feats, reading.span)
        return out_BTD, self.next_state(state, h_BTD, out_BTD, reading.context)

    def next_state(self, state: State, h_BTD: Tensor, out_BTD: Tensor, context: Context) -> State:
        """The state after a segment that the layer read as h and returned as `out`."""
        new_BTD = out_BTD if self.keeps_output else h_BTD
        return State(last_tokens(state.hidden_BMD, new_BTD, context))


def last_tokens(mem_BMD: Tensor, new_BTD: Tensor, context: Context) -> Tensor:
    """The last mem_len tokens of [memory, segment], detached, without the last ext_len of the segment, in a storage of
    their own.

    Differs from kimiyoung/transformer-xl, which calls `_update_mems` with two arguments swapped:
    there a memory shorter than ext_len keeps tokens that the next segment reads again.
    """
    n_mem, n_new = mem_BMD.shape[1], max(0, new_BTD.shape[1] - context.ext_len)
    begin = max(0, n_mem + n_new - context.mem_len)
    new_BTD = new_BTD.detach()[:, max(0, begin - n_mem) : n_new]
    return torch.cat([mem_BMD[:, begin:], new_BTD], dim=1)


def loss_of(states: Sequence[State]) -> Tensor | None:
    """What the last segment adds to the training loss; None: nothing."""
    losses = [state.loss for state in states if state.loss is not None]
    return torch.stack(losses).sum() if losses else None
