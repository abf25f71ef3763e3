"""Projected keys and values in place of hidden states, where the weights are fixed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from txl.config import Context, ModelConfig
from txl.memory.base import MemoryRule, State
from txl.memory.key_value import KeyValue, Workspace
from txl.memory.span import Span
from txl.ops.numbers import product_dtype


class KeyValues(MemoryRule):
    """`fifo` for fixed weights: each remembered token is projected once instead of once per segment.

    A rule like it, `MemoryRule.projected` of another one, overrides its hooks: `empty`, `of_hidden` and `through`.
    """

    def __init__(self) -> None:
        nn.Module.__init__(self)

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> Any:
        """See `MemoryRule.empty`: a `KeyValue`."""
        return KeyValue.empty(batch_size, config.n_head, config.d_head, like=like)

    def of_hidden(self, layer: Any, empty: KeyValue, state: State) -> KeyValue:
        """What is remembered as hidden states, put into an empty memory of keys and values."""
        return layer.remembered(empty, state.hidden_BMD)

    def through(
        self, layer: Any, h_BTD: Tensor, state: KeyValue, feats: Tensor, span: Span, context: Context, run: Any
    ) -> tuple[Tensor, KeyValue]:
        out_BTD, seen = layer.with_key_values(h_BTD, state, feats, span)
        end = state.length + max(0, span.n_new - context.ext_len)
        begin = max(0, end - context.mem_len)
        return out_BTD, seen.between(begin, end)


@dataclass(frozen=True, eq=False)
class KeyValueMemory:
    """The memory for fixed weights: keys and values instead of hidden states.

    Equivalent to `Memory`, but projects each remembered token once instead of once per segment. Immutable, without
    gradients, for encodings that add no positions to hidden states (`PositionEncoding.places_hidden_states`).

    Attributes:
        feats: per layer the projected position features (`PositionEncoding.project`), one row per distance, farthest
            first, for the longest span so far; shorter spans use the last rows. Where distances are clamped, those
            of `rel_attention` on a CPU have one row for all beyond.
        feats_for: what `feats` depend on besides; see `with_feats`.
        one_token: what `txl.model.one_token` has made ready to read a token at a time, per layer.
    """

    layers: tuple[KeyValue, ...]
    feats: tuple[Tensor, ...] = ()
    feats_for: tuple[object, ...] = ()
    one_token: tuple[Any, ...] = ()

    @property
    def states(self) -> tuple[KeyValue, ...]:
        """Of each layer."""
        return self.layers

    @property
    def length(self) -> int:
        """Remembered tokens."""
        return self.layers[0].length

    @property
    def batch_size(self) -> int:
        return self.layers[0].batch_size

    def of(self, states: Sequence[Any]) -> "KeyValueMemory":
        """With these states of its layers."""
        return KeyValueMemory(tuple(states), self.feats, self.feats_for, self.one_token)

    def in_place(self, layers: Sequence[Any], *, n_kept: int, n_new: int) -> "KeyValueMemory":
        """The same memory for a reader that never goes back, keeps n_kept tokens and reads up to n_new at a time.

        Keys that are no longer remembered are written over. Where segments are long, all layers join them with what is
        remembered in one workspace; where they are short that would move every key each time, so that each layer has
        room for half a memory more. Rules like `KeyValues` may look back at what they appended to: theirs stay as they
        are.
        """
        workspace = Workspace()

        def changed(kv: KeyValue) -> KeyValue:
            return kv.in_workspace(workspace) if 2 * n_new >= n_kept else kv.in_place(n_kept + n_kept // 2)

        pairs = zip(layers, self.layers, strict=True)
        return self.of([changed(kv) if type(self.rule(layer)) is KeyValues else kv for layer, kv in pairs])

    def rule(self, layer: Any) -> Any:
        """See `Memory.rule`: a `KeyValues`."""
        return layer.memory.projected

    def between(self, begin: int, end: int) -> "KeyValueMemory":
        """See `Memory.between`."""
        return self.of([layer.between(begin, end) for layer in self.layers])

    def finite_in(self, row_B: Tensor) -> tuple["KeyValueMemory", Tensor]:
        """See `Memory.finite_in`. Copies keys and values only where something is not finite."""
        if not bool(row_B.any()):
            return self, row_B
        pairs = [layer.finite_in(row_B) for layer in self.layers]
        layers, was_bad = zip(*pairs, strict=True)
        return self.of(layers), torch.stack(was_bad).any(0)

    def rows(self, index_B: Tensor) -> "KeyValueMemory":
        """See `Memory.rows`."""
        return self.of([layer.rows(index_B) for layer in self.layers])

    def placed(
        self, layers: Sequence[Any], span: Span, context: Context, *, like: Tensor
    ) -> tuple["KeyValueMemory", tuple[Tensor, ...]]:
        """See `Memory.placed`; the features are projected."""
        memory, by_distance = self.with_feats(layers, context, n_new=span.n_new), layers[0].attn.pos.by_distance
        pairs = zip(memory.feats, self.layers, strict=True)
        return memory, tuple(f[-layer.length - span.n_new :] if by_distance else f for f, layer in pairs)

    @torch.no_grad()
    def with_feats(self, layers: Sequence[Any], context: Context, *, n_new: int) -> "KeyValueMemory":
        """The memory with the position features projected for a segment of n_new tokens, unless it has them.

        For encodings of distances they are computed once, for the longest span. `placed` calls this itself; call it
        before recording a forward pass (CUDA graph), or the projection is recorded too.
        """
        span = Span.of(context, n_mem=max(layer.length for layer in self.layers), n_new=n_new)
        by_distance, training = layers[0].attn.pos.by_distance, layers[0].training
        weight = layers[0].attn_norm.weight
        made_for = span.clamp_len, product_dtype(weight), weight.device, training
        serves = by_distance and bool(self.feats) and self.feats_for == made_for
        n_row = _distinct(span.n_key, layers[0], span)
        if serves and not training and len(self.feats[0]) >= n_row:  # in training they have dropout
            return self
        if by_distance:
            longest = max(span.n_key, context.mem_len + context.ext_len + context.tgt_len)
            span = Span(_distinct(longest, layers[0], span), 0, clamp_len=span.clamp_len)
        feats = layers[0].attn.pos.prepare(span, like=weight)
        projected = tuple(layer.attn.pos.project(feats) for layer in layers)
        return replace(self, feats=projected, feats_for=made_for, one_token=())


def _distinct(n_row: int, layer: Any, span: Span) -> int:
    """How many of so many rows of features differ."""
    is_known = layer.attn.pos.is_relative() and not layer.training and layer.attn_norm.weight.device.type == "cpu"
    return min(n_row, span.clamp_len + 1) if is_known and span.clamp_len > 0 else n_row
