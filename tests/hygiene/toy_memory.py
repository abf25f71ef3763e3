"""A memory as somebody else would write it: one file."""

from typing import Any

import torch
from torch import Tensor, nn

from txl.config import Context, ModelConfig
from txl.memory import MemoryRule, State, Traits
from txl.model.memory import Reading


class ToyMemory(MemoryRule):
    """One vector: a moving average, with a learned decay, of the last state of each segment; it is to be short."""

    traits = Traits(works_with={"reversible": (False,)})

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.full((1,), 0.5))

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        mean_BD = like.new_zeros(batch_size, config.d_model)
        return State(like.new_empty(batch_size, 0, config.d_model), {"mean_BD": mean_BD})

    @classmethod
    def full(cls, config: ModelConfig, context: Context, batch_size: int, *, like: Tensor) -> State:
        return cls.empty(config, batch_size, like=like)

    @classmethod
    def n_kept(cls, state: State) -> int:
        return 1

    def forward(
        self, layer: Any, h_BTD: Tensor, state: State, reading: Reading
    ) -> tuple[Tensor, State]:
        mean_BD = state.extra["mean_BD"]
        out_BTD = layer.attend(h_BTD, mean_BD[:, None], reading.feats, reading.span)
        mean_BD = self.decay * mean_BD + (1 - self.decay) * h_BTD[:, -1]
        loss = 1e-3 * mean_BD.square().mean() if self.training and torch.is_grad_enabled() else None
        return out_BTD, State(state.hidden_BMD, {"mean_BD": mean_BD}, loss)
