"""Positions, distances and masks of a segment and its memory; the memory of previous segments.

Shape letters, here and in every file of the model:
    B batch, T new tokens, M remembered tokens, S = M + T keys, D d_model, N heads, H d_head, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from txl.config import Context


@dataclass(frozen=True)
class Span:
    """The tokens of one forward pass: `n_mem` remembered ones, then `n_new` new ones.

    All positions, distances and masks are computed here. Query t has position n_mem + t, key s position s;
    distance = query position - key position, negative for future keys.

    Attributes:
        window: a query sees distances below it; -1: all.
        since_BT: how many tokens before each query belong to the same document; it sees none before them. None: no
            document ends in the span.
    """

    n_mem: int
    n_new: int
    clamp_len: int = -1
    window: int = -1
    since_BT: Tensor | None = field(default=None, compare=False)
    _masks: dict[torch.device, Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, context: Context, *, n_mem: int, n_new: int, since_BT: Tensor | None = None) -> "Span":
        """The span of a forward pass with `context`. `same_length` is a sliding window of mem_len keys."""
        window = context.mem_len if context.same_length else -1
        return cls(n_mem, n_new, clamp_len=context.clamp_len, window=window, since_BT=since_BT)

    @property
    def n_key(self) -> int:
        return self.n_mem + self.n_new

    @property
    def is_triangle(self) -> bool:
        """True if the mask is a plain causal triangle: no memory, no effective window, no borders of documents."""
        return self.n_mem == 0 and not self.hides_past and self.since_BT is None

    @property
    def hides_past(self) -> bool:
        """True if the window hides a key from a query."""
        return 0 < self.window < self.n_key

    def key_positions_S(self, device: torch.device) -> Tensor:
        return torch.arange(self.n_key, device=device)

    def query_positions_T(self, device: torch.device) -> Tensor:
        return torch.arange(self.n_mem, self.n_key, device=device)

    def distances_TS(self, device: torch.device) -> Tensor:
        """Clamped distance of every (query, key) pair; negative for future keys."""
        return self._clamped(self._distances_TS(device))

    def distances_S(self, device: torch.device) -> Tensor:
        """S-1, ..., 1, 0 (clamped): distances from the last query, in the order `rel_shift` expects."""
        return self._clamped(torch.arange(self.n_key - 1, -1, -1, device=device))

    def mask(self, device: torch.device) -> Tensor:
        """True where a query may attend, (T, S), or (B, 1, T, S) if the rows have borders of documents.

        All layers share it; do not change it in place.
        """
        if torch.compiler.is_compiling():
            return self._mask(device)
        if device not in self._masks:
            self._masks[device] = self._mask(device)
        return self._masks[device]

    def _mask(self, device: torch.device) -> Tensor:
        mask_TS, first_BT = self.mask_TS(device), self.first_BT
        if first_BT is None:
            return mask_TS
        return mask_TS & (self.key_positions_S(device) >= first_BT[:, None, :, None])

    @property
    def first_BT(self) -> Tensor | None:
        """The first key of each query's document; None: no document ends in the span. May be negative."""
        if self.since_BT is None:
            return None
        return self.query_positions_T(self.since_BT.device) - self.since_BT

    def mask_TS(self, device: torch.device) -> Tensor:
        """True where a query may attend in a row of one document: no future keys and, if `window` is set, distances
        below it."""
        distance_TS = self._distances_TS(device)
        keep_TS = distance_TS >= 0
        return keep_TS & (distance_TS < self.window) if self.window > 0 else keep_TS

    def _distances_TS(self, device: torch.device) -> Tensor:
        return self.query_positions_T(device)[:, None] - self.key_positions_S(device)[None, :]

    def _clamped(self, distance: Tensor) -> Tensor:
        return distance.clamp(max=self.clamp_len) if self.clamp_len > 0 else distance


