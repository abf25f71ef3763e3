"""Attention that stores its probabilities, in cache-sized blocks, with a hand-written backward
pass.

With x = q + u, y = q + w, P the probabilities, M the dropout mask over 1 - dropout (1 without
dropout):

    logit = scale (x k^T + shift(y r^T))        P = softmax(logit)          out = (P M) v
    dlogit = P (M (dout v^T) - rowsum(dout out))                            dv = (P M)^T dout
    dx = scale dlogit k    dk = scale dlogit^T x    dy = scale shift^-1(dlogit) r    dr = scale shift^-1(dlogit)^T y
    dq = dx + dy           du = sum dx              dw = sum dy

shift is a view of y r^T with a row stride one shorter (`tiles.skewed`), and dlogit written through
the same view is shift^-1(dlogit): neither direction copies. Keys that no query of a block sees are
left out of its products. Without gradients one block is there at a time, so memory grows with
T + S, not with T x S. One query a row, as in generation and where agents act, is not shifted and
needs no blocks.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from txl.ops.dropout import as_drawn, draw_kept
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

_CACHE = 2**19  # scores per block; twice or half as many change the time by a few per cent
_QUERIES = 128
LONG = 8192
"""Keys. From here on a GPU has blocks of queries too, if there are no gradients."""


class _Block(NamedTuple):
    """Heads, rows and queries computed together, and the keys that any of the queries sees."""

    heads: slice
    rows: slice
    queries: slice
    keys: slice

    @property
    def n_row(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def n_query(self) -> int:
        return self.queries.stop - self.queries.start

    @property
    def n_key(self) -> int:
        return self.keys.stop - self.keys.start

    @property
    def n_product(self) -> int:
        return (self.heads.stop - self.heads.start) * self.n_row

    @property
    def n_score(self) -> int:
        return self.n_product * self.n_query * self.n_key

    def of_queries(self, x_NBTE: Tensor) -> Tensor:
        """The block's part, (products, T, E)."""
        return x_NBTE[self.heads, self.rows, self.queries].flatten(0, 1)

    def of_keys(self, x_NBSH: Tensor) -> Tensor:
        """The block's part, (products, S, H)."""
        return x_NBSH[self.heads, self.rows, self.keys].flatten(0, 1)

    def of_distances(self, r_NSH: Tensor) -> Tensor:
        """The rows of the distances from the last query to the block's keys, (heads, S, H)."""
        return r_NSH[self.heads, r_NSH.shape[1] - self.n_key :]

    def by_head(self, x_ZTE: Tensor) -> Tensor:
        """(products, T, E) as (heads, rows x T, E): one product with r for all rows."""
        return x_ZTE.reshape(-1, self.n_row * self.n_query, x_ZTE.shape[-1])

    def set_queries(self, x_NBTH: Tensor, part: Tensor) -> None:
        x_NBTH[self.heads, self.rows, self.queries] = part.view(
            -1, self.n_row, self.n_query, x_NBTH.shape[-1]
        )

    def add_to_keys(self, x_NBSH: Tensor, of_keys_ZST: Tensor, of_queries_ZTH: Tensor) -> None:
        """Add a product, these queries' gradient of their keys.

        The first block of queries initialises the sum.
        """
        sum_NBSH = x_NBSH[self.heads, self.rows]
        if self.queries.start == 0 and self.n_key == x_NBSH.shape[2] and sum_NBSH.is_contiguous():
            torch.bmm(of_keys_ZST, of_queries_ZTH, out=sum_NBSH.view(-1, *sum_NBSH.shape[2:]))
            return
        part_NBSH = torch.bmm(of_keys_ZST, of_queries_ZTH).view(
            -1, self.n_row, self.n_key, x_NBSH.shape[-1]
        )
        if self.queries.start > 0:
            sum_NBSH[:, :, self.keys] += part_NBSH
            return
        sum_NBSH[:, :, : self.keys.start] = 0
        sum_NBSH[:, :, self.keys] = part_NBSH
        sum_NBSH[:, :, self.keys.stop :] = 0


