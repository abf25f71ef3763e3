"""Projected keys and values in place of hidden states, where the weights are fixed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from txl.config import Context, ModelConfig
from txl.memory.base import MemoryRule, State
from txl.memory.span import Span
from txl.ops.numbers import product_dtype

_MAX_EARLY_SPARE = 1024  # spare tokens of a short buffer


class Workspace:
    """Where layers put what they see, one layer after the other: room for that of one."""

    def __init__(self) -> None:
        self._buffer_2BNSH = torch.empty(0)

    def joined(self, kv_2BNMH: Tensor, n_new: int, *, like: Tensor) -> Tensor:
        """These keys and values and room for n_new more, in the dtype of `like`, (2, B, N, M + n_new, H)."""
        n_kept = kv_2BNMH.shape[3]
        shape = (*kv_2BNMH.shape[:3], n_kept + n_new, kv_2BNMH.shape[4])
        if self._buffer_2BNSH.shape != shape or self._buffer_2BNSH.dtype != like.dtype:
            self._buffer_2BNSH = like.new_empty(shape)
        self._buffer_2BNSH[:, :, :, :n_kept] = kv_2BNMH
        return self._buffer_2BNSH


class KeyValue:
    """Projected keys and values of one layer, (B, N, M, H) each, without positions.

    Immutable, unless it is `in_place`: `appended` returns a new one. Both are views of a shared buffer with spare space
    at the end, so appending a token does not copy the tokens before it.

    Attributes:
        more: what the rule keeps of them besides, by name, one row a stream. Other keys have none, see `with_more`.
    """

    def __init__(
        self,
        buffer_2BNCH: Tensor,
        begin: int,
        end: int,
        used: list[int],
        more: Mapping[str, Tensor] | None = None,
        *,
        room: int = 0,
        workspace: Workspace | None = None,
        home: "KeyValue | None" = None,
    ) -> None:
        self._buffer_2BNCH, self._begin, self._end = buffer_2BNCH, begin, end
        self._used = used  # filled length of the buffer, shared by all its views
        self._room = room  # of a buffer that is used in place; 0: it is not
        self._workspace = workspace  # where others put theirs, too
        self._home = home  # of keys that are in the workspace: what was remembered before
        self.more = more or {}

    @classmethod
    def empty(cls, batch_size: int, n_head: int, d_head: int, *, like: Tensor) -> "KeyValue":
        """No keys, in the dtype and on the device of `like`."""
        return cls(like.new_empty(2, batch_size, n_head, 0, d_head), 0, 0, [0])

    @property
    def k_BNMH(self) -> Tensor:
        return self.kv_2BNMH[0]

    @property
    def v_BNMH(self) -> Tensor:
        return self.kv_2BNMH[1]

    @property
    def kv_2BNMH(self) -> Tensor:
        """The keys, then the values."""
        return self._buffer_2BNCH[:, :, :, self._begin : self._end]

    @property
    def length(self) -> int:
        """Remembered tokens."""
        return self._end - self._begin

    @property
    def batch_size(self) -> int:
        return self._buffer_2BNCH.shape[1]

    def appended(self, k_BNTH: Tensor, v_BNTH: Tensor) -> "KeyValue":
        """With the keys and values of T more tokens."""
        longer, new_2BNTH = self._longer(k_BNTH.shape[2], like=k_BNTH)
        new_2BNTH[0], new_2BNTH[1] = k_BNTH, v_BNTH
        return longer

    def appended_both(self, kv_2BNTH: Tensor) -> "KeyValue":
        """`appended` for keys and values that are in one tensor."""
        longer, new_2BNTH = self._longer(kv_2BNTH.shape[3], like=kv_2BNTH)
        new_2BNTH.copy_(kv_2BNTH)
        return longer

    def in_place(self, room: int) -> "KeyValue":
        """The same keys for a reader that never goes back: in a buffer that grows to `room` tokens, in which what is
        appended takes the place of tokens that are no longer remembered. All before `appended` are invalid then."""
        return KeyValue(self._buffer_2BNCH, self._begin, self._end, self._used, self.more, room=room)

    def in_workspace(self, workspace: Workspace) -> "KeyValue":
        """The same keys for a reader that never goes back: `appended` gives keys in the workspace, valid until others
        are put there, and `between` of these takes the place of what was remembered before."""
        return KeyValue(self._buffer_2BNCH, self._begin, self._end, self._used, self.more, workspace=workspace)

    def rows(self, index_B: Tensor) -> "KeyValue":
        """The rows with these indices, which may repeat, in their order: a copy with as much spare space."""
        more = {name: x.index_select(0, index_B) for name, x in self.more.items()}
        return KeyValue(self._buffer_2BNCH.index_select(1, index_B), self._begin, self._end, [self._end], more)

    def between(self, begin: int, end: int) -> "KeyValue":
        """The keys from `begin` to `end`, exclusive, relative to the first one here."""
        if self._home is not None:
            return self._home._holding(self.kv_2BNMH[:, :, :, begin:end])
        return KeyValue(self._buffer_2BNCH, self._begin + begin, self._begin + end, self._used, room=self._room)

    def at(self, place_BM: Tensor) -> "KeyValue":
        """The keys at these places, which each row has for itself: a copy with spare space."""
        length = place_BM.shape[1]
        buffer_2BNCH = self._new_buffer(length, 1, like=self._buffer_2BNCH)
        for b, place_M in enumerate(place_BM):
            buffer_2BNCH[:, b, :, :length] = self.kv_2BNMH[:, b].index_select(2, place_M)
        return KeyValue(buffer_2BNCH, 0, length, [length])

    def with_more(self, more: Mapping[str, Tensor]) -> "KeyValue":
        """The same keys, with this besides."""
        return KeyValue(self._buffer_2BNCH, self._begin, self._end, self._used, more)

    def _longer(self, n_new: int, *, like: Tensor) -> tuple["KeyValue", Tensor]:
        """With n_new more tokens, whose keys and values are to be written into the second result."""
        if self._workspace is not None:
            buffer_2BNSH = self._workspace.joined(self.kv_2BNMH, n_new, like=like)
            end = buffer_2BNSH.shape[3]
            return KeyValue(buffer_2BNSH, 0, end, [end], home=self), buffer_2BNSH[:, :, :, -n_new:]
        here = self._ready_for(n_new, like=like)
        end = here._used[0] = here._end + n_new
        longer = KeyValue(here._buffer_2BNCH, here._begin, end, here._used, room=self._room)
        return longer, here._buffer_2BNCH[:, :, :, here._end : end]

    def _holding(self, kv_2BNMH: Tensor) -> "KeyValue":
        """These keys and values in the place of its own, which are no longer valid."""
        length, buffer_2BNCH = kv_2BNMH.shape[3], self._buffer_2BNCH
        if buffer_2BNCH.dtype != kv_2BNMH.dtype or buffer_2BNCH.shape[3] < length:
            buffer_2BNCH = torch.empty_like(kv_2BNMH, memory_format=torch.contiguous_format)
        buffer_2BNCH[:, :, :, :length] = kv_2BNMH
        return KeyValue(buffer_2BNCH, 0, length, [length], workspace=self._workspace)

    def _ready_for(self, n_new: int, *, like: Tensor) -> "KeyValue":
        """These keys with free space behind them: here, at the beginning of the buffer, or in a larger one."""
        capacity, is_last = self._buffer_2BNCH.shape[3], self._end == self._used[0]
        fits = self._buffer_2BNCH.dtype == like.dtype and self.length + n_new <= capacity
        if fits and self._end + n_new <= capacity and (is_last or self._room):
            return self
        return self._at_the_beginning() if fits and self._room else self._in_larger_buffer(n_new, like=like)

    def _at_the_beginning(self) -> "KeyValue":
        for begin in range(0, self.length, self._begin):  # no piece may overlap the place that it is copied to
            end = min(begin + self._begin, self.length)
            here_2BNPH = self._buffer_2BNCH[:, :, :, self._begin + begin : self._begin + end]
            self._buffer_2BNCH[:, :, :, begin:end] = here_2BNPH
        return KeyValue(self._buffer_2BNCH, 0, self.length, [self.length], room=self._room)

    def _in_larger_buffer(self, n_new: int, *, like: Tensor) -> "KeyValue":
        """A copy in a larger buffer."""
        buffer_2BNCH = self._new_buffer(self.length + n_new, n_new, like=like)
        buffer_2BNCH[:, :, :, : self.length] = self.kv_2BNMH
        return KeyValue(buffer_2BNCH, 0, self.length, [self.length], room=self._room)

    def _new_buffer(self, needed: int, n_new: int, *, like: Tensor) -> Tensor:
        """An empty buffer, with spare space in proportion, so that copies are rare."""
        _, batch_size, n_head, _, d_head = self._buffer_2BNCH.shape
        capacity = needed + max(n_new, min(needed, _MAX_EARLY_SPARE), needed // 4)
        if 3 * needed >= self._room > 0:  # sooner, a text that ends early would take room for nothing
            capacity = max(needed, self._room)
        return like.new_empty(2, batch_size, n_head, capacity, d_head)


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