@dataclass(frozen=True, eq=False)
class Memory:
    """The hidden states that each layer read for the last tokens: one detached (B, M, D) tensor per layer.

    Immutable: `extended` returns a new one. They contain no positions. `None` in its place is the empty memory.
    Differs from kimiyoung/transformer-xl: n_layer tensors instead of n_layer + 1, whose last was never read.
    """

    layers: tuple[Tensor, ...]

    @classmethod
    def empty(cls, n_layer: int, batch_size: int, d_model: int, *, like: Tensor) -> "Memory":
        return cls(tuple(like.new_empty(batch_size, 0, d_model) for _ in range(n_layer)))

    @property
    def length(self) -> int:
        """Remembered tokens."""
        return self.layers[0].shape[1]

    @property
    def batch_size(self) -> int:
        return self.layers[0].shape[0]

    def rows(self, index_B: Tensor) -> "Memory":
        """The rows with these indices, which may repeat, in their order."""
        return Memory(tuple(layer.index_select(0, index_B) for layer in self.layers))

    def to(self, device: torch.device) -> "Memory":
        """A copy on a device. Copies to the host are synchronous, so the host can read them at once."""
        return Memory(tuple(layer.to(device, non_blocking=device.type != "cpu") for layer in self.layers))

    def swapped_out(self) -> "Memory":
        """A copy in the host's RAM, page-locked: a GPU makes it without waiting, and must be synchronised before the
        host reads it."""

        def copied(layer: Tensor) -> Tensor:
            host = torch.empty(layer.shape, dtype=layer.dtype, pin_memory=layer.is_cuda)
            return host.copy_(layer, non_blocking=True)

        return Memory(tuple(copied(layer) for layer in self.layers))

    def extended(self, inputs: Sequence[Tensor], *, mem_len: int, ext_len: int = 0) -> "Memory":
        """The memory for the next segment: the last `mem_len` tokens of [memory, segment].

        The last `ext_len` tokens of the segment are left out, because the next segment reads them again.
        Differs from kimiyoung/transformer-xl, which calls `_update_mems` with two arguments swapped: there a memory
        shorter than ext_len keeps tokens that the next segment reads again.
        """
        pairs = zip(self.layers, inputs, strict=True)
        return Memory(tuple(kept_tokens(old, new, mem_len=mem_len, ext_len=ext_len) for old, new in pairs))


def kept_tokens(old_BMD: Tensor, new_BTD: Tensor, *, mem_len: int, ext_len: int = 0) -> Tensor:
    """`Memory.extended` for one layer. The result does not reference its inputs' storage."""
    n_old, n_new = old_BMD.shape[1], max(0, new_BTD.shape[1] - ext_len)
    begin = max(0, n_old + n_new - mem_len)
    return torch.cat([old_BMD[:, begin:], new_BTD.detach()[:, max(0, begin - n_old) : n_new]], dim=1)


_MAX_EARLY_SPARE = 1024  # spare tokens of a short buffer


