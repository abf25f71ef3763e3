"""A memory as somebody else would write it: one file."""

from typing import Any

import torch
from torch import Tensor, nn

from txl.config import Context, ModelConfig
from txl.memory.base import MemoryRule, State
from txl.memory.span import Span


class ToyMemory(MemoryRule):
    """One vector: a moving average, with a learned decay, of the last state of each segment; it is to be short."""

    is_bounded = False
    reads_weights = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.decay = nn.Parameter(torch.full((1,), 0.5))

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        mean_BD = like.new_zeros(batch_size, config.d_model)
        return State(like.new_empty(batch_size, 0, config.d_model), {"mean_BD": mean_BD})

    @classmethod
    def length(cls, context: Context, config: ModelConfig) -> int:
        return 1

    def span(self, state: State, context: Context, *, n_new: int, since_BT: Tensor | None = None) -> Span:
        return Span.of(context, n_mem=1, n_new=n_new, since_BT=since_BT)

    def read(self, state: State) -> Tensor:
        return state.more["mean_BD"][:, None]

    def kept(self, state: State, new_BTD: Tensor, span: Span, context: Context, layer: Any) -> State:
        mean_BD = self.decay * state.more["mean_BD"] + (1 - self.decay) * new_BTD[:, -1]
        loss = 1e-3 * mean_BD.square().mean() if self.training and torch.is_grad_enabled() else None
        return State(state.hidden_BMD, {"mean_BD": mean_BD}, loss)
