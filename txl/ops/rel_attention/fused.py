"""The operator in Triton: nothing of T x S is ever stored, forward or backward. README.md beside this has the derivation.

Tensors must be on a GPU, or anywhere if TRITON_INTERPRET=1 was set before Triton was first imported.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_HEAD = 128


class Tile(NamedTuple):
    """How one kernel is launched: the side of its square tile, warps per program, loads in flight."""

    side: int
    warps: int
    stages: int


TILES: dict[tuple[str, int, int], Tile] = {
    (name, columns, size): Tile(32 if columns * size > 256 else 64, 4, 2)
    for name in ("forward", "queries", "keys", "places")
    for columns in (16, 32, 64, 128)
    for size in (2, 4)
}
"""By kernel, padded head size and bytes per element."""


def fused(
    q_BNTH: Tensor,
    k_BNSH: Tensor,
    v_BNSH: Tensor,
    r_SNH: Tensor,
    u_NH: Tensor,
    w_NH: Tensor,
    *,
    scale: float,
    window: int = -1,
    dropout: float = 0.0,
) -> Tensor:
    """See `txl.ops.rel_attention.rel_attention`. Memory is linear in T and S.

    q, k, v and r share a dtype (float32, bfloat16 or float16); u and w may have another. Sums are kept in float32.
    `out.transpose(1, 2).flatten(2)` is a view. With dropout, the seed is drawn from PyTorch's generator of the device.

    Raises:
        ValueError: the dtypes differ or are not supported, the head is larger than 128, or there are fewer keys than
            queries.
    """
    _check(q_BNTH, k_BNSH, v_BNSH, r_SNH)
    seed = None
    if dropout > 0:
        seed = torch.randint(2**62, (1,), dtype=torch.int64, device=q_BNTH.device)
    return _forward(q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, seed, scale, window, dropout)[0]


def _check(q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, r_SNH: Tensor) -> None:
    dtypes = {x.dtype for x in (q_BNTH, k_BNSH, v_BNSH, r_SNH)}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.bfloat16, torch.float16}:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"q, k, v and r must share float32, bfloat16 or float16 for fused attention, not {names}")
    if q_BNTH.shape[3] > MAX_HEAD:
        raise ValueError(f"fused attention takes heads of up to {MAX_HEAD}, not {q_BNTH.shape[3]}")
    if k_BNSH.shape[2] < q_BNTH.shape[2]:
        raise ValueError(f"{q_BNTH.shape[2]} queries need as many keys or more, not {k_BNSH.shape[2]}")


@torch.library.custom_op("txl::rel_attention", mutates_args=())
def _forward(
    q_BNTH: Tensor,
    k_BNSH: Tensor,
    v_BNSH: Tensor,
    r_SNH: Tensor,
    u_NH: Tensor,
    w_NH: Tensor,
    seed: Tensor | None,
    scale: float,
    window: int,
    dropout: float,
) -> list[Tensor]:
    """The output and what the backward needs of it: [out, lse, qu, qw] and, where heads are padded, [k, v, r]."""
    from txl.ops.rel_attention import triton_kernels as kernels

    B, N, T, H = q_BNTH.shape
    S, HP, D = k_BNSH.shape[2], padded_head(H, q_BNTH.dtype), columns(H)
    if q_BNTH.stride(3) != 1:
        q_BNTH = q_BNTH.contiguous()
    qu_BNTP, qw_BNTP = empty((B, N, T, HP), q_BNTH), empty((B, N, T, HP), q_BNTH)
    rows = 4096 // D
    kernels.queries[(_tiles(T, rows) * B * N,)](
        q_BNTH, u_NH.contiguous(), w_NH.contiguous(), qu_BNTP, qw_BNTP, scale * math.log2(math.e), N, T,
        *q_BNTH.stride()[:3], ROWS=rows, H=H, HP=HP, D=D,
    )  # fmt: skip
    k_BNSP, v_BNSP, r_NSP = _aligned(k_BNSH), _aligned(v_BNSH), _aligned(r_SNH.transpose(0, 1)[None])[0]
    out_BTNH = empty((B, T, N, H), q_BNTH)
    lse_BNT = empty((B, N, T), q_BNTH, torch.float32)
    out_BNTH = out_BTNH.transpose(1, 2)
    tile = TILES["forward", D, q_BNTH.element_size()]
    kernels.forward[(_tiles(T, tile.side) * B * N,)](
        qu_BNTP, qw_BNTP, k_BNSP, v_BNSP, r_NSP, out_BNTH, lse_BNT, seed, N, T, S, window if window > 0 else S, dropout,
        *k_BNSP.stride()[:3], *v_BNSP.stride()[:3], *r_NSP.stride()[:2], *out_BNTH.stride()[:3],
        **_constants(tile, q_BNTH, dropout),
    )  # fmt: skip
    padded = [k_BNSP, v_BNSP, r_NSP] if HP != H else []
    return [out_BNTH, lse_BNT, qu_BNTP, qw_BNTP, *padded]


@_forward.register_fake
def _(q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, seed, scale, window, dropout):  # noqa: ANN
    B, N, T, H = q_BNTH.shape
    S, HP = k_BNSH.shape[2], padded_head(H, q_BNTH.dtype)
    out_BNTH = q_BNTH.new_empty(B, T, N, H).transpose(1, 2)
    lse_BNT = q_BNTH.new_empty(B, N, T, dtype=torch.float32)
    padded = [(B, N, S, HP), (B, N, S, HP), (N, S, HP)] if HP != H else []
    return [out_BNTH, lse_BNT, *(q_BNTH.new_empty(shape) for shape in [(B, N, T, HP), (B, N, T, HP), *padded])]


@torch.library.custom_op("txl::rel_attention_backward", mutates_args=())
def _backward(
    dout_BNTH: Tensor,
    out_BNTH: Tensor,
    lse_BNT: Tensor,
    qu_BNTP: Tensor,
    qw_BNTP: Tensor,
    k_BNSP: Tensor,
    v_BNSP: Tensor,
    r_NSP: Tensor,
    seed: Tensor | None,
    scale: float,
    window: int,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v, r, u and w, the last three in float32."""
    from txl.ops.rel_attention import triton_kernels as kernels

    B, N, T, H = out_BNTH.shape
    S, D = k_BNSP.shape[2], columns(H)
    k_BNSP, v_BNSP, r_NSP = _aligned(k_BNSP), _aligned(v_BNSP), _aligned(r_NSP[None])[0]
    dout_BNTP, delta_BNT = _aligned(dout_BNTH), empty((B, N, T), lse_BNT)
    rows = 4096 // D
    kernels.deltas[(_tiles(T, rows) * B * N,)](
        out_BNTH, dout_BNTP, delta_BNT, N, T, *out_BNTH.stride()[:3], *dout_BNTP.stride()[:3], ROWS=rows, H=H, D=D
    )
    inputs = (qu_BNTP, qw_BNTP, k_BNSP, v_BNSP, r_NSP, dout_BNTP, lse_BNT, delta_BNT)
    numbers = (N, T, S, window if window > 0 else S, dropout)
    strides = (*k_BNSP.stride()[:3], *v_BNSP.stride()[:3], *r_NSP.stride()[:2], *dout_BNTP.stride()[:3])

    dq_BNTH = empty((B, T, N, H), out_BNTH).transpose(1, 2)
    tile = TILES["queries", D, out_BNTH.element_size()]
    du_PNH, dw_PNH = (empty((B * _tiles(T, tile.side), N, H), lse_BNT) for _ in range(2))
    kernels.backward_queries[(_tiles(T, tile.side) * B * N,)](
        *inputs, dq_BNTH, du_PNH, dw_PNH, seed, scale, *numbers, *strides, *dq_BNTH.stride()[:3],
        **_constants(tile, out_BNTH, dropout),
    )  # fmt: skip

    dk_BNSH, dv_BNSH = (empty((B, S, N, H), out_BNTH).transpose(1, 2) for _ in range(2))
    tile = TILES["keys", D, out_BNTH.element_size()]
    kernels.backward_keys[(_tiles(S, tile.side) * B * N,)](
        *inputs, dk_BNSH, dv_BNSH, seed, *numbers, *strides, *dk_BNSH.stride()[:3], *dv_BNSH.stride()[:3],
        **_constants(tile, out_BNTH, dropout),
    )  # fmt: skip

    tile = TILES["places", D, out_BNTH.element_size()]
    splits = min(B, -(-1024 // (_tiles(S, tile.side) * N)))
    dr_PSNH = empty((splits, S, N, H), lse_BNT)
    kernels.backward_places[(_tiles(S, tile.side) * N * splits,)](
        *inputs, dr_PSNH, seed, B, *numbers, *strides, splits, **_constants(tile, out_BNTH, dropout)
    )
    return dq_BNTH, dk_BNSH, dv_BNSH, dr_PSNH.sum(0), du_PNH.sum(0), dw_PNH.sum(0)


@_backward.register_fake
def _(dout_BNTH, out_BNTH, lse_BNT, qu_BNTP, qw_BNTP, k_BNSP, v_BNSP, r_NSP, seed, scale, window, dropout):  # noqa: ANN
    B, N, T, H = out_BNTH.shape
    S = k_BNSP.shape[2]
    dq_BNTH, dk_BNSH, dv_BNSH = (out_BNTH.new_empty(B, L, N, H).transpose(1, 2) for L in (T, S, S))
    return dq_BNTH, dk_BNSH, dv_BNSH, lse_BNT.new_empty(S, N, H), lse_BNT.new_empty(N, H), lse_BNT.new_empty(N, H)


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    _, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, seed, *ctx.numbers = inputs
    out_BNTH, lse_BNT, qu_BNTP, qw_BNTP, *padded = output
    k, v, r = padded or (k_BNSH, v_BNSH, r_SNH.transpose(0, 1))
    ctx.save_for_backward(out_BNTH, lse_BNT, qu_BNTP, qw_BNTP, k, v, r, seed)
    ctx.dtypes = r_SNH.dtype, u_NH.dtype, w_NH.dtype


def _gradients(ctx: Any, grads: list[Tensor]) -> tuple[Tensor | None, ...]:
    dq, dk, dv, *shared = _backward(grads[0], *ctx.saved_tensors, *ctx.numbers)
    return dq, dk, dv, *(x.to(dtype) for x, dtype in zip(shared, ctx.dtypes, strict=True)), None, None, None, None


_forward.register_autograd(_gradients, setup_context=_save)


def empty(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory that a kernel is about to fill."""
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def columns(head: int) -> int:
    """The power of two that a tile's rows are as long as."""
    return max(16, 1 << (head - 1).bit_length())


def padded_head(head: int, dtype: torch.dtype) -> int:
    """The head size whose rows can be read 16 bytes at a time."""
    return head if head * dtype.itemsize % 16 == 0 else -(-head // 16) * 16


def _aligned(x_BNLH: Tensor) -> Tensor:
    """x, with heads padded by zeros, in a copy unless every row can be read 16 bytes at a time."""
    from txl.ops.rel_attention import triton_kernels as kernels

    B, N, L, H = x_BNLH.shape
    size = x_BNLH.element_size()
    HP = padded_head(H, x_BNLH.dtype)
    offsets = [stride * size for stride in x_BNLH.stride()[:3]]
    if HP == H and x_BNLH.stride(3) == 1 and not any(offset % 16 for offset in [x_BNLH.data_ptr(), *offsets]):
        return x_BNLH
    if x_BNLH.stride(3) != 1:
        return F.pad(x_BNLH, (0, HP - H)).contiguous()
    out_BNLP = empty((B, N, L, HP), x_BNLH)
    rows = 4096 // columns(H)
    kernels.copy_rows[(_tiles(L, rows) * B * N,)](
        x_BNLH, out_BNLP, N, L, *x_BNLH.stride()[:3], ROWS=rows, H=H, HP=HP, D=columns(H)
    )
    return out_BNLP


def _constants(tile: Tile, like: Tensor, dropout: float) -> dict[str, Any]:
    """What a kernel is compiled for."""
    H = like.shape[3]
    tf32 = like.dtype == torch.float32 and like.is_cuda and torch.backends.cuda.matmul.allow_tf32
    return {
        "W": tile.side,
        "H": H,
        "HP": padded_head(H, like.dtype),
        "D": columns(H),
        "PRECISION": "tf32" if tf32 else "ieee",
        "DROPOUT": dropout > 0,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def _tiles(length: int, side: int) -> int:
    return -(-length // side)
