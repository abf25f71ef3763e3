"""Forms of memories for weights that do not change: projected keys and values in place of hidden
states, so that each remembered token is projected once instead of once per segment."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from txl.config import Context, ModelConfig
from txl.inference.key_value import KeyValue
from txl.memory.expire_span import ExpireSpan
from txl.memory.none import NoMemory
from txl.model.attention import Then
from txl.model.memory import Fifo, State
from txl.model.span import Span
from txl.ops.numbers import as_multiplied, widened


class KeyValues:
    """The form of `Fifo`."""

    def empty(self, config: ModelConfig, batch_size: int, *, like: Tensor) -> KeyValue:
        """The memory of a layer before the first segment."""
        return KeyValue.empty(batch_size, config.n_head, config.d_head, like=like)

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
        end = remembered.length + max(0, span.n_new - context.ext_len)
        return out_BTD, seen.between(max(0, end - context.mem_len), end)


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
        span_BM = layer.memory.spans(state.hidden_BMD)
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
        span_BS = torch.cat([remembered.extra["span"][:, begin:], rule.spans(h_BTD)], dim=1)
        span = rule.placed(span, age_BM)
        span = replace(span, log_weight_BTS=rule.log_factors(age_BM, span_BS))
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
    return layer.attn_drop(attn.joined(out_BNTH)), seen


_FORMS: dict[type, type[KeyValues]] = {
    Fifo: KeyValues,
    NoMemory: KeyValues,
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
    return first()
