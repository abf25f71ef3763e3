"""Tiles of queries and keys with an online softmax: memory grows with T + S, not with T x S.

Source of the online softmax: Milakov and Gimelshein 2018; of the tiling, forward and backward: Dao
et al. 2022.
A tile of n queries and m keys covers n + m - 1 distances, so its product with r has that many
columns and is shifted within the tile. The backward pass recomputes the probabilities of a tile
from the row's log-sum-exp, and dropout's mask from a seed and the tile's number. The equations are
those of `dense.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.ops.numbers import at_least_float32
from txl.ops.operator import Operator
from txl.ops.rel_attention.tiles import (
    Gradients,
    Heads,
    Operands,
    hide,
    hide_before,
    like_operands,
    needs_grad,
    skewed,
)

_QUERIES = 128
_KEYS = 512
_CACHE = 2**18  # scores per tile


class _Tile(NamedTuple):
    """Some heads, one row of the batch, some queries and some keys."""

    heads: slice
    row: int
    queries: slice
    keys: slice
    n_ahead: int
    """Distance from the first query to the first key."""
    number: int
    """Its index among all tiles."""

    def of_queries(self, x_NBTE: Tensor) -> Tensor:
        return x_NBTE[self.heads, self.row, self.queries]

    def of_keys(self, x_NBSH: Tensor) -> Tensor:
        return x_NBSH[self.heads, self.row, self.keys]

    def distances(self, n_distance: int) -> tuple[slice, int]:
        """Rows of r from the tile's farthest distance to its nearest, and how many future distances
        r lacks.
        """
        farthest = self.n_ahead + self.queries.stop - self.queries.start - 1
        nearest = self.n_ahead - (self.keys.stop - self.keys.start - 1)
        return slice(n_distance - 1 - farthest, n_distance - max(0, nearest)), max(0, -nearest)


def _query_blocks(N: int, B: int, T: int) -> Iterator[tuple[slice, int, slice]]:
    n_head = max(1, _CACHE // (min(T, _QUERIES) * _KEYS))
    for n in range(0, N, n_head):
        for row in range(B):
            for t in range(0, T, _QUERIES):
                yield slice(n, min(N, n + n_head)), row, slice(t, min(T, t + _QUERIES))


def _tiles(
    heads: slice, row: int, queries: slice, T: int, S: int, window: int, number: int
) -> Iterator[_Tile]:
    if window > 0:
        first = max(0, S - T + queries.start - window + 1)
    else:
        first = 0
    end = S - T + queries.stop
    for s in range(first, end, _KEYS):
        keys = slice(s, min(end, s + _KEYS))
        yield _Tile(
            heads,
            row,
            queries,
            keys,
            S - T + queries.start - s,
            number * (S // _KEYS + 1) + s // _KEYS,
        )


def _logits(
    tile: _Tile,
    x: Heads,
    window: int,
    first_BT: Tensor | None,
    log_weight_BTS: Tensor | None = None,
) -> Tensor:
    """(heads, n, m), masked pairs at -inf."""
    rows, n_missing = tile.distances(x.r_NSH.shape[1])
    r_NLH = F.pad(x.r_NSH[tile.heads, rows], (0, 0, 0, n_missing))
    place_NTL = tile.of_queries(x.qw_NBTH) @ r_NLH.mT
    k_NSH = tile.of_keys(x.k_NBSH)
    logit_NTS = torch.baddbmm(
        skewed(place_NTL, k_NSH.shape[1]), tile.of_queries(x.qu_NBTH), k_NSH.mT
    )
    hide(logit_NTS, tile.n_ahead, window)
    if first_BT is not None:
        hide_before(logit_NTS, first_BT[tile.row, tile.queries, None] - tile.keys.start)
    if log_weight_BTS is not None:
        logit_NTS += log_weight_BTS[tile.row, tile.queries, tile.keys]
    return logit_NTS


def _kept(shape: torch.Size, tile: _Tile, seed: int, dropout: float, like: Tensor) -> Tensor:
    """Dropout's factors for the tile's probabilities."""
    generator = torch.Generator(like.device).manual_seed(seed + tile.number)
    drawn = torch.rand(shape, generator=generator, device=like.device, dtype=torch.float32)
    return (drawn >= dropout).to(like.dtype) / (1 - dropout)


def forward(
    q_BNTH: Tensor,
    k_BNSH: Tensor,
    v_BNSH: Tensor,
    r_SNH: Tensor,
    u_NH: Tensor,
    w_NH: Tensor,
    scale: float,
    window: int,
    dropout: float,
    seed: int,
    first_BT: Tensor | None,
    log_weight_BTS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The output (B, N, T, H), stored as (B, T, N, H), and the log-sum-exp of each query's logits,
    (N, B, T, 1).
    """
    x = Heads.of(q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, scale=scale)
    B, N, T, H = q_BNTH.shape
    out_BTNH = q_BNTH.new_empty(B, T, N, H)
    lse_NBT1 = q_BNTH.new_empty(N, B, T, 1, dtype=at_least_float32(q_BNTH.dtype))
    for number, (heads, row, queries) in enumerate(_query_blocks(N, B, T)):
        largest: Tensor | None = None
        total = gathered = x.v_NBSH.new_empty(0)
        for tile in _tiles(heads, row, queries, T, k_BNSH.shape[2], window, number):
            weight_NTS = _logits(tile, x, window, first_BT, log_weight_BTS)
            new = weight_NTS.amax(-1, keepdim=True)
            if largest is not None:
                new = torch.maximum(largest, new)
            # a row may be masked in the whole tile: exp(-inf - -inf)
            new = new.clamp_min(torch.finfo(new.dtype).min)
            weight_NTS.sub_(new).exp_()
            sums = weight_NTS.sum(-1, keepdim=True)
            if dropout > 0:
                weight_NTS.mul_(_kept(weight_NTS.shape, tile, seed, dropout, weight_NTS))
            v_NSH = tile.of_keys(x.v_NBSH)
            if largest is None:
                total = sums
                gathered = weight_NTS @ v_NSH
            else:
                shrink = (largest - new).exp_()
                total.mul_(shrink).add_(sums)
                gathered.mul_(shrink).baddbmm_(weight_NTS, v_NSH)
            largest = new
        assert largest is not None  # every query sees itself
        out_BTNH.permute(2, 0, 1, 3)[heads, row, queries] = gathered / total
        lse_NBT1[heads, row, queries] = largest.to(lse_NBT1.dtype) + total.to(lse_NBT1.dtype).log()
    return out_BTNH.transpose(1, 2), lse_NBT1