def _query_blocks(T: int, S: int, window: int, *, split: bool) -> Iterator[tuple[slice, slice]]:
    """The queries of each block, and the keys that any of them sees; not `split`: one block. A few
    keys that none of them sees are not left out: products over all keys write the gradients where
    they belong, without a copy.
    """
    n_query = T
    if split:
        n_query = _QUERIES
    for t in range(0, T, n_query):
        queries = slice(t, min(T, t + n_query))
        if window > 0:
            first = S - T + t - window + 1
        else:
            first = 0
        yield queries, slice(first if first > S // 16 else 0, S - T + queries.stop)


def _n_score(B: int, N: int, T: int, S: int, window: int, *, split: bool) -> int:
    """Scores of all blocks, independent of how heads and rows are grouped: a compiled graph that
    depended on the grouping would be recompiled for each memory length.
    """
    pairs = _query_blocks(T, S, window, split=split)
    return (
        B
        * N
        * sum((queries.stop - queries.start) * (keys.stop - keys.start) for queries, keys in pairs)
    )


def _blocks(N: int, B: int, T: int, S: int, window: int, *, split: bool) -> Iterator[_Block]:
    """One block, or blocks that fit the cache of a CPU, with at least one product per thread."""
    for queries, keys in _query_blocks(T, S, window, split=split):
        n_product = N * B
        if split:
            score = (queries.stop - queries.start) * (keys.stop - keys.start)
            n_product = max(torch.get_num_threads(), _CACHE // score)
        n_head = max(1, -(-n_product // B))
        n_row = min(B, n_product)
        for n in range(0, N, n_head):
            for b in range(0, B, n_row):
                yield _Block(
                    slice(n, min(N, n + n_head)), slice(b, min(B, b + n_row)), queries, keys
                )


def _blocks_of(q_BNTH: Tensor, k_BNSH: Tensor, window: int, *, keep: bool) -> list[_Block]:
    """Those of a forward pass that does or does not `keep` its probabilities."""
    B, N, T, _ = q_BNTH.shape
    S = k_BNSH.shape[2]
    split = q_BNTH.device.type == "cpu" or (not keep and S >= LONG)
    return list(_blocks(N, B, T, S, window, split=split))


def _transposed(x_ZSH: Tensor) -> Tensor:
    """x_ZSH.mT. In 16 bits on a CPU a part of a larger tensor is copied first: oneDNN would copy it
    in the order of the transpose, which takes 60 us for 10 x 704 x 41 in place of 7 (two threads of
    an AMD EPYC).
    """
    return (
        x_ZSH.contiguous() if x_ZSH.device.type == "cpu" and x_ZSH.dtype.itemsize == 2 else x_ZSH
    ).mT


def _probabilities(
    block: _Block,
    x: Heads,
    window: int,
    first_BT: Tensor | None,
    log_weight_BTS: Tensor | None,
    place: Tensor,
    out: Tensor,
    n_distinct: int,
) -> Tensor:
    """P of a block (products, T, S), in `out`; `place` is scratch."""
    T = block.n_query
    S = block.n_key
    place_ZTS = place[: block.n_score].view(-1, T, S)
    place_NXS = block.by_head(place_ZTS)
    n_alike = max(0, S - n_distinct)
    r_NRH = block.of_distances(x.r_NSH)[:, n_alike:]
    torch.bmm(
        block.by_head(block.of_queries(x.qw_NBTH)), _transposed(r_NRH), out=place_NXS[..., n_alike:]
    )
    if n_alike:
        place_NXS[..., :n_alike] = place_NXS[..., n_alike : n_alike + 1]
    logit_ZTS = out.view(-1, T, S)
    k_ZHS = _transposed(block.of_keys(x.k_NBSH))
    torch.baddbmm(skewed(place_ZTS, S), block.of_queries(x.qu_NBTH), k_ZHS, out=logit_ZTS)
    hide(logit_ZTS, S - T, window)
    if first_BT is not None:
        first_BT1 = first_BT[block.rows, block.queries, None] - block.keys.start
        hide_before(logit_ZTS.view(-1, block.n_row, T, S), first_BT1)
    if log_weight_BTS is not None:
        weight_BTS = log_weight_BTS[block.rows, block.queries, block.keys]
        logit_ZTS.view(-1, block.n_row, T, S).add_(weight_BTS)
    return torch.softmax(logit_ZTS, -1, out=logit_ZTS)


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
    keep: bool,
    clamp_len: int,
    first_BT: Tensor | None,
    seed: Tensor | None,
    log_weight_BTS: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output (B, N, T, H), stored as (B, T, N, H); with `keep` also what `backward` needs: the
    probabilities of all blocks in a row, and dropout's mask (empty without dropout), drawn from the
    seed or PyTorch's generator.
    """
    if clamp_len > 0:
        n_distinct = clamp_len + 1
    else:
        n_distinct = k_BNSH.shape[2]
    x = Heads.of(q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, scale=scale)
    B, N, T, H = q_BNTH.shape
    out_BTNH = q_BNTH.new_empty(B, T, N, H)
    blocks = _blocks_of(q_BNTH, k_BNSH, window, keep=keep)
    largest = max(block.n_score for block in blocks)
    place = q_BNTH.new_empty(largest)
    prob = q_BNTH.new_empty(sum(block.n_score for block in blocks) if keep else largest)
    kept = torch.empty(prob.shape if dropout > 0 else 0, dtype=torch.bool, device=prob.device)
    if seed is None:
        generator = None
    else:
        generator = torch.Generator(prob.device).manual_seed(int(seed))
    first = 0
    for block in blocks:
        last = first + block.n_score
        prob_ZTS = _probabilities(
            block, x, window, first_BT, log_weight_BTS, place, prob[first:last], n_distinct
        )
        if dropout > 0:
            kept_ZTS = draw_kept(
                dropout, out=kept[first:last].view(prob_ZTS.shape), generator=generator
            )
            prob_ZTS = _dropped(prob_ZTS, kept_ZTS, dropout)
        block.set_queries(
            out_BTNH.permute(2, 0, 1, 3), torch.bmm(prob_ZTS, block.of_keys(x.v_NBSH))
        )
        if keep:
            first = last
        else:
            first = 0
    if not keep:
        prob = q_BNTH.new_empty(0)
        kept = kept.new_empty(0)
    return out_BTNH.transpose(1, 2), prob, kept


def _dropped(prob: Tensor, kept: Tensor, dropout: float) -> Tensor:
    return (prob * kept).mul_(1 / (1 - dropout))


def backward(
    dout_BNTH: Tensor,
    q_BNTH: Tensor,
    k_BNSH: Tensor,
    v_BNSH: Tensor,
    r_SNH: Tensor,
    u_NH: Tensor,
    w_NH: Tensor,
    out_BNTH: Tensor,
    prob: Tensor,
    kept: Tensor,
    scale: float,
    window: int,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, r, u, w."""
    x = Heads.of(q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, scale=scale)
    dout_NBTH = dout_BNTH.transpose(0, 1).contiguous()
    dot_NBT1 = (dout_NBTH * out_BNTH.transpose(0, 1)).sum(-1, keepdim=True)
    grads = Gradients(*(part.new_empty(part.shape) for part in x))._replace(
        r_NSH=x.r_NSH.new_zeros(x.r_NSH.shape)
    )
    blocks = _blocks_of(q_BNTH, k_BNSH, window, keep=True)
    dprob = q_BNTH.new_empty(max(block.n_score for block in blocks))
    dplace = q_BNTH.new_empty(
        max(block.n_product * block.n_query * (block.n_key + 1) for block in blocks)
    )
    first = 0
    for block in blocks:
        T = block.n_query
        S = block.n_key
        last = first + block.n_score
        prob_ZTS = prob[first:last].view(-1, T, S)
        kept_ZTS = kept[first:last].view(-1, T, S) if dropout > 0 else None
        dprob_ZTS = dprob[: block.n_score].view(-1, T, S)
        dout_ZTH = block.of_queries(dout_NBTH)
        v_ZSH = block.of_keys(x.v_NBSH)
        dot_ZT1 = block.of_queries(dot_NBT1)
        if kept_ZTS is None:
            torch.baddbmm(dot_ZT1, dout_ZTH, v_ZSH.mT, beta=-1, out=dprob_ZTS)
            dropped_ZTS = prob_ZTS
        else:
            torch.bmm(dout_ZTH, v_ZSH.mT, out=dprob_ZTS)
            dprob_ZTS.mul_(kept_ZTS).mul_(1 / (1 - dropout)).sub_(dot_ZT1)
            dropped_ZTS = _dropped(prob_ZTS, kept_ZTS, dropout)
        block.add_to_keys(grads.v_NBSH, dropped_ZTS.mT, dout_ZTH)
        _backward_of_logits(
            block, x, grads, dprob_ZTS, prob_ZTS, dplace[: block.n_product * T * (S + 1)]
        )
        first = last
    return grads.of_operands(u_NH, w_NH, scale)


def _backward_of_logits(
    block: _Block, x: Heads, grads: Gradients, dprob_ZTS: Tensor, prob_ZTS: Tensor, dplace: Tensor
) -> None:
    """dlogit = P (dP - rowsum), and from it the gradients of the logits' four factors."""
    T = block.n_query
    S = block.n_key
    dplace_ZTL = dplace.view(-1, T, S + 1)
    dplace_ZTL.flatten(1)[:, : T - 1] = 0  # outside the shifted view
    dlogit_ZTS = torch.mul(dprob_ZTS, prob_ZTS, out=skewed(dplace_ZTL, S))
    block.set_queries(grads.qu_NBTH, torch.bmm(dlogit_ZTS, block.of_keys(x.k_NBSH)))
    block.add_to_keys(grads.k_NBSH, dlogit_ZTS.mT, block.of_queries(x.qu_NBTH))
    dplace_NXS = block.by_head(dplace_ZTL[..., :S])
    dqw_NXH = torch.bmm(dplace_NXS, block.of_distances(x.r_NSH))
    block.set_queries(grads.qw_NBTH, dqw_NXH)
    dr_NSH = torch.bmm(dplace_NXS.mT, block.by_head(block.of_queries(x.qw_NBTH)))
    block.of_distances(grads.r_NSH).add_(dr_NSH)


def _save(ctx: Any, inputs: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
    operands, (ctx.scale, ctx.window, ctx.dropout, *_) = inputs[:6], inputs[6:]
    ctx.save_for_backward(*operands, *results)


def _gradients(
    ctx: Any, backward: Callable[..., tuple[Tensor, ...]], dout_BNTH: Tensor
) -> tuple[Tensor, ...]:
    return backward(dout_BNTH, *ctx.saved_tensors, ctx.scale, ctx.window, ctx.dropout)


def _fake_forward(q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, scale, window, dropout, keep, *_):  # type: ignore[no-untyped-def]
    B, N, T, H = q_BNTH.shape
    split = q_BNTH.device.type == "cpu"
    if keep:
        n_prob = _n_score(B, N, T, k_BNSH.shape[2], window, split=split)
    else:
        n_prob = 0
    kept = q_BNTH.new_empty(n_prob if dropout > 0 else 0, dtype=torch.bool)
    return q_BNTH.new_empty(B, T, N, H).transpose(1, 2), q_BNTH.new_empty(n_prob), kept


operator = Operator(
    "rel_attention_dense",
    forward,
    backward,
    fake_forward=_fake_forward,
    fake_backward=like_operands,
    save=_save,
    gradients=_gradients,
)


def dense(
    *operands: *Operands,
    scale: float,
    window: int = -1,
    dropout: float = 0.0,
    clamp_len: int = -1,
    first_BT: Tensor | None = None,
    log_weight_BTS: Tensor | None = None,
) -> Tensor:
    """See `txl.ops.rel_attention.rel_attention`.

    Keeps B x N x T x S probabilities for the backward pass, which knows no factors.
    """
    dropout = as_drawn(dropout)
    if needs_grad(*operands):
        # PyTorch does not know what an operator of a compiled graph draws, so it could not
        # recompute it
        if dropout > 0 and torch.compiler.is_compiling():
            seed = torch.randint(2**62, (1,))
        else:
            seed = None
        return operator(*operands, scale, window, dropout, True, clamp_len, first_BT, seed)
    if operands[0].shape[2] == 1 and dropout == 0 and log_weight_BTS is None:
        return one_query(
            *operands, scale=scale, window=window, clamp_len=clamp_len, first_B1=first_BT
        )
    options = (scale, window, dropout, False, clamp_len, first_BT, None, log_weight_BTS)
    return forward(*operands, *options)[0]


def one_query(
    *operands: *Operands, scale: float, window: int, clamp_len: int, first_B1: Tensor | None
) -> Tensor:
    """The output, (B, N, 1, H), without dropout and gradients; arguments as for `rel_attention`.

    On a CPU half precision is computed in float32: PyTorch's products of half precision first copy
    their operands.
    """
    q_BN1H, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH = operands
    dtype = q_BN1H.dtype
    if q_BN1H.device.type == "cpu":
        wide = at_least_float32(dtype)
    else:
        wide = dtype
    n_key = len(r_SNH)
    if window > 0:
        k_BNSH = k_BNSH[:, :, -window:]
        v_BNSH = v_BNSH[:, :, -window:]
        r_SNH = r_SNH[-window:]
    if clamp_len > 0:
        n_alike = max(0, len(r_SNH) - clamp_len - 1)
    else:
        n_alike = 0
    q_BN1H, k_BNSH, v_BNSH, r_SNH = (x.to(wide) for x in (q_BN1H, k_BNSH, v_BNSH, r_SNH))
    u_N1H, w_N1H = (bias_NH.to(wide)[:, None] for bias_NH in (u_NH, w_NH))
    logit_BN1S = (q_BN1H + u_N1H) * scale @ k_BNSH.mT
    qw_NBH = ((q_BN1H + w_N1H) * scale)[:, :, 0].transpose(0, 1)
    # r once for all rows
    place_BN1R = (qw_NBH @ r_SNH[n_alike:].permute(1, 2, 0)).transpose(0, 1)[:, :, None]
    logit_BN1S[..., n_alike:] += place_BN1R
    logit_BN1S[..., :n_alike] += place_BN1R[..., :1]
    if first_B1 is not None:
        hide_before(logit_BN1S, first_B1[:, None, :, None] - (n_key - len(r_SNH)))
    return (logit_BN1S.softmax(-1) @ v_BNSH).to(dtype)
