"""Triton helpers on tiles and rows, and the kernels that only copy or reduce rows.

Conventions: `triton_kernels`.
"""

import triton
import triton.language as tl

LENGTHS = (
    "B",
    "N",
    "T",
    "S",
    "window",
    "splits",
    "first",
    "count",
    "n_u",
    "n_sum",
    "n_r",
    "n_number",
)
"""They change while a memory fills, which must not recompile a kernel."""
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _rows(ptr, row, n_rows, stride, HP: tl.constexpr, D: tl.constexpr):
    """Rows of a matrix as a (len(row), D) tile; zeros outside the matrix."""
    col = tl.arange(0, D)
    there = ((row >= 0) & (row < n_rows))[:, None]
    if HP < D:
        there = there & (col < HP)[None, :]
    return tl.load(ptr + row[:, None] * stride + col[None, :], mask=there, other=0.0)


@triton.jit
def _store_rows(ptr, tile, row, n_rows, stride, H: tl.constexpr, D: tl.constexpr):
    col = tl.arange(0, D)
    there = ((row >= 0) & (row < n_rows))[:, None] & (col < H)[None, :]
    tl.store(ptr + row[:, None] * stride + col[None, :], tile.to(ptr.dtype.element_ty), mask=there)


@triton.jit
def _keep(SEED, bn, t0, s0, drop, W: tl.constexpr, axis: tl.constexpr):
    """Dropout's mask of a tile (True: keep), keys along `axis`; s0 is a multiple of 4.

    Philox has one counter per (sequence and head, query, group of four keys) and returns four
    numbers.
    """
    query = t0 + tl.arange(0, W)
    group = s0 // 4 + tl.arange(0, W // 4)
    if axis == 1:
        group, query = tl.broadcast(group[None, :], query[:, None])
    else:
        group, query = tl.broadcast(group[:, None], query[None, :])
    a, b, c, d = tl.philox(tl.load(SEED), group, query, bn, 0)  # type: ignore[misc]  # jit returns four tensors
    limit = tl.cast(drop * 4294967296.0, tl.uint32)
    kept = tl.join(tl.join(a >= limit, c >= limit), tl.join(b >= limit, d >= limit))
    if axis == 0:
        kept = tl.permute(kept, [0, 2, 3, 1])
    return tl.reshape(kept, [W, W])


@triton.jit
def _turn(x, turn, axis: tl.constexpr, W: tl.constexpr):
    """Rotate the lines of a square tile along `axis`: x[turn] along that axis.

    Two adjacent halves are first rotated separately, which is one warp shuffle, then swapped.
    16-bit numbers are rotated as a whole: in halves they would pass through shared memory one by
    one.
    """
    if W != 64 or x.dtype.primitive_bitwidth < 32:
        return tl.gather(x, turn, axis=axis)
    half: tl.constexpr = W // 2
    if axis == 1:
        y = tl.reshape(x, [W, 2, half])
        at = tl.reshape(turn, [W, 2, half])
        a, b = tl.split(tl.permute(tl.gather(y, at % half, axis=2), [0, 2, 1]))
        from_b, _ = tl.split(tl.permute(at >= half, [0, 2, 1]))
        joined = tl.join(tl.where(from_b, b, a), tl.where(from_b, a, b))
        return tl.reshape(tl.permute(joined, [0, 2, 1]), [W, W])
    y = tl.reshape(x, [2, half, W])
    at = tl.reshape(turn, [2, half, W])
    a, b = tl.split(tl.permute(tl.gather(y, at % half, axis=1), [1, 2, 0]))
    from_b, _ = tl.split(tl.permute(at >= half, [1, 2, 0]))
    joined = tl.join(tl.where(from_b, b, a), tl.where(from_b, a, b))
    return tl.reshape(tl.permute(joined, [2, 0, 1]), [W, W])


@triton.jit
def _visible(t, s, T, S, window):
    """Which queries t < T see which keys s >= 0; a tile's queries past T must be kept out
    otherwise.
    """
    distance = S - T + t - s
    return (distance >= 0) & (distance < window)


