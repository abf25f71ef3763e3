"""The memory of the Recurrent Memory Transformer: a few tokens that a segment reads and writes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from txl.config import FEW, Context, ModelConfig, PartSettings, option
from txl.memory.beside import BESIDE
from txl.memory.none import NoMemory
from txl.model.layer import run_layers
from txl.model.memory import Reading, State
from txl.model.rule import MemoryRule, Traits
from txl.model.span import Span


class RecurrentTokens(MemoryRule):
    """Vectors that stand before the segment to be read and after it to be written: [m, segment, m]
    goes through all layers, and what the last one returns for the second m is the m of the next
    segment.

        [_, H', m'] = layers([m, H, m])          m of the first segment is learned
        m           m' of the segment before, or its norm (`tokens_of`), the same without pre_lnorm

    Source: Bulatov et al. 2022 (arXiv 2207.06881), sec. 3.2, for decoders. Tokens stand at
    consecutive positions and see what is before them, so a segment does not see what is written.
    The paper's layers end in a norm. Those with pre_lnorm add to what they read: without a norm m
    grows from segment to segment, until what one adds is lost in it.
    Differs from the paper, which reads segments of one length: here a segment of any length writes,
    also one of a single token, as in generation.
    Differs from the authors' code (booydar/LM-RMT, mem_transformer.py), where the tokens m that are
    read see each other both ways, and so do those that are written: here they see only what is
    before them.
    Gradients flow through m from part to part of a step.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(PartSettings):
        n_memory_token: int = option(
            8, "vectors that are read before a segment and written after it", **FEW
        )
        tokens_of: Literal["hidden", "normed"] = option(
            "normed",
            "what is read of what was written: hidden states, which with --pre_lnorm grow with each"
            " segment, or their norms as attention reads them",
        )

    traits = Traits(BESIDE | {"mem_len": (0,)}, masks_documents=False, learns_to_write=True)
    when_missing: ClassVar[Mapping[str, Any]] = {"tokens_of": "hidden"}

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        settings = config.settings(self.Settings)
        self.begin_MD = nn.Parameter(torch.zeros(settings.n_memory_token, config.d_model))
        self.tokens_of = settings.tokens_of

    @classmethod
    def of_layer(cls, config: ModelConfig, layer: int) -> type[MemoryRule]:
        if layer:
            return NoMemory
        return cls

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        none_B0D = like.new_empty(batch_size, 0, config.d_model)
        return State(none_B0D, {"tokens": none_B0D})

    @classmethod
    def full(cls, config: ModelConfig, context: Context, batch_size: int, *, like: Tensor) -> State:
        n_token = config.settings(cls.Settings).n_memory_token
        tokens_BMD = like.new_zeros(batch_size, n_token, config.d_model)
        return State(tokens_BMD[:, :0], {"tokens": tokens_BMD})

    @classmethod
    def n_kept(cls, state: State) -> int:
        """Keys before the segment and after it."""
        return 2 * state.extra["tokens"].shape[1]

    @staticmethod
    def run(
        layers: Any, h_BTD: Tensor, states: tuple[State, ...], reading: Reading
    ) -> tuple[Tensor, tuple[State, ...]]:
        """One layer after the other, over the segment and its memory tokens on both sides."""
        n_token = len(layers[0].memory.begin_MD)
        n_new = 2 * n_token + h_BTD.shape[1]
        span = Span.of(reading.context, n_mem=0, n_new=n_new)
        n_full = 2 * n_token + reading.span.n_full - reading.span.n_mem  # of a segment that is open
        span = replace(span, n_full=n_full)
        longer = replace(reading, span=span)
        h_BTD, states = run_layers(layers, h_BTD, states, longer)
        written_BMD = h_BTD[:, -n_token:].clone()
        first = states[0]._replace(extra={"tokens": written_BMD})
        return h_BTD[:, n_token:-n_token], (first, *states[1:])

    def begun(self, layer: Any, state: State) -> Tensor:
        """m, (B, M, D), with which a segment begins."""
        written_BMD = state.extra["tokens"]
        begin_BMD = self.begin_MD.expand(len(written_BMD), -1, -1)
        if not written_BMD.shape[1]:
            return begin_BMD
        if self.tokens_of == "normed":
            written_BMD = layer.normed(written_BMD)
        return written_BMD + 0 * begin_BMD  # a gradient in each step

    def forward(
        self, layer: Any, h_BTD: Tensor, state: State, reading: Reading
    ) -> tuple[Tensor, State]:
        tokens_BMD = self.begun(layer, state)
        h_BTD = torch.cat([tokens_BMD, h_BTD, tokens_BMD], dim=1).to(h_BTD.dtype)
        return layer.attend(h_BTD, state.hidden_BMD, reading.feats, reading.span), state
