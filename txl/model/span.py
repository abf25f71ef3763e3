"""Positions, distances and masks of a segment and what is remembered before it.

Shape letters, here and in every file of the model:
    B batch, T new tokens, M remembered, S = M + T keys, D d_model, N heads, H d_head, V words.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from txl.config import Context


@dataclass(frozen=True)
class Span:
    """The tokens of one forward pass: `n_mem` remembered ones, then `n_new` new ones.

    Query t has position n_mem + t, key s position s; their distance is negative for keys in the
    future.

    Attributes:
        since_BT: tokens of its document before each query, which sees no others; None: all.
        log_weight_BTS: logarithms of factors of probabilities, which sum to 1 again; None: all 1.
        n_full: keys that stand together once the segment has been read to its end; 0: it has.
            Tables of positions that are shorter than that give their rows to the last of them.
        reach: see `Context`.
    """

    n_mem: int
    n_new: int
    clamp_len: int = -1  # larger distances count as this one; -1: none does
    window: int = -1  # a query sees distances below it; -1: all
    since_BT: Tensor | None = field(default=None, compare=False)
    log_weight_BTS: Tensor | None = field(default=None, compare=False)
    n_full: int = 0
    reach: int = 0
    _masks: dict[Any, Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, context: Context, *, n_mem: int, n_new: int, **more: Any) -> "Span":
        """The span of a forward pass; `same_length` is a sliding window of mem_len keys."""
        window = context.mem_len if context.same_length else -1
        n_full = n_mem + max(n_new, context.tgt_len + context.ext_len)
        reach = context.reach
        return cls(n_mem, n_new, context.clamp_len, window, n_full=n_full, reach=reach, **more)

    @property
    def n_key(self) -> int:
        return self.n_mem + self.n_new

    def key_positions_S(self, device: torch.device) -> Tensor:
        return torch.arange(self.n_key, device=device)

    def query_positions_T(self, device: torch.device) -> Tensor:
        return torch.arange(self.n_mem, self.n_key, device=device)

    def distances_TS(self, device: torch.device) -> Tensor:
        """Clamped distance of every (query, key) pair; negative for future keys."""
        return self._clamped(self._distances_TS(device))

    def distances_S(self, device: torch.device) -> Tensor:
        """S-1, ..., 1, 0 (clamped): from the last query, in the order `rel_shift` expects."""
        return self._clamped(torch.arange(self.n_key - 1, -1, -1, device=device))

    def mask(self, device: torch.device) -> Tensor:
        """True where a query may attend, (T, S), or (B, 1, T, S) with borders of documents.

        All layers share it; do not change it in place.
        """
        if device in self._masks:
            return self._masks[device]
        mask_TS = self.mask_TS(device)
        first_BT = self.first_BT
        if first_BT is not None:
            mask_TS = mask_TS & (self.key_positions_S(device) >= first_BT[:, None, :, None])
        if not torch.compiler.is_compiling():
            self._masks[device] = mask_TS
        return mask_TS

    @property
    def first_BT(self) -> Tensor | None:
        """The first key of each query's document, may be negative; None: there are no borders."""
        if self.since_BT is None:
            return None
        return self.query_positions_T(self.since_BT.device) - self.since_BT

    def mask_TS(self, device: torch.device) -> Tensor:
        """True where a query may attend within a document: not ahead, and nearer than `window`."""
        distance_TS = self._distances_TS(device)
        keep_TS = distance_TS >= 0
        return keep_TS & (distance_TS < self.window) if self.window > 0 else keep_TS

    def _distances_TS(self, device: torch.device) -> Tensor:
        return self.query_positions_T(device)[:, None] - self.key_positions_S(device)[None, :]

    def _clamped(self, distance: Tensor) -> Tensor:
        return distance.clamp(max=self.clamp_len) if self.clamp_len > 0 else distance
