"""The attention kernels of `fused`. Import this module only when they are about to run.

README.md in this directory derives them. Shared conventions:

    row c of R belongs to distance S - 1 - c, so query t and key s use row T - 1 - t + s;
    QU = (q + u) * scale * log2(e), QW likewise with w, (B, N, T, HP) contiguous: exponentials are
    powers of two;
    LSE (B * N, T) is the base-2 logarithm of the sum of those powers, DELTA (B * N, T) the dot
    product of out and its gradient;
    X_b, X_n, X_l are the strides of X over batch, head and row; the last dimension is contiguous;
    W is the side of a tile, HP the columns read, H the columns written, D the next power of two.

`kept_queries` and `kept_places` read the gradient of the logits from memory: E (sequences, N, T,
e_l), as `backward_keys` stores it tile by tile. Of a tile that no query sees it holds nothing, and
a row ends with whole tiles. Its first sequence is the batch's `first`.
"""

import triton
import triton.language as tl

from txl.ops.rel_attention.triton_rows import (
    LENGTHS,
    LN2,
    _keep,
    _rows,
    _store_rows,
    _turn,
    _visible,
)


@triton.jit
def _attend(acc, peak, total, left, qu, qw, k_ptr, v_ptr, r_ptr, SEED, lo, hi, t0, bn, T, S, window, drop, k_l, v_l,
            r_l, W: tl.constexpr, HP: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr, DROPOUT: tl.constexpr,
            MASKED: tl.constexpr):  # fmt: skip
    """Online softmax of W queries over the keys lo ... hi - 1.

    `left` is the position product of the block before.
    """
    m = tl.arange(0, W)[:, None]
    n = tl.arange(0, W)[None, :]
    turn = (n - m - 1 + W) % W
    from_left = n >= W - 1 - m
    for s0 in range(lo, hi, W):
        key = s0 + tl.arange(0, W)
        k = _rows(k_ptr, key, S, k_l, HP, D)
        r = _rows(r_ptr, T - t0 + key, S, r_l, HP, D)
        right = tl.dot(qw, tl.trans(r), input_precision=PRECISION)
        place = _turn(tl.where(from_left, left, right), turn, 1, W)
        left = right
        logit = tl.dot(qu, tl.trans(k), input_precision=PRECISION) + place
        if MASKED:
            logit = tl.where(_visible(t0 + m, s0 + n, T, S, window), logit, float("-inf"))
        higher = tl.maximum(peak, tl.max(logit, 1))
        prob = tl.exp2(logit - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(prob, 1)
        peak = higher
        if DROPOUT:
            prob = tl.where(_keep(SEED, bn, t0, s0, drop, W, 1), prob, 0.0)
        v = _rows(v_ptr, key, S, v_l, HP, D)
        acc = tl.dot(prob.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, peak, total, left


@triton.jit(do_not_specialize=LENGTHS)
def forward(QU, QW, K, V, R, OUT, LSE, SEED, B, N, T, S, window, drop, k_b, k_n, k_l, v_b, v_n, v_l, r_n, r_l,
            o_p, o_b, o_n, o_l, splits, W: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, D: tl.constexpr,
            PRECISION: tl.constexpr, DROPOUT: tl.constexpr):  # fmt: skip
    """Grid (tiles of W queries * splits of their keys * B * N), the tiles that see most first."""
    tiles = tl.cdiv(T, W)
    bn = (tl.program_id(0) // (tiles * splits)).to(tl.int64)
    split = tl.program_id(0) // tiles % splits
    t0 = (tiles - 1 - tl.program_id(0) % tiles) * W
    b = bn // N
    n = bn % N
    row = t0 + tl.arange(0, W)
    k_ptr = K + b * k_b + n * k_n
    v_ptr = V + b * v_b + n * v_n
    r_ptr = R + n * r_n
    qu = _rows(QU + bn * T * HP, row, T, HP, HP, D)
    qw = _rows(QW + bn * T * HP, row, T, HP, HP, D)
    acc = tl.zeros([W, D], tl.float32)
    peak = tl.full([W], -1e30, tl.float32)
    total = tl.zeros([W], tl.float32)
    M = S - T
    lo = tl.maximum(0, t0 + M - window + 1) // W * W
    hi = tl.minimum(S, t0 + W + M)
    each = tl.cdiv(tl.cdiv(hi - lo, W), splits) * W
    lo = lo + split * each
    hi = tl.minimum(hi, lo + each)
    r = _rows(r_ptr, T - W - t0 + lo + tl.arange(0, W), S, r_l, HP, D)
    left = tl.dot(qw, tl.trans(r), input_precision=PRECISION)
    acc, peak, total, left = _attend(acc, peak, total, left, qu, qw, k_ptr, v_ptr, r_ptr, SEED, lo, hi, t0,
                                     bn.to(tl.int32), T, S, window, drop, k_l, v_l, r_l, W, HP, D, PRECISION, DROPOUT,
                                     True)  # fmt: skip
    total = tl.where(total > 0, total, 1.0)  # rows past T see nothing, nor does an empty split
    if DROPOUT:
        kept = 1.0 - drop
    else:
        kept = 1.0
    _store_rows(
        OUT + split * o_p + b * o_b + n * o_n, acc / (total * kept)[:, None], row, T, o_l, H, D
    )
    tl.store(LSE + (split * B * N + bn) * T + row, peak + tl.log2(total), mask=row < T)


@triton.jit(do_not_specialize=LENGTHS)
def join(
    PART, PART_LSE, OUT, LSE, B, N, T, splits, ROWS: tl.constexpr, H: tl.constexpr, D: tl.constexpr
):
    """One output of the splits' outputs, PART (splits, B, T, N, H), weighted by their sums.

    Grid (tiles * B * N).
    """
    tiles = tl.cdiv(T, ROWS)
    bn = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    peak = tl.full([ROWS], -1e30, tl.float32)
    for split in range(0, splits):
        peak = tl.maximum(
            peak, tl.load(PART_LSE + (split * B * N + bn) * T + row, mask=row < T, other=0.0)
        )
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    at = (bn // N * T * N + bn % N) * H
    for split in range(0, splits):
        weight = tl.exp2(
            tl.load(PART_LSE + (split * B * N + bn) * T + row, mask=row < T, other=0.0) - peak
        )
        total += weight
        acc += weight[:, None] * _rows(PART + split * B * T * N * H + at, row, T, N * H, H, D)
    _store_rows(OUT + at, acc / total[:, None], row, T, N * H, H, D)
    tl.store(LSE + bn * T + row, peak + tl.log2(total), mask=row < T)


@triton.jit(do_not_specialize=LENGTHS)
def backward_queries(QU, QW, K, V, R, DO, LSE, DELTA, DQ, SUM, SEED, scale, B, N, T, S, window, drop,
                     k_b, k_n, k_l, v_b, v_n, v_l, r_n, r_l, do_b, do_n, do_l, dq_b, dq_n, dq_l, W: tl.constexpr,
                     H: tl.constexpr, HP: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
                     DROPOUT: tl.constexpr):  # fmt: skip
    """dq, and its sum over this tile, which is part of du + dw, (B, tiles, N, H).

    Grid (tiles of W queries * B * N).
    """
    tiles = tl.cdiv(T, W)
    bn = (tl.program_id(0) // tiles).to(tl.int64)
    t0 = (tiles - 1 - tl.program_id(0) % tiles) * W
    b = bn // N
    head = bn % N
    row = t0 + tl.arange(0, W)
    k_ptr, v_ptr, r_ptr = K + b * k_b + head * k_n, V + b * v_b + head * v_n, R + head * r_n
    qu = _rows(QU + bn * T * HP, row, T, HP, HP, D)
    qw = _rows(QW + bn * T * HP, row, T, HP, HP, D)
    dout = _rows(DO + b * do_b + head * do_n, row, T, do_l, HP, D)
    lse = tl.load(LSE + bn * T + row, mask=row < T, other=float("inf"))[:, None]
    delta = tl.load(DELTA + bn * T + row, mask=row < T, other=0.0)[:, None]
    M = S - T
    lo = tl.maximum(0, t0 + M - window + 1) // W * W
    hi = tl.minimum(S, t0 + W + M)
    m = tl.arange(0, W)[:, None]
    n = tl.arange(0, W)[None, :]
    turn = (n - m - 1 + W) % W
    back = (n + m + 1) % W
    from_left = n >= W - 1 - m
    dq = tl.zeros([W, D], tl.float32)
    r = _rows(r_ptr, T - W - t0 + lo + tl.arange(0, W), S, r_l, HP, D)
    left = tl.dot(qw, tl.trans(r), input_precision=PRECISION)
    dleft = tl.zeros([W, W], qw.dtype)
    for s0 in range(lo, hi, W):
        key = s0 + tl.arange(0, W)
        k = _rows(k_ptr, key, S, k_l, HP, D)
        v = _rows(v_ptr, key, S, v_l, HP, D)
        r = _rows(r_ptr, T - t0 + key, S, r_l, HP, D)
        right = tl.dot(qw, tl.trans(r), input_precision=PRECISION)
        place = _turn(tl.where(from_left, left, right), turn, 1, W)
        left = right
        logit = tl.dot(qu, tl.trans(k), input_precision=PRECISION) + place
        prob = tl.exp2(tl.where(_visible(t0 + m, s0 + n, T, S, window), logit - lse, float("-inf")))
        dprob = tl.dot(dout, tl.trans(v), input_precision=PRECISION)
        if DROPOUT:
            dprob = tl.where(
                _keep(SEED, bn.to(tl.int32), t0, s0, drop, W, 1), dprob / (1.0 - drop), 0.0
            )
        dlogit = (prob * (dprob - delta)).to(k.dtype)
        dq = tl.dot(dlogit, k, dq, input_precision=PRECISION)
        dplace = _turn(dlogit, back, 1, W)
        before = _rows(r_ptr, T - W - t0 + key, S, r_l, HP, D)
        dq = tl.dot(tl.where(from_left, dplace, dleft), before, dq, input_precision=PRECISION)
        dleft = tl.where(from_left, 0.0, dplace).to(k.dtype)
    last = lo + tl.cdiv(hi - lo, W) * W
    r = _rows(r_ptr, T - W - t0 + last + tl.arange(0, W), S, r_l, HP, D)
    dq = tl.dot(dleft, r, dq, input_precision=PRECISION)
    dq *= scale
    _store_rows(DQ + b * dq_b + head * dq_n, dq, row, T, dq_l, H, D)
    col = tl.arange(0, D)
    tl.store(SUM + ((b * tiles + t0 // W) * N + head) * H + col, tl.sum(dq, 0), mask=col < H)


@triton.jit(do_not_specialize=LENGTHS)
def backward_keys(QU, QW, K, V, R, DO, LSE, DELTA, DK, DV, DU, E, SEED, scale, first, B, N, T, S, window, drop,
                  k_b, k_n, k_l, v_b, v_n, v_l, r_n, r_l, do_b, do_n, do_l, dk_b, dk_n, dk_l, e_l,
                  W: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
                  DROPOUT: tl.constexpr):  # fmt: skip
    """dk, dv and their part of du, (B, tiles, N, H); tiles are (keys, queries). From sequence
    `first` on; if there is an E, it gets the gradient of the logits, see `kept_queries`. Grid (tiles
    of W keys * sequences * N).
    """
    tiles = tl.cdiv(S, W)
    at = (tl.program_id(0) // tiles).to(tl.int64)
    bn = first * N + at
    s0 = tl.program_id(0) % tiles * W
    b, head = bn // N, bn % N
    key = s0 + tl.arange(0, W)
    qu_ptr = QU + bn * T * HP
    qw_ptr = QW + bn * T * HP
    do_ptr = DO + b * do_b + head * do_n
    r_ptr = R + head * r_n
    k = _rows(K + b * k_b + head * k_n, key, S, k_l, HP, D)
    v = _rows(V + b * v_b + head * v_n, key, S, v_l, HP, D)
    M = S - T
    lo = tl.maximum(0, s0 - M) // W * W
    hi = tl.minimum(T, s0 + W - 1 + window - M)
    n = tl.arange(0, W)[:, None]
    m = tl.arange(0, W)[None, :]
    turn = (n - m - 1 + W) % W
    from_left = n >= W - 1 - m
    dk = tl.zeros([W, D], tl.float32)
    dv = tl.zeros([W, D], tl.float32)
    weight = tl.zeros([W], tl.float32)
    for t0 in range(lo, hi, W):
        row = t0 + tl.arange(0, W)
        qu = _rows(qu_ptr, row, T, HP, HP, D)
        qw = _rows(qw_ptr, row, T, HP, HP, D)
        dout = _rows(do_ptr, row, T, do_l, HP, D)
        lse = tl.load(LSE + bn * T + row, mask=row < T, other=float("inf"))[None, :]
        delta = tl.load(DELTA + bn * T + row, mask=row < T, other=0.0)[None, :]
        r = _rows(r_ptr, T - W - t0 + key, S, r_l, HP, D)
        left = tl.dot(r, tl.trans(qw), input_precision=PRECISION)
        r = _rows(r_ptr, T - t0 + key, S, r_l, HP, D)
        right = tl.dot(r, tl.trans(qw), input_precision=PRECISION)
        place = _turn(tl.where(from_left, left, right), turn, 0, W)
        logit = tl.dot(k, tl.trans(qu), input_precision=PRECISION) + place
        prob = tl.exp2(tl.where(_visible(t0 + m, s0 + n, T, S, window), logit - lse, float("-inf")))
        dprob = tl.dot(v, tl.trans(dout), input_precision=PRECISION)
        passed = prob
        if DROPOUT:
            keep = _keep(SEED, bn.to(tl.int32), t0, s0, drop, W, 0)
            passed = tl.where(keep, prob / (1.0 - drop), 0.0)
            dprob = tl.where(keep, dprob / (1.0 - drop), 0.0)
        dv = tl.dot(passed.to(dout.dtype), dout, dv, input_precision=PRECISION)
        dlogit = prob * (dprob - delta)
        if E is not None:
            e_ptr = E + at * T * e_l + row[None, :] * e_l + key[:, None]
            tl.store(e_ptr, dlogit.to(E.dtype.element_ty), mask=(row < T)[None, :])
        weight += tl.sum(dlogit, 1)
        dk = tl.dot(dlogit.to(qu.dtype), qu, dk, input_precision=PRECISION)
    _store_rows(DK + b * dk_b + head * dk_n, dk * LN2, key, S, dk_l, H, D)
    _store_rows(DV + b * dk_b + head * dk_n, dv, key, S, dk_l, H, D)
    du = tl.sum(weight[:, None] * k.to(tl.float32), 0) * scale
    col = tl.arange(0, D)
    tl.store(DU + ((b * tiles + s0 // W) * N + head) * H + col, du, mask=col < H)


@triton.jit(do_not_specialize=LENGTHS)
def backward_places(QU, QW, K, V, R, DO, LSE, DELTA, DR, SEED, B, N, T, S, window, drop,
                    k_b, k_n, k_l, v_b, v_n, v_l, r_n, r_l, do_b, do_n, do_l, splits, W: tl.constexpr,
                    H: tl.constexpr, HP: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
                    DROPOUT: tl.constexpr):  # fmt: skip
    """Parts of dr, (splits, S, N, H); tiles are (distances, queries), and the products with keys
    and values are turned.

    The tiles are shifted so that they meet whole tiles of keys. Grid (tiles of W rows of r * N *
    splits); a split is every `splits`-th sequence of the batch.
    """
    shift = (W - (T - 1) % W) % W
    tiles = tl.cdiv(S + shift, W)
    c0 = tl.program_id(0) % tiles * W - shift
    head = (tl.program_id(0) // tiles % N).to(tl.int64)
    split = tl.program_id(0) // tiles // N
    place_row = c0 + tl.arange(0, W)
    r = _rows(R + head * r_n, place_row, S, r_l, HP, D)
    n = tl.arange(0, W)[:, None]
    m = tl.arange(0, W)[None, :]
    turn = (n + m) % W
    from_left = n >= m
    dr = tl.zeros([W, D], tl.float32)
    first = tl.maximum(0, T - W - c0) // W
    each = tl.cdiv(T, W) - first
    if S - W - c0 >= window:
        each = 0
    sequences = tl.cdiv(B - split, splits)
    for step in range(0, each * sequences):
        b = (split + step // each * splits).to(tl.int64)
        bn = b * N + head
        t0 = (first + step % each) * W
        row = t0 + tl.arange(0, W)
        qu = _rows(QU + bn * T * HP, row, T, HP, HP, D)
        qw = _rows(QW + bn * T * HP, row, T, HP, HP, D)
        dout = _rows(DO + b * do_b + head * do_n, row, T, do_l, HP, D)
        lse = tl.load(LSE + bn * T + row, mask=row < T, other=float("inf"))[None, :]
        delta = tl.load(DELTA + bn * T + row, mask=row < T, other=0.0)[None, :]
        s0 = t0 + c0 - (T - 1)
        key = s0 + tl.arange(0, W)
        k_ptr, v_ptr = K + b * k_b + head * k_n, V + b * v_b + head * v_n
        left = tl.dot(_rows(k_ptr, key, S, k_l, HP, D), tl.trans(qu), input_precision=PRECISION)
        right = tl.dot(
            _rows(k_ptr, key + W, S, k_l, HP, D), tl.trans(qu), input_precision=PRECISION
        )
        logit = _turn(tl.where(from_left, left, right), turn, 0, W)
        logit += tl.dot(r, tl.trans(qw), input_precision=PRECISION)
        there = _visible(t0 + m, s0 + m + n, T, S, window) & (s0 + m + n >= 0)
        prob = tl.exp2(tl.where(there, logit - lse, float("-inf")))
        left = tl.dot(_rows(v_ptr, key, S, v_l, HP, D), tl.trans(dout), input_precision=PRECISION)
        right = tl.dot(
            _rows(v_ptr, key + W, S, v_l, HP, D), tl.trans(dout), input_precision=PRECISION
        )
        if DROPOUT:
            left = tl.where(
                _keep(SEED, bn.to(tl.int32), t0, s0, drop, W, 0), left / (1.0 - drop), 0.0
            )
            right = tl.where(
                _keep(SEED, bn.to(tl.int32), t0, s0 + W, drop, W, 0), right / (1.0 - drop), 0.0
            )
        dprob = _turn(tl.where(from_left, left, right), turn, 0, W)
        dlogit = prob * (dprob - delta)
        dr = tl.dot(dlogit.to(qw.dtype), qw, dr, input_precision=PRECISION)
    dr_ptr = DR + (split.to(tl.int64) * S * N + head) * H
    _store_rows(dr_ptr, dr * LN2, place_row, S, N * H, H, D)


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
