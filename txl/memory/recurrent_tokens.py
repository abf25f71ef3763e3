"""The memory of the Recurrent Memory Transformer: a few tokens that a segment reads and writes."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from txl.config import Context, ModelConfig
from txl.memory.base import BESIDE, MemoryRule, State
from txl.memory.none import NoMemory
from txl.memory.span import Span


class RecurrentTokens(MemoryRule):
    """Vectors that stand before the segment to be read and after it to be written: [m, segment, m] goes through all
    layers, and what the last one returns for the second m is the m of the next segment.

    [_, H', m'] = layers([m, H, m])          m of the first segment is learned

    Source: Bulatov et al. 2022 (arXiv 2207.06881), sec. 3.2, for decoders. Tokens stand at consecutive positions and
    see what is before them, so a segment does not see what is written.
    Differs from the paper, which reads segments of one length: here a segment of any length writes, also one of a
    single token, as in generation.
    Differs from the authors' code (booydar/LM-RMT, mem_transformer.py), where the tokens m that are read see each other
    both ways, and so do those that are written: here they see only what is before them.
    Gradients flow through m from part to part of a step.
    """

    settings = ("n_memory_token",)
    learns_to_write = True
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = BESIDE | {"mem_len": (0,)}
    is_bounded = False
    entered_weights = ("begin_MD",)
    masks_documents = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.begin_MD = nn.Parameter(torch.zeros(config.n_memory_token, config.d_model))

    @classmethod
    def of_layer(cls, config: ModelConfig, layer: int) -> type[MemoryRule]:
        return NoMemory if layer else cls

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        none_B0D = like.new_empty(batch_size, 0, config.d_model)
        return State(none_B0D, {"tokens": none_B0D})

    @classmethod
    def longest(cls, config: ModelConfig, context: Context) -> Mapping[str, int]:
        return {"tokens": config.n_memory_token}

    @classmethod
    def length(cls, context: Context, config: ModelConfig) -> int:
        return 2 * config.n_memory_token

    def entered(self, h_BTD: Tensor, state: State) -> Tensor:
        begin_BMD = self.begin_MD.expand(len(h_BTD), -1, -1)
        written_BMD = state.more["tokens"]
        tokens_BMD = written_BMD + 0 * begin_BMD if written_BMD.shape[1] else begin_BMD  # a gradient in each step
        return torch.cat([tokens_BMD, h_BTD, tokens_BMD], dim=1).to(h_BTD.dtype)

    def left(self, h_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        n = len(self.begin_MD)
        return h_BTD[:, n:-n], state._replace(more={"tokens": h_BTD[:, -n:].clone()})

    def kept(self, state: State, new_BTD: Tensor, span: Span, context: Context, layer: Any) -> State:
        return state
