"""The kernels of `layer_rows`, and the functions that launch them.

A program holds whole rows of D numbers, as BLOCK of them. SEED points to a seed on the device.
Tensors must be on a GPU, or anywhere if TRITON_INTERPRET=1 was set before Triton was first imported.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LENGTHS = ("n_row",)
"""It changes while a segment is short, which must not recompile a kernel."""


@triton.jit
def _kept(SEED, row, drop, BLOCK: tl.constexpr):
    """Dropout's mask of a row (True: keep). Philox has one counter per (row, group of four)."""
    group = tl.arange(0, BLOCK // 4)
    a, b, c, d = tl.philox(tl.load(SEED), group, row + 0 * group, 0, 0)  # type: ignore[misc]  # jit returns four
    limit = tl.cast(drop * 4294967296.0, tl.uint32)
    kept = tl.join(tl.join(a >= limit, c >= limit), tl.join(b >= limit, d >= limit))
    return tl.reshape(kept, [BLOCK])


@triton.jit
def _dropped(y, SEED, row, drop, BLOCK: tl.constexpr, DROPOUT: tl.constexpr):
    """dropout(y) of a row; of a gradient, its backward pass."""
    if DROPOUT:
        return tl.where(_kept(SEED, row, drop, BLOCK), y / (1 - drop), 0.0)
    return y


@triton.jit(do_not_specialize=LENGTHS)
def _add_norm(X, Y, W, BIAS, SEED, OUT, HALF, STATS, n_row, eps, drop, D: tl.constexpr, BLOCK: tl.constexpr,
              DROPOUT: tl.constexpr):  # fmt: skip
    """OUT, HALF = LayerNorm(x + dropout(y)); STATS (2, n_row): mean, 1 / deviation. Grid (n_row)."""
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    there = col < D
    at = row.to(tl.int64) * D + col
    x = tl.load(X + at, mask=there, other=0.0)
    y = tl.load(Y + at, mask=there, other=0.0).to(tl.float32)
    sum = x + _dropped(y, SEED, row, drop, BLOCK, DROPOUT)
    mean = tl.sum(tl.where(there, sum, 0.0), 0) / D
    centred = tl.where(there, sum - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / D + eps)
    w = tl.load(W + col, mask=there, other=0.0).to(tl.float32)
    b = tl.load(BIAS + col, mask=there, other=0.0).to(tl.float32)
    out = centred * scale * w + b
    tl.store(OUT + at, out, mask=there)
    tl.store(HALF + at, out.to(HALF.dtype.element_ty), mask=there)
    tl.store(STATS + row, mean)
    tl.store(STATS + n_row + row, scale)


@triton.jit(do_not_specialize=LENGTHS)
def _add_norm_backward(DOUT, DHALF, X, Y, W, SEED, STATS, DX, DY, PARTS, n_row, drop, D: tl.constexpr,
                      BLOCK: tl.constexpr, DROPOUT: tl.constexpr, HAS_DH: tl.constexpr,
                      HAS_DHALF: tl.constexpr):  # fmt: skip
    """DX, DY, and PARTS (2, P, D): sums over a program's rows of the gradients of weight and bias.

    With g the gradient of the result times w and n the normalised sum, that of the sum is
    (g - mean(g) - n mean(g n)) / deviation. Grid (P); a program has every P-th row.
    """
    n_part = tl.num_programs(0)
    col = tl.arange(0, BLOCK)
    there = col < D
    w = tl.load(W + col, mask=there, other=0.0).to(tl.float32)
    of_weight = tl.zeros([BLOCK], tl.float32)
    of_bias = tl.zeros([BLOCK], tl.float32)
    for row in range(tl.program_id(0), n_row, n_part):
        at = tl.cast(row, tl.int64) * D + col
        x = tl.load(X + at, mask=there, other=0.0)
        y = tl.load(Y + at, mask=there, other=0.0).to(tl.float32)
        mean = tl.load(STATS + row)
        scale = tl.load(STATS + n_row + row)
        sum = x + _dropped(y, SEED, row, drop, BLOCK, DROPOUT)
        normed = tl.where(there, (sum - mean) * scale, 0.0)
        dout = tl.zeros([BLOCK], tl.float32)
        if HAS_DH:
            dout += tl.load(DOUT + at, mask=there, other=0.0).to(tl.float32)
        if HAS_DHALF:
            dout += tl.load(DHALF + at, mask=there, other=0.0).to(tl.float32)
        of_weight += dout * normed
        of_bias += dout
        g = dout * w
        dsum = (g - tl.sum(g, 0) / D - normed * (tl.sum(g * normed, 0) / D)) * scale
        tl.store(DX + at, dsum, mask=there)
        dy = _dropped(dsum, SEED, row, drop, BLOCK, DROPOUT)
        tl.store(DY + at, dy.to(DY.dtype.element_ty), mask=there)
    at = tl.program_id(0) * D + col
    tl.store(PARTS + at, of_weight, mask=there)
    tl.store(PARTS + n_part * D + at, of_bias, mask=there)


@triton.jit(do_not_specialize=LENGTHS)
def _relu(Z, SEED, OUT, n_row, drop, D: tl.constexpr, BLOCK: tl.constexpr, DROPOUT: tl.constexpr):
    """OUT = dropout(max(z, 0)). Grid (n_row)."""
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    there = col < D
    at = row.to(tl.int64) * D + col
    z = tl.load(Z + at, mask=there, other=0.0).to(tl.float32)
    relu = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)  # or a GPU makes 0 of NaN
    out = _dropped(relu, SEED, row, drop, BLOCK, DROPOUT)
    tl.store(OUT + at, out.to(OUT.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=LENGTHS)
def _relu_backward(DOUT, OUT, DZ, PARTS, n_row, drop, D: tl.constexpr, BLOCK: tl.constexpr):
    """DZ, and PARTS (P, D): sums over a program's rows of the bias's gradient. Grid (P)."""
    col = tl.arange(0, BLOCK)
    there = col < D
    of_bias = tl.zeros([BLOCK], tl.float32)
    for row in range(tl.program_id(0), n_row, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * D + col
        out = tl.load(OUT + at, mask=there, other=0.0)
        dout = tl.load(DOUT + at, mask=there, other=0.0).to(tl.float32)
        dz = tl.where(out > 0, dout / (1 - drop), tl.where(out == out, 0.0, out))
        of_bias += dz
        tl.store(DZ + at, dz.to(DZ.dtype.element_ty), mask=there)
    tl.store(PARTS + tl.program_id(0) * D + col, of_bias, mask=there)


PROGRAMS = 528
"""Of a backward pass, each with its own sums for weight and bias: four for a multiprocessor of an H200."""


def _untyped(kernel: Any) -> Any:
    """A type checker does not understand kernel launches."""
    return kernel


def add_norm(
    x: Tensor,
    y: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    seed: Tensor | None,
    eps: float,
    p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result in float32 and in the dtype of y; mean and 1 / deviation of each row, (2, L)."""
    h = torch.empty_like(x)
    half = torch.empty_like(y)
    n_row, sizes = _sizes(x)
    stats_2L = x.new_empty(2, n_row)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        _untyped(_add_norm)[(n_row,)](
            x, y, weight_D, bias_D, seed, h, half, stats_2L, n_row, eps, p, DROPOUT=p > 0, **sizes
        )  # fmt: skip
    return h, half, stats_2L


def add_norm_backward(
    dh: Tensor | None,
    dhalf: Tensor | None,
    x: Tensor,
    y: Tensor,
    weight_D: Tensor,
    seed: Tensor | None,
    stats_2L: Tensor,
    p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and y, and parts of those of weight and bias, (2, P, D)."""
    dx = torch.empty_like(x)
    dy = torch.empty_like(y)
    n_row, sizes = _sizes(x)
    n_part = min(n_row, PROGRAMS)
    parts_2PD = x.new_empty(2, n_part, x.shape[-1])
    given = [None if d is None else d.contiguous() for d in (dh, dhalf)]
    with torch.cuda.device_of(x):
        _untyped(_add_norm_backward)[(n_part,)](
            *given, x, y, weight_D, seed, stats_2L, dx, dy, parts_2PD, n_row, p, DROPOUT=p > 0,
            HAS_DH=dh is not None, HAS_DHALF=dhalf is not None, **sizes,
        )  # fmt: skip
    return dx, dy, parts_2PD


def relu(z: Tensor, seed: Tensor | None, p: float) -> Tensor:
    """The result in the dtype of z."""
    out = torch.empty_like(z)
    n_row, sizes = _sizes(z)
    with torch.cuda.device_of(z):
        _untyped(_relu)[(n_row,)](z, seed, out, n_row, p, DROPOUT=p > 0, **sizes)
    return out


def relu_backward(dout: Tensor, out: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """The gradient of z, and parts of its sum over rows, (P, D)."""
    dz = torch.empty_like(out)
    n_row, sizes = _sizes(out)
    n_part = min(n_row, PROGRAMS)
    parts_PD = out.new_empty(n_part, out.shape[-1], dtype=torch.float32)
    with torch.cuda.device_of(out):
        _untyped(_relu_backward)[(n_part,)](dout, out, dz, parts_PD, n_row, p, **sizes)
    return dz, parts_PD


def _sizes(x: Tensor) -> tuple[int, dict[str, Any]]:
    """The number of rows; compile-time constants of their length."""
    D = x.shape[-1]
    block: Any = max(16, triton.next_power_of_2(D))
    return x.numel() // D, {"D": D, "BLOCK": block, "num_warps": min(8, max(1, block // 256))}
