"""The kernels of the backward pass that reads the gradient of the logits from memory. Conventions:
`triton_kernels`.

E (sequences, N, T, e_l) is that gradient, as `backward_keys` stores it tile by tile: of a tile that
no query sees it holds nothing, and a row ends with whole tiles. Its first sequence is the batch's
`first`.
"""

import triton
import triton.language as tl

from txl.ops.rel_attention.triton_rows import LENGTHS, LN2, _rows, _store_rows, _visible


@triton.jit(do_not_specialize=LENGTHS)
def kept_queries(E, K, R, DQ, SUM, scale, first, N, T, S, window, e_l, k_b, k_n, k_l, r_n, r_l, dq_b, dq_n, dq_l,
                 W: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, D: tl.constexpr,
                 PRECISION: tl.constexpr):  # fmt: skip
    """What `backward_queries` computes. Grid (tiles of W queries * sequences * N)."""
    tiles = tl.cdiv(T, W)
    at = (tl.program_id(0) // tiles).to(tl.int64)
    t0 = (tiles - 1 - tl.program_id(0) % tiles) * W
    b = first + at // N
    head = at % N
    row = t0 + tl.arange(0, W)
    e_ptr = E + at * T * e_l + row[:, None] * e_l
    there = (row < T)[:, None]
    dq = tl.zeros([W, D], tl.float32)
    for s0 in range(
        tl.maximum(0, t0 + S - T - window + 1) // W * W, tl.minimum(S, t0 + W + S - T), W
    ):
        key = s0 + tl.arange(0, W)
        e = tl.load(e_ptr + key[None, :], mask=there, other=0.0)
        e = tl.where(_visible(row[:, None], key[None, :], T, S, window), e, 0.0).to(
            E.dtype.element_ty
        )
        dq = tl.dot(
            e, _rows(K + b * k_b + head * k_n, key, S, k_l, HP, D), dq, input_precision=PRECISION
        )
    for c0 in range(tl.maximum(tl.maximum(0, T - W - t0), S - window), S, W):
        place = c0 + tl.arange(0, W)
        key = place[None, :] - (T - 1) + row[:, None]
        e = tl.load(e_ptr + key, mask=there & (key >= 0) & (place < S)[None, :], other=0.0)
        dq = tl.dot(e, _rows(R + head * r_n, place, S, r_l, HP, D), dq, input_precision=PRECISION)
    dq *= scale
    _store_rows(DQ + b * dq_b + head * dq_n, dq, row, T, dq_l, H, D)
    col = tl.arange(0, D)
    tl.store(SUM + ((b * tiles + t0 // W) * N + head) * H + col, tl.sum(dq, 0), mask=col < H)


@triton.jit(do_not_specialize=LENGTHS)
def kept_places(E, QW, DR, first, count, N, T, S, window, e_l, splits, W: tl.constexpr, H: tl.constexpr,
                HP: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """What `backward_places` computes, of `count` sequences.

    Grid (tiles of W rows of r * N * splits).
    """
    tiles = tl.cdiv(S, W)
    c0 = tl.program_id(0) % tiles * W
    head = (tl.program_id(0) // tiles % N).to(tl.int64)
    split = tl.program_id(0) // tiles // N
    place = c0 + tl.arange(0, W)
    seen = ((place < S) & (place >= S - window))[:, None]
    dr = tl.zeros([W, D], tl.float32)
    begin = tl.maximum(0, T - W - c0) // W
    each = tl.cdiv(T, W) - begin
    if S - W - c0 >= window:
        each = 0
    for step in range(0, each * tl.cdiv(count - split, splits)):
        at = (split + step // each * splits).to(tl.int64)
        row = (begin + step % each) * W + tl.arange(0, W)
        key = place[:, None] - (T - 1) + row[None, :]
        e_ptr = E + (at * N + head) * T * e_l
        e = tl.load(
            e_ptr + row[None, :] * e_l + key, mask=seen & (row < T)[None, :] & (key >= 0), other=0.0
        )
        qw = _rows(QW + ((first + at) * N + head) * T * HP, row, T, HP, HP, D)
        dr = tl.dot(e, qw, dr, input_precision=PRECISION)
    _store_rows(DR + (split.to(tl.int64) * S * N + head) * H, dr * LN2, place, S, N * H, H, D)
