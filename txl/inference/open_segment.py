"""A segment that is read token by token, over a memory that is not a queue: keys and values of what
stands before it, and behind them those of its tokens so far. Where it ends, the memory reads it
once as a whole.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from txl.config import Context
from txl.inference.forms import KeyValues, KeyValuesWithSpans, attended
from txl.inference.frozen import AnyMemory, Part, read
from txl.inference.key_value import KeyValue
from txl.inference.key_values import KeyValueMemory
from txl.memory.beside import BesideAttention
from txl.memory.compressive import Compressive
from txl.memory.expire_span import ExpireSpan
from txl.memory.recurrent_tokens import RecurrentTokens
from txl.model.memory import Fifo, State
from txl.model.span import Span
from txl.model.transformer import Body


class KeysBeside(KeyValues):
    """The form of `BesideAttention`, which reads what it held when the segment began."""

    def of_hidden(self, layer: Any, empty: KeyValue, state: State) -> KeyValue:
        """See `KeyValues.of_hidden`."""
        return super().of_hidden(layer, empty, state).with_extra(state.extra)

    def attended(
        self,
        layer: Any,
        h_BTD: Tensor,
        remembered: KeyValue,
        feats: Tensor,
        span: Span,
        context: Context,
    ) -> tuple[Tensor, KeyValue]:
        """See `KeyValues.attended`."""
        then = None
        if isinstance(layer.memory, BesideAttention):
            then = partial(layer.memory.beside, remembered.extra, span)
        out_BTD, seen = attended(layer, h_BTD, remembered, feats, span, then)
        return out_BTD, seen.with_extra(remembered.extra)


class KeysThatExpire(KeyValuesWithSpans):
    """The form of `ExpireSpan`, which drops states where a segment ends only."""

    def attended(
        self,
        layer: Any,
        h_BTD: Tensor,
        remembered: KeyValue,
        feats: Tensor,
        span: Span,
        context: Context,
    ) -> tuple[Tensor, KeyValue]:
        """See `KeyValues.attended`."""
        out_BTD, seen, span_BS = self.weighed(layer, h_BTD, remembered, feats, span)
        age_BM = remembered.extra["age"][:, remembered.length + span.n_new - seen.length :]
        older_BM = torch.where(age_BM > 0, age_BM + span.n_new, 0)
        new_BT = torch.arange(span.n_new, 0, -1, device=age_BM.device).expand(len(age_BM), -1)
        extra = {"age": torch.cat([older_BM, new_BT], dim=1), "span": span_BS}
        return out_BTD, seen.with_extra(extra)


def opens(model: Body) -> bool:
    """True if the memory of a model has such a form."""
    # keys change with what stands before them
    hides_places = model.layers[0].attn.pos.places_hidden_states()
    return not model.is_sharded and not hides_places and _form_of(model) is not None


def opened(model: Body, memory: AnyMemory, context: Context) -> KeyValueMemory:
    """What stands before a segment, to which tokens of it are appended by `read`."""
    form = _form_of(model)
    assert form is not None
    if isinstance(memory, KeyValueMemory):
        return replace(memory, form=form)
    like = model.layers[0].attn_norm.weight
    layers = []
    for layer, state in zip(model.layers, memory.states, strict=True):
        empty = form.empty(model.config, memory.batch_size, like=like)
        layers.append(form.of_hidden(layer, empty, _before(layer, state)))
    keys = KeyValueMemory(tuple(layers), form)
    first = model.layers[0].memory
    if isinstance(first, RecurrentTokens):
        tokens_BMD = first.begun(memory.states[0])
        part = Part(n_kept=tokens_BMD.shape[1], n_full=0)
        _, after = read(model, tokens_BMD, keys, context, part=part)
        assert isinstance(after, KeyValueMemory)
        return after
    return keys


def _before(layer: Any, state: State) -> State:
    """With all that a layer attends to before a segment as hidden states."""
    if isinstance(layer.memory, Compressive):
        return State(torch.cat([state.extra["compressed"], state.hidden_BMD], dim=1))
    return state


def _form_of(model: Body) -> KeyValues | None:
    """By what the layers' memories do with a segment; None: something else."""
    rules = {type(layer.memory).forward for layer in model.layers}
    if rules == {ExpireSpan.forward}:
        return KeysThatExpire()
    if rules in ({Fifo.forward}, {Compressive.forward}):
        return KeyValues()
    if rules <= {RecurrentTokens.forward, Fifo.forward}:
        return KeyValues()
    if rules <= {BesideAttention.forward, Fifo.forward}:
        return KeysBeside()
    return None