def backward(
    dout_BNTH: Tensor,
    q_BNTH: Tensor,
    k_BNSH: Tensor,
    v_BNSH: Tensor,
    r_SNH: Tensor,
    u_NH: Tensor,
    w_NH: Tensor,
    out_BNTH: Tensor,
    lse_NBT1: Tensor,
    scale: float,
    window: int,
    dropout: float,
    seed: int,
    first_BT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, r, u, w."""
    x = Heads.of(q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, scale=scale)
    B, N, T, _ = q_BNTH.shape
    dout_NBTH = dout_BNTH.transpose(0, 1)
    dot_NBT1 = (dout_NBTH * out_BNTH.transpose(0, 1)).sum(-1, keepdim=True)
    grads = Gradients(*(part.new_zeros(part.shape) for part in x))
    for number, (heads, row, queries) in enumerate(_query_blocks(N, B, T)):
        for tile in _tiles(heads, row, queries, T, k_BNSH.shape[2], window, number):
            prob_NTS = _logits(tile, x, window, first_BT).sub_(tile.of_queries(lse_NBT1)).exp_()
            dout_NTH = tile.of_queries(dout_NBTH)
            dprob_NTS = dout_NTH @ tile.of_keys(x.v_NBSH).mT
            used_NTS = prob_NTS
            if dropout > 0:
                kept_NTS = _kept(prob_NTS.shape, tile, seed, dropout, prob_NTS)
                used_NTS = prob_NTS * kept_NTS
                dprob_NTS.mul_(kept_NTS)
            tile.of_keys(grads.v_NBSH).baddbmm_(used_NTS.mT, dout_NTH)
            _backward_of_logits(
                tile, x, grads, dprob_NTS.sub_(tile.of_queries(dot_NBT1)).mul_(prob_NTS)
            )
    return grads.of_operands(u_NH, w_NH, scale)


def _backward_of_logits(tile: _Tile, x: Heads, grads: Gradients, dlogit_NTS: Tensor) -> None:
    tile.of_queries(grads.qu_NBTH).baddbmm_(dlogit_NTS, tile.of_keys(x.k_NBSH))
    tile.of_keys(grads.k_NBSH).baddbmm_(dlogit_NTS.mT, tile.of_queries(x.qu_NBTH))
    N, T, S = dlogit_NTS.shape
    rows, n_missing = tile.distances(x.r_NSH.shape[1])
    dplace_NTL = dlogit_NTS.new_zeros(N, T, T + S - 1)
    skewed(dplace_NTL, S).copy_(dlogit_NTS)
    dplace_NTL = dplace_NTL[..., : T + S - 1 - n_missing]
    tile.of_queries(grads.qw_NBTH).baddbmm_(dplace_NTL, x.r_NSH[tile.heads, rows])
    grads.r_NSH[tile.heads, rows].baddbmm_(dplace_NTL.mT, tile.of_queries(x.qw_NBTH))


def _save(ctx: Any, inputs: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
    operands, (ctx.scale, ctx.window, ctx.dropout, ctx.seed, first_BT, *_) = inputs[:6], inputs[6:]
    ctx.save_for_backward(*operands, *results, first_BT)


def _gradients(
    ctx: Any, backward: Callable[..., tuple[Tensor, ...]], dout_BNTH: Tensor
) -> tuple[Tensor, ...]:
    *saved, first_BT = ctx.saved_tensors
    return backward(dout_BNTH, *saved, ctx.scale, ctx.window, ctx.dropout, ctx.seed, first_BT)


def _fake_forward(q_BNTH: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    B, N, T, H = q_BNTH.shape
    lse_NBT1 = q_BNTH.new_empty(N, B, T, 1, dtype=at_least_float32(q_BNTH.dtype))
    return q_BNTH.new_empty(B, T, N, H).transpose(1, 2), lse_NBT1


operator = Operator(
    "rel_attention_blockwise",
    forward,
    backward,
    fake_forward=_fake_forward,
    fake_backward=like_operands,
    save=_save,
    gradients=_gradients,
)


def blockwise(
    *operands: *Operands,
    scale: float,
    window: int = -1,
    dropout: float = 0.0,
    first_BT: Tensor | None = None,
    log_weight_BTS: Tensor | None = None,
) -> Tensor:
    """See `txl.ops.rel_attention.rel_attention`. Memory grows with T + S; the backward pass
    recomputes the scores, but knows no factors.
    """
    if dropout > 0:
        seed = int(torch.randint(2**62, ()))
    else:
        seed = 0
    if needs_grad(*operands):
        return operator(*operands, scale, window, dropout, seed, first_BT)
    return forward(*operands, scale, window, dropout, seed, first_BT, log_weight_BTS)[0]