class KeyValue:
    """Projected keys and values of one layer, (B, N, M, H) each, without positions.

    Immutable: `appended` returns a new one. Both are views of a shared buffer with spare space at the end, so appending
    a token does not copy the tokens before it.
    """

    def __init__(self, buffer_2BNCH: Tensor, begin: int, end: int, used: list[int]) -> None:
        self._buffer_2BNCH, self._begin, self._end = buffer_2BNCH, begin, end
        self._used = used  # filled length of the buffer, shared by all its views

    @classmethod
    def empty(cls, batch_size: int, n_head: int, d_head: int, *, like: Tensor) -> "KeyValue":
        """No keys, in the dtype and on the device of `like`."""
        return cls(like.new_empty(2, batch_size, n_head, 0, d_head), 0, 0, [0])

    @property
    def k_BNMH(self) -> Tensor:
        return self._buffer_2BNCH[0, :, :, self._begin : self._end]

    @property
    def v_BNMH(self) -> Tensor:
        return self._buffer_2BNCH[1, :, :, self._begin : self._end]

    @property
    def length(self) -> int:
        """Remembered tokens."""
        return self._end - self._begin

    @property
    def batch_size(self) -> int:
        return self._buffer_2BNCH.shape[1]

    def appended(self, k_BNTH: Tensor, v_BNTH: Tensor) -> "KeyValue":
        """With the keys and values of T more tokens."""
        n_new = k_BNTH.shape[2]
        has_room = self._end == self._used[0] and self._end + n_new <= self._buffer_2BNCH.shape[3]
        here = (
            self
            if has_room and self._buffer_2BNCH.dtype == k_BNTH.dtype
            else self._in_larger_buffer(n_new, like=k_BNTH)
        )
        end = here._end + n_new
        here._buffer_2BNCH[0, :, :, here._end : end] = k_BNTH
        here._buffer_2BNCH[1, :, :, here._end : end] = v_BNTH
        here._used[0] = end
        return KeyValue(here._buffer_2BNCH, here._begin, end, here._used)

    def rows(self, index_B: Tensor) -> "KeyValue":
        """The rows with these indices, which may repeat, in their order: a copy with as much spare space."""
        return KeyValue(self._buffer_2BNCH.index_select(1, index_B), self._begin, self._end, [self._end])

    def between(self, begin: int, end: int) -> "KeyValue":
        """The keys from `begin` to `end`, exclusive, relative to the first one here."""
        return KeyValue(self._buffer_2BNCH, self._begin + begin, self._begin + end, self._used)

    def _in_larger_buffer(self, n_new: int, *, like: Tensor) -> "KeyValue":
        """A copy in a larger buffer, with spare space in proportion, so that copies are rare."""
        needed = self.length + n_new
        _, batch_size, n_head, _, d_head = self._buffer_2BNCH.shape
        spare = max(n_new, min(needed, _MAX_EARLY_SPARE), needed // 4)
        buffer_2BNCH = like.new_empty(2, batch_size, n_head, needed + spare, d_head)
        buffer_2BNCH[:, :, :, : self.length] = self._buffer_2BNCH[:, :, :, self._begin : self._end]
        return KeyValue(buffer_2BNCH, 0, self.length, [self.length])


@dataclass(frozen=True, eq=False)
class KeyValueMemory:
    """The memory for fixed weights: keys and values instead of hidden states.

    Equivalent to `Memory`, but projects each remembered token once instead of once per segment. Immutable, without
    gradients, for encodings that add no positions to hidden states (`PositionEncoding.places_hidden_states`).

    Attributes:
        feats: per layer the projected position features (`PositionEncoding.project`), one row per distance, farthest
            first, for the longest span so far; shorter spans use the last rows.
        feats_for: what `feats` depend on besides; see `TransformerXL.with_feats`.
    """

    layers: tuple[KeyValue, ...]
    feats: tuple[Tensor, ...] = ()
    feats_for: tuple[object, ...] = ()

    @property
    def length(self) -> int:
        """Remembered tokens."""
        return self.layers[0].length

    @property
    def batch_size(self) -> int:
        return self.layers[0].batch_size

    def rows(self, index_B: Tensor) -> "KeyValueMemory":
        """See `Memory.rows`."""
        layers = tuple(layer.rows(index_B) for layer in self.layers)
        return KeyValueMemory(layers, self.feats, self.feats_for)

    def kept(self, seen: Sequence[KeyValue], *, n_new: int, mem_len: int, ext_len: int = 0) -> "KeyValueMemory":
        """The memory for the next segment.

        Args:
            seen: per layer the keys and values of [memory, segment].
            n_new: tokens of the segment. The last `ext_len` are left out, see `Memory.extended`.
        """
        end = self.length + max(0, n_new - ext_len)
        begin = max(0, end - mem_len)
        return KeyValueMemory(tuple(both.between(begin, end) for both in seen), self.feats, self.feats_for)
