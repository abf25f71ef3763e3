"""A layer of the model, for any position encoding and attention rule."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from txl.config import ModelConfig, require
from txl.memory import KeyValue, Span, build_memory_rule
from txl.model.attention import Attention, Beside
from txl.model.feed_forward import FeedForward
from txl.model.gates import build_gate
from txl.ops.dropout import Dropout
from txl.positions import PositionEncoding


class Layer(nn.Module):
    """Attention over [memory, segment], then a feed-forward network, each with residual connection and LayerNorm.

    With a `gate` there are gates in place of the residual sums; see `txl.model.gates`.
    With `reversible` the state holds two streams, concatenated as (B, T, 2D); see `txl.model.reversible`.
    """

    def __init__(
        self, config: ModelConfig, pos: PositionEncoding, *, index: int = 0, dropout: float, dropatt: float
    ) -> None:
        super().__init__()
        self.pre_lnorm, self.reversible = config.pre_lnorm, config.reversible
        self.attn = Attention(config, pos, dropatt=dropatt)
        self.memory = build_memory_rule(config, index)
        require(
            self.memory.keeps_places or not pos.places_hidden_states(),
            f"--position {config.position}: it counts places from where the memory begins, and with --memory "
            f"{config.memory} each row begins elsewhere; use an encoding of distances, such as {ModelConfig.position}",
        )
        self.attn_drop = Dropout(dropout)
        self.attn_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.ff = FeedForward(config, dropout=dropout)
        self.ff_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.attn_gate, self.ff_gate = build_gate(config), build_gate(config)

    def forward(
        self,
        state: Tensor,
        mem_BMD: Tensor,
        feats: Tensor,
        span: Span,
        more: Mapping[str, Tensor] | None = None,
        then: Callable[[Tensor], Any] | None = None,
    ) -> Any:
        """The state after the layer, (B, T, D).

        Args:
            more: what the memory keeps besides, see `MemoryRule.beside`.
            then: something else to compute while the weights are there: returned beside the state.
        """
        out = self._out(state, mem_BMD, feats, span, more)
        return out if then is None else (out, then(out))

    def _out(
        self, state: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span, more: Mapping[str, Tensor] | None
    ) -> Tensor:
        if self.reversible:
            return self._after(state, self.attended(self.read(state), mem_BMD, feats, span))
        if more:
            span = self.memory.weighed(span, state, mem_BMD, more)
        x_BTD, mem_BMD = self.attn.pos.layer_input(state, mem_BMD, feats, span)
        beside = partial(self.memory.beside, more, span) if more else None
        return self._after(x_BTD, self._attended(x_BTD, mem_BMD, feats, span, beside))

    def with_key_values(
        self, state: Tensor, remembered: KeyValue, feats: Tensor, span: Span
    ) -> tuple[Tensor, KeyValue]:
        """`forward` with a memory of keys and values; see `Attention.with_key_values`."""
        read_BTD = self.read(state)
        normed_BTD = self.attn_norm(read_BTD) if self.pre_lnorm else read_BTD
        attended_BTD, seen = self.attn.with_key_values(normed_BTD, remembered, feats, span)
        return self._after(state, self.attn_drop(attended_BTD)), seen

    def remembered(self, empty: KeyValue, mem_BMD: Tensor) -> KeyValue:
        """The keys and values of remembered hidden states, in a memory of keys and values that is empty."""
        return self.attn.remembered(empty, self.attn_norm(mem_BMD) if self.pre_lnorm else mem_BMD)

    def read(self, state: Tensor) -> Tensor:
        """The part of the state that attention reads and memory stores, (B, T, D)."""
        return state.chunk(2, dim=-1)[1] if self.reversible else state

    def attended(self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span) -> Tensor:
        """The attention output, added to stream 1. Positions added to the layer input do not stay in stream 2."""
        return self._attended(*self.attn.pos.layer_input(x_BTD, mem_BMD, feats, span), feats, span)

    def keys_and_values(self, hidden_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Those of hidden states that the layer has read, (B, N, L, H) each, without positions."""
        return self.attn.keys_and_values(self.attn_norm(hidden_BLD) if self.pre_lnorm else hidden_BLD)

    def _attended(
        self,
        x_BTD: Tensor,
        mem_BMD: Tensor,
        feats: Tensor,
        span: Span,
        beside: Beside | None = None,
    ) -> Tensor:
        if self.pre_lnorm:  # memory is stored unnormalised and normalised on each read
            x_BTD, mem_BMD = self.attn_norm(x_BTD), self.attn_norm(mem_BMD)
        return self.attn_drop(self.attn(x_BTD, mem_BMD, feats, span, beside))

    def feed_forward(self, x_BTD: Tensor) -> Tensor:
        """The feed-forward output, before the residual connection."""
        return self.ff(self.ff_norm(x_BTD) if self.pre_lnorm else x_BTD)

    def _after(self, state: Tensor, attended_BTD: Tensor) -> Tensor:
        if self.reversible:
            x1_BTD, x2_BTD = state.chunk(2, dim=-1)
            x1_BTD = x1_BTD + attended_BTD
            return torch.cat([x1_BTD, x2_BTD + self.feed_forward(x1_BTD)], dim=-1)
        if self.attn_gate is not None and self.ff_gate is not None:
            x_BTD = self.attn_gate(state, attended_BTD)
            return self.ff_gate(x_BTD, self.feed_forward(x_BTD))
        x_BTD = state + attended_BTD
        if self.pre_lnorm:
            return x_BTD + self.feed_forward(x_BTD)
        x_BTD = self.attn_norm(x_BTD)
        return self.ff_norm(x_BTD + self.feed_forward(x_BTD))
