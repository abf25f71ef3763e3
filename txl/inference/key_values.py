"""What layers remember where weights do not change: projected keys and values in place of hidden
states, so that each remembered token is projected once instead of once per segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from txl.config import Context, ModelConfig
from txl.inference.key_value import KeyValue, Workspace
from txl.memory.expire_span import ExpireSpan
from txl.memory.none import NoMemory
from txl.memory.sinks import Sinks, begins, n_dropped, places
from txl.model.attention import Then
from txl.model.memory import Fifo, State
from txl.model.span import Span
from txl.ops.numbers import as_multiplied, product_dtype, widened


class KeyValues:
    """The form of `Fifo`."""

    n_sink = 0
    """Tokens that are kept besides the last mem_len."""

    def empty(self, config: ModelConfig, batch_size: int, *, like: Tensor) -> KeyValue:
        """The memory of a layer before the first segment."""
        return KeyValue.empty(batch_size, config.n_key_head, config.d_head, like=like)

    def of_hidden(self, layer: Any, empty: KeyValue, state: State) -> KeyValue:
        """What is remembered as hidden states, put into an empty memory."""
        return empty.appended(*layer.keys_and_values(state.hidden_BMD))

    def attended(
        self,
        layer: Any,
        h_BTD: Tensor,
        remembered: KeyValue,
        feats: Tensor,
        span: Span,
        context: Context,
    ) -> tuple[Tensor, KeyValue]:
        """The output of a layer's attention, (B, T, D), and what it remembers for the next segment.

        Args:
            feats: projected features of the span.
        """
        out_BTD, seen = attended(layer, h_BTD, remembered, feats, span)
        n_new = max(0, span.n_new - context.ext_len)
        return out_BTD, self.cut(seen, remembered.length + n_new, context.mem_len, span, n_new)

    def cut(
        self, seen: KeyValue, end: int, mem_len: int, span: Span | None = None, n_new: int = 0
    ) -> KeyValue:
        """What is kept of the keys before `end`.

        Args:
            span: of the segment that stands last in them, if it may have documents.
            n_new: tokens of that segment that stand before `end`.
        """
        return seen.between(max(0, end - mem_len), end)


class KeyValuesWithSinks(KeyValues):
    """The form of `Sinks`."""

    def __init__(self, n_sink: int) -> None:
        self.n_sink = n_sink

    def cut(
        self, seen: KeyValue, end: int, mem_len: int, span: Span | None = None, n_new: int = 0
    ) -> KeyValue:
        """See `KeyValues.cut` and `Sinks.next_state`."""
        n_gone = n_dropped(end, self.n_sink, mem_len)
        if not n_gone:
            return seen.between(0, end)
        if span is None or span.since_BT is None:
            return seen.first_and_between(self.n_sink, self.n_sink + n_gone, end)
        begin_B = begins(span, n_new, n_gone)
        return seen.at(places(begin_B, self.n_sink, n_gone, end))


class KeyValuesWithSpans(KeyValues):
    """The form of `ExpireSpan`: keys, values and span of each token are computed once."""

    def empty(self, config: ModelConfig, batch_size: int, *, like: Tensor) -> KeyValue:
        """See `KeyValues.empty`."""
        none_B0 = like.new_empty(batch_size, 0)
        extra = {"age": none_B0.long(), "span": widened(none_B0)}
        return super().empty(config, batch_size, like=like).with_extra(extra)

    def of_hidden(self, layer: Any, empty: KeyValue, state: State) -> KeyValue:
        """See `KeyValues.of_hidden`."""
        projected = super().of_hidden(layer, empty, state)
        span_BM = layer.memory.spans(layer, state.hidden_BMD)
        return projected.with_extra({"age": state.extra["age"], "span": span_BM})

    def attended(
        self,
        layer: Any,
        h_BTD: Tensor,
        remembered: KeyValue,
        feats: Tensor,
        span: Span,
        context: Context,
    ) -> tuple[Tensor, KeyValue]:
        """See `KeyValues.attended` and `ExpireSpan.forward`."""
        rule: ExpireSpan = layer.memory
        out_BTD, seen, span_BS = self.weighed(layer, h_BTD, remembered, feats, span)
        age_BM = remembered.extra["age"][:, remembered.length + span.n_new - seen.length :]
        n_kept = seen.length - min(context.ext_len, span.n_new)
        places = rule.staying(age_BM, span_BS[:, :n_kept], context.mem_len)
        if places.at_BM is None:
            kept = seen.between(places.begin, n_kept)
        else:
            kept = seen.at(places.at_BM)
        extra = {"age": places.age_BM, "span": places.of(span_BS[:, :n_kept])}
        return out_BTD, kept.with_extra(extra)

    def weighed(
        self, layer: Any, h_BTD: Tensor, remembered: KeyValue, feats: Tensor, span: Span
    ) -> tuple[Tensor, KeyValue, Tensor]:
        """The output of attention, and keys, values and spans of what rows hold of the memory, and
        of the segment.
        """
        rule: ExpireSpan = layer.memory
        begin = rule.first_held(remembered.extra["age"])
        age_BM = remembered.extra["age"][:, begin:]
        span_BM = remembered.extra["span"][:, begin:]
        span_BS = torch.cat([span_BM, rule.spans(layer, h_BTD)], dim=1)
        span = rule.weighed(rule.placed(span, age_BM), age_BM, span_BS)
        if layer.attn.pos.by_distance:
            feats = feats[-span.n_key :]
        held = remembered.between(begin, remembered.length)
        out_BTD, seen = attended(layer, h_BTD, held, feats, span)
        return out_BTD, seen, span_BS


def attended(
    layer: Any,
    h_BTD: Tensor,
    remembered: KeyValue,
    feats: Tensor,
    span: Span,
    then: Then | None = None,
) -> tuple[Tensor, KeyValue]:
    """The output of attention, and the keys and values of [memory, segment].

    Args:
        then: changes the result before heads are joined.
    """
    attn = layer.attn
    x_BTD = as_multiplied(layer.normed(h_BTD))
    q_BNTH = attn.heads(attn.q_net(x_BTD))
    seen = remembered.appended(*attn.keys_and_values(x_BTD))
    out_BNTH = attn.attend(q_BNTH, seen.k_BNMH, seen.v_BNMH, feats, span)
    if then is not None:
        out_BNTH = then(q_BNTH, out_BNTH)
    return attn.joined(out_BNTH), seen


_FORMS: dict[type, type[KeyValues]] = {
    Fifo: KeyValues,
    NoMemory: KeyValues,
    Sinks: KeyValuesWithSinks,
    ExpireSpan: KeyValuesWithSpans,
}


def form_of(layers: Any) -> KeyValues | None:
    """The form for the memory of these layers; None: it has none, or keys hold positions."""
    if layers[0].attn.pos.places_hidden_states():
        return None
    rules = [layer.memory for layer in layers]
    if any(getattr(rule, "keeps_output", False) for rule in rules):
        return None
    first, *others = (_FORMS.get(type(rule)) for rule in rules)
    if first is None or any(other is not first for other in others):
        return None
    if first is KeyValuesWithSinks:
        return KeyValuesWithSinks(rules[0].n_sink)
    return first()


@dataclass(frozen=True, eq=False)
class KeyValueMemory:
    """The memory for fixed weights: keys and values instead of hidden states.

    Equivalent to `Memory`, but projects each remembered token once instead of once per segment.
    Immutable, without gradients, for encodings that add no positions to hidden states
    (`PositionEncoding.places_hidden_states`).

    Attributes:
        form: of what each layer remembers.
        feats: per layer the projected position features (`PositionEncoding.project`), one row per
            distance, farthest first, for the longest span so far; shorter spans use the last rows.
            Where distances are clamped, those of `rel_attention` on a CPU have one row for all
            beyond.
        feats_for: what `feats` depend on besides; see `with_feats`.
        one_token: what `txl.inference.one_token` has made ready to read a token at a time, per
            layer.
    """

    layers: tuple[KeyValue, ...]
    form: KeyValues
    feats: tuple[Tensor, ...] = ()
    feats_for: tuple[object, ...] = ()
    one_token: tuple[Any, ...] = ()

    @property
    def length(self) -> int:
        """Remembered tokens."""
        return self.layers[0].length

    @property
    def batch_size(self) -> int:
        return self.layers[0].batch_size

    @property
    def has_keys_only(self) -> bool:
        """True if keys and values are all that is remembered, and which of them stay does not
        depend on what they are.
        """
        return type(self.form) in (KeyValues, KeyValuesWithSinks)

    def of(self, layers: Sequence[KeyValue]) -> "KeyValueMemory":
        """With this of each layer."""
        return replace(self, layers=tuple(layers))

    def in_place(self, *, n_kept: int, n_new: int) -> "KeyValueMemory":
        """The same memory for a reader that keeps n_kept tokens and reads up to n_new at a time:
        forgotten keys are overwritten, and earlier objects become invalid.

        Where segments are long, all layers
        join them with what is remembered in one workspace; where they are short that would move
        every key each time, so that each layer has room for half a memory more. Other forms may
        look back at what they appended to: theirs stay as they are.
        """
        if not self.has_keys_only:
            return self
        n_kept = n_kept + self.form.n_sink
        if 2 * n_new >= n_kept:
            workspace = Workspace()
            return self.of([layer.in_workspace(workspace) for layer in self.layers])
        return self.of([layer.in_place(n_kept + n_kept // 2) for layer in self.layers])

    def cut(self, end: int, mem_len: int) -> "KeyValueMemory":
        """What a memory of mem_len tokens keeps of those before `end`."""
        return self.of([self.form.cut(layer, end, mem_len) for layer in self.layers])

    def finite_in(self, row_B: Tensor) -> tuple["KeyValueMemory", Tensor]:
        """With zeros for what is not finite in the rows where `row_B` is True, (B,), and in which
        rows that was. Copies keys and values only there.
        """
        if not bool(row_B.any()):
            return self, row_B
        pairs = [layer.finite_in(row_B) for layer in self.layers]
        layers, was_bad = zip(*pairs, strict=True)
        return self.of(layers), torch.stack(was_bad).any(0)

    def spoiled(self, row_B: Tensor) -> "KeyValueMemory":
        """With NaN in the rows where `row_B` is True, (B,). Copies keys and values only there."""
        if not bool(row_B.any()):
            return self
        return self.of([layer.spoiled(row_B) for layer in self.layers])

    def rows(self, index_B: Tensor) -> "KeyValueMemory":
        """See `Memory.rows`."""
        return self.of([layer.rows(index_B) for layer in self.layers])

    def feats_of(self, layers: Sequence[Any], n_new: int) -> tuple[Tensor, ...]:
        """The features of each layer for a segment of n_new tokens, once `with_feats` has made
        them.
        """
        if not layers[0].attn.pos.by_distance:
            return self.feats
        pairs = zip(self.feats, self.layers, strict=True)
        return tuple(feats[-layer.length - n_new :] for feats, layer in pairs)

    @torch.no_grad()
    def with_feats(
        self, layers: Sequence[Any], context: Context, *, n_new: int
    ) -> "KeyValueMemory":
        """The memory with the position features projected for a segment of n_new tokens, unless it
        has them.

        For encodings of distances they are computed once, for the longest span.
        `txl.inference.frozen.read` calls this itself; call it before recording a forward pass (CUDA
        graph), or the projection is recorded too.
        """
        span = Span.of(context, n_mem=max(layer.length for layer in self.layers), n_new=n_new)
        by_distance = layers[0].attn.pos.by_distance
        training = layers[0].training
        weight = layers[0].attn_norm.weight
        made_for = span.clamp_len, product_dtype(weight), weight.device, training
        serves = by_distance and bool(self.feats) and self.feats_for == made_for
        n_row = _distinct(span.n_key, layers[0], span)
        if serves and not training and len(self.feats[0]) >= n_row:  # in training they have dropout
            return self
        if by_distance:
            n_kept = self.form.n_sink + context.mem_len
            longest = max(span.n_key, n_kept + context.ext_len + context.tgt_len)
            span = Span(_distinct(longest, layers[0], span), 0, clamp_len=span.clamp_len)
        feats = layers[0].attn.pos.prepare(span, like=weight)
        projected = tuple(layer.attn.pos.project(feats) for layer in layers)
        return replace(self, feats=projected, feats_for=made_for, one_token=())


def _distinct(n_row: int, layer: Any, span: Span) -> int:
    """How many of so many rows of features differ."""
    is_known = (
        layer.attn.pos.is_relative()
        and not layer.training
        and layer.attn_norm.weight.device.type == "cpu"
    )
    if is_known and span.clamp_len > 0:
        return min(n_row, span.clamp_len + 1)
    return n_row
