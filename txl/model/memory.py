"""What a layer remembers of earlier segments: the paper's memory, and what all have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from txl.config import Context, ModelConfig
from txl.model.rule import MemoryRule, Traits
from txl.model.span import Span
from txl.ops.numbers import on_gpu


class State(NamedTuple):
    """What one layer remembers: plain tensors, one row a stream. Only who made it writes to it."""

    hidden_BMD: Tensor  # inputs of the layer for the last tokens, without positions
    extra: Mapping[str, Tensor] = {}  # further tensors of other memories, by name
    loss: Tensor | None = None  # of the last segment, a mean over streams, to be trained with


def make_states(memory: Any) -> None:
    """Make a `State` of each layer of a `Memory` that is given as hidden states alone. Raises
    `TypeError` if one is neither.
    """
    if all(isinstance(given, State) for given in memory.states):
        return
    states = []
    for given in memory.states:
        if isinstance(given, Tensor) and given.ndim == 3:
            given = State(given)
        if not isinstance(given, State):
            raise TypeError(
                f"Memory takes a State, or a tensor (B, M, D), a layer; not {given!r:.40}"
            )
        states.append(given)
    object.__setattr__(memory, "states", tuple(states))


@dataclass(frozen=True, eq=False)
class Reading:
    """One segment as all layers read it: its context, and where it stands."""

    context: Context
    span: Span
    pos: Any  # the position encoding
    like: Tensor  # has the dtype and the device of its features
    feats: Any = None  # of the span, once they are prepared

    def prepared(self) -> "Reading":
        """With the position features that all layers share."""
        return replace(self, feats=self.pos.prepare(self.span, like=self.like))

    def of_layers(self, layers: Any) -> list["Reading"]:
        """For each layer; on a GPU with features that one product has projected for all of them."""
        if on_gpu(self.like):
            projected = self.pos.project_for_all([layer.attn.pos for layer in layers], self.feats)
            if projected is not None:
                return [replace(self, feats=feats) for feats in projected]
        return [self] * len(layers)


class Fifo(MemoryRule):
    """The layer's last M = mem_len inputs, detached, first in first out: m' = SG([m, h])_(-M:).

    Source: Dai et al. 2019, sec. 3.2. `--recurrence same` keeps outputs (Ding et al. 2021).
    """

    traits = Traits(works_with={}, is_bounded=True, is_queue=True)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.keeps_output = config.recurrence == "same"

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        return State(like.new_empty(batch_size, 0, config.d_model))

    @classmethod
    def full(cls, config: ModelConfig, context: Context, batch_size: int, *, like: Tensor) -> State:
        return State(like.new_zeros(batch_size, context.mem_len, config.d_model))

    @classmethod
    def n_kept(cls, state: State) -> int:
        return state.hidden_BMD.shape[1]

    def forward(
        self, layer: Any, h_BTD: Tensor, state: State, reading: Reading
    ) -> tuple[Tensor, State]:
        out_BTD = layer.attend(h_BTD, state.hidden_BMD, reading.feats, reading.span)
        read_BTD = layer.as_remembered(h_BTD)
        return out_BTD, self.next_state(state, read_BTD, layer.as_remembered(out_BTD), reading)

    def next_state(self, state: State, h_BTD: Tensor, out_BTD: Tensor, reading: Reading) -> State:
        """The state after a segment that the layer read as h and returned as `out`."""
        new_BTD = out_BTD if self.keeps_output else h_BTD
        return State(last_tokens(state.hidden_BMD, new_BTD, reading.context))


def last_tokens(mem_BMD: Tensor, new_BTD: Tensor, context: Context) -> Tensor:
    """The last mem_len of [memory, segment without its last ext_len], detached; a part of a segment
    in own storage.

    Differs from kimiyoung/transformer-xl, which calls `_update_mems` with two arguments swapped:
    there a memory shorter than ext_len keeps tokens that the next segment reads again.
    """
    n_mem = mem_BMD.shape[1]
    n_new = max(0, new_BTD.shape[1] - context.ext_len)
    begin = max(0, n_mem + n_new - context.mem_len)
    if (begin, n_new) == (n_mem, new_BTD.shape[1]):
        return new_BTD.detach()
    new_BTD = new_BTD.detach()[:, max(0, begin - n_mem) : n_new]
    return torch.cat([mem_BMD[:, begin:].to(new_BTD.dtype), new_BTD], dim=1)