@triton.jit(do_not_specialize=LENGTHS)
def queries(Q, U, V, QU, QW, factor, N, T, q_b, q_n, q_l, ROWS: tl.constexpr, H: tl.constexpr, HP: tl.constexpr,
            D: tl.constexpr):  # fmt: skip
    """QU = factor * (q + u), QW = factor * (q + w). Grid (tiles of ROWS queries * B * N)."""
    tiles = tl.cdiv(T, ROWS)
    bn = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, D)
    q = _rows(Q + bn // N * q_b + bn % N * q_n, row, T, q_l, H, D).to(tl.float32)
    u = tl.load(U + bn % N * H + col, mask=col < H, other=0.0).to(tl.float32)
    w = tl.load(V + bn % N * H + col, mask=col < H, other=0.0).to(tl.float32)
    _store_rows(QU + bn * T * HP, (q + u[None, :]) * factor, row, T, HP, HP, D)
    _store_rows(QW + bn * T * HP, (q + w[None, :]) * factor, row, T, HP, HP, D)


@triton.jit(do_not_specialize=LENGTHS)
def copy_rows(
    X,
    OUT,
    N,
    L,
    x_b,
    x_n,
    x_l,
    ROWS: tl.constexpr,
    H: tl.constexpr,
    HP: tl.constexpr,
    D: tl.constexpr,
):
    """OUT (B, N, L, HP) = X with zeros in the columns from H on.

    Grid (tiles of ROWS rows * B * N).
    """
    tiles = tl.cdiv(L, ROWS)
    bn = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    tile = _rows(X + bn // N * x_b + bn % N * x_n, row, L, x_l, H, D)
    _store_rows(OUT + bn * L * HP, tile, row, L, HP, HP, D)


@triton.jit(do_not_specialize=LENGTHS)
def deltas(OUT, DO, DELTA, N, T, o_b, o_n, o_l, do_b, do_n, do_l, ROWS: tl.constexpr, H: tl.constexpr,
           D: tl.constexpr):  # fmt: skip
    """DELTA[t] = out_t . dout_t. Grid (tiles of ROWS queries * B * N)."""
    tiles = tl.cdiv(T, ROWS)
    bn = (tl.program_id(0) // tiles).to(tl.int64)
    row = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    out = _rows(OUT + bn // N * o_b + bn % N * o_n, row, T, o_l, H, D).to(tl.float32)
    dout = _rows(DO + bn // N * do_b + bn % N * do_n, row, T, do_l, H, D).to(tl.float32)
    tl.store(DELTA + bn * T + row, tl.sum(out * dout, 1), mask=row < T)


@triton.jit
def _sum_rows(X, n_row, col, n_col, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The sums of the columns `col` of X (n_row, n_col)."""
    sums = tl.zeros([ROWS, COLS], tl.float32)
    for first in range(0, n_row, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < n_row)[:, None] & (col < n_col)[None, :]
        sums += tl.load(X + row[:, None] * n_col + col[None, :], mask=there, other=0.0)
    return tl.sum(sums, 0)


@triton.jit(do_not_specialize=LENGTHS)
def sum_parts(U_PARTS, SUM_PARTS, R_PARTS, DU, DW, DR, n_u, n_sum, n_r, n_number, n_bias, ROWS: tl.constexpr,
              COLS: tl.constexpr):  # fmt: skip
    """DR: the sum of R_PARTS (n_r, n_number). DU: that of U_PARTS (n_u, n_bias); DW: that of
    SUM_PARTS (n_sum, n_bias) without DU.

    Grid (tiles of ROWS * COLS numbers of r + tiles of COLS numbers of the biases).
    """
    n_each: tl.constexpr = ROWS * COLS
    tiles = tl.cdiv(n_number, n_each)
    if tl.program_id(0) < tiles:
        at = tl.program_id(0) * n_each + tl.arange(0, n_each)
        sums = tl.zeros([n_each], tl.float32)
        for part in range(0, n_r):
            first = tl.cast(part, tl.int64) * n_number
            sums += tl.load(R_PARTS + first + at, mask=at < n_number, other=0.0)
        tl.store(DR + at, sums.to(DR.dtype.element_ty), mask=at < n_number)
    else:
        col = (tl.program_id(0) - tiles) * COLS + tl.arange(0, COLS)
        du = _sum_rows(U_PARTS, n_u, col, n_bias, ROWS, COLS)
        dw = _sum_rows(SUM_PARTS, n_sum, col, n_bias, ROWS, COLS) - du
        tl.store(DU + col, du, mask=col < n_bias)
        tl.store(DW + col, dw, mask=col < n_bias)
