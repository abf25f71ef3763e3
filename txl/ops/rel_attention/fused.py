"""The operator in Triton: nothing of T x S is ever stored, forward or backward. README.md beside this derives it.

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


def _default_tile(kernel: str, columns: int, size: int) -> Tile:
    """The largest tile without spills that matter on sm_90, as `python -m benchmarks.aot` finds them."""
    if size == 2 and kernel == "forward":
        return Tile(64, 8 if columns == 128 else 4, 2)
    if size == 2:
        return Tile(32 if columns == 128 else 64, 8, 2)
    side = 16 if columns == 128 else 32
    return Tile(side, 8, 1 if kernel in ("forward", "queries") else 2)


TILES: dict[tuple[str, int, int], Tile] = {
    (kernel, columns, size): _default_tile(kernel, columns, size)
    for kernel in ("forward", "queries", "keys", "places")
    for columns in (16, 32, 64, 128)
    for size in (2, 4)
}
"""By kernel, padded head size and bytes per element; benchmarks/tune_rel_attention.py times others."""

PROGRAMS = 264  # two for each multiprocessor of an H200
KEYS_PER_SPLIT = 512


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
        ValueError: the dtypes differ or are not supported, the head is larger than 128, there are fewer keys than
            queries, or dropout is not in [0, 1).
    """
    _check(q_BNTH, k_BNSH, v_BNSH, r_SNH, dropout)
    seed = None
    if dropout > 0:
        seed = torch.randint(2**62, (1,), dtype=torch.int64, device=q_BNTH.device)
    return _forward(q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, seed, scale, window, dropout)[0]


def _check(q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, r_SNH: Tensor, dropout: float) -> None:
    dtypes = {x.dtype for x in (q_BNTH, k_BNSH, v_BNSH, r_SNH)}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.bfloat16, torch.float16}:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"q, k, v and r must share float32, bfloat16 or float16 for fused attention, not {names}")
    if q_BNTH.shape[3] > MAX_HEAD:
        raise ValueError(f"fused attention takes heads of up to {MAX_HEAD}, not {q_BNTH.shape[3]}")
    if k_BNSH.shape[2] < q_BNTH.shape[2]:
        raise ValueError(f"{q_BNTH.shape[2]} queries need as many keys or more, not {k_BNSH.shape[2]}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and less than 1, not {dropout}")


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
    with torch.cuda.device_of(q_BNTH):  # Triton launches on the current device, whose tensors these need not be
        qu_BNTP, qw_BNTP = _queries(q_BNTH, u_NH, w_NH, scale * math.log2(math.e))
        k_BNSP, v_BNSP, r_NSP = _aligned(k_BNSH), _aligned(v_BNSH), _aligned(r_SNH.transpose(0, 1)[None])[0]
        call = Call(qu_BNTP, qw_BNTP, k_BNSP, v_BNSP, r_NSP, seed, q_BNTH.shape[3], scale, window, dropout)
        padded = [k_BNSP, v_BNSP, r_NSP] if qu_BNTP.shape[3] != q_BNTH.shape[3] else []
        return [*forward(call), qu_BNTP, qw_BNTP, *padded]


@_forward.register_fake
def _(q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, seed, scale, window, dropout):
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
    with torch.cuda.device_of(dout_BNTH):
        k_BNSP, v_BNSP, r_NSP = _aligned(k_BNSP), _aligned(v_BNSP), _aligned(r_NSP[None])[0]
        call = Call(qu_BNTP, qw_BNTP, k_BNSP, v_BNSP, r_NSP, seed, out_BNTH.shape[3], scale, window, dropout)
        grad = incoming(call, dout_BNTH, out_BNTH, lse_BNT)
        dk_BNSH, dv_BNSH, du_NH = backward_keys(call, grad)
        dq_BNTH, sum_NH = backward_queries(call, grad)
        return dq_BNTH, dk_BNSH, dv_BNSH, backward_places(call, grad), du_NH, sum_NH - du_NH


@_backward.register_fake
def _(dout_BNTH, out_BNTH, lse_BNT, qu_BNTP, qw_BNTP, k_BNSP, v_BNSP, r_NSP, seed, scale, window, dropout):
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


class Call(NamedTuple):
    """What all kernels of one call are given. qu and qw as in triton_kernels.py; H, the head without its padding."""

    qu_BNTP: Tensor
    qw_BNTP: Tensor
    k_BNSP: Tensor
    v_BNSP: Tensor
    r_NSP: Tensor
    seed: Tensor | None
    H: int
    scale: float
    window: int
    dropout: float

    def tensors(self) -> tuple[Tensor, ...]:
        """As every kernel takes them first."""
        return self.qu_BNTP, self.qw_BNTP, self.k_BNSP, self.v_BNSP, self.r_NSP

    def numbers(self) -> tuple[Any, ...]:
        """(B, N, T, S, window, dropout, strides of k, v and r)."""
        B, N, T, _ = self.qu_BNTP.shape
        S = self.k_BNSP.shape[2]
        strides = *self.k_BNSP.stride()[:3], *self.v_BNSP.stride()[:3], *self.r_NSP.stride()[:2]
        return B, N, T, S, self.window if self.window > 0 else S, self.dropout, *strides

    def tile(self, kernel: str) -> Tile:
        """Its launch configuration."""
        return TILES[kernel, columns(self.H), self.qu_BNTP.element_size()]

    def constants(self, kernel: str) -> dict[str, Any]:
        """What it is compiled for."""
        dtype, tile = self.qu_BNTP.dtype, self.tile(kernel)
        tf32 = dtype == torch.float32 and self.qu_BNTP.is_cuda and torch.backends.cuda.matmul.allow_tf32
        return {
            "W": tile.side,
            "H": self.H,
            "HP": self.qu_BNTP.shape[3],
            "D": columns(self.H),
            "PRECISION": "tf32" if tf32 else "ieee",
            "DROPOUT": self.dropout > 0,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }


class Incoming(NamedTuple):
    """What the backward kernels are given besides: the output's gradient, and per query lse and out . dout."""

    dout_BNTP: Tensor
    lse_BNT: Tensor
    delta_BNT: Tensor


def forward(call: Call) -> tuple[Tensor, Tensor]:
    """(out_BNTH, lse_BNT). Where there are too few queries to fill a GPU, several programs share a query's keys."""
    from txl.ops.rel_attention import triton_kernels as kernels

    B, N, T, S, *_ = call.numbers()
    programs = _tiles(T, call.tile("forward").side) * B * N
    splits = max(1, min(PROGRAMS // programs, S // KEYS_PER_SPLIT))
    out_BTNH, lse_BNT = empty((B, T, N, call.H), call.qu_BNTP), empty((B, N, T), call.qu_BNTP, torch.float32)
    part_PBTNH, part_PBNT = out_BTNH[None], lse_BNT[None]
    if splits > 1:
        part_PBTNH = empty((splits, B, T, N, call.H), lse_BNT)
        part_PBNT = empty((splits, B, N, T), lse_BNT)
    strides = (part_PBTNH.stride(0), part_PBTNH.stride(1), part_PBTNH.stride(3), part_PBTNH.stride(2))
    kernels.forward[(programs * splits,)](
        *call.tensors(), part_PBTNH, part_PBNT, call.seed, *call.numbers(), *strides, splits,
        **call.constants("forward"),
    )  # fmt: skip
    if splits > 1:
        D = columns(call.H)
        rows = 1024 // D
        kernels.join[(_tiles(T, rows) * B * N,)](
            part_PBTNH, part_PBNT, out_BTNH, lse_BNT, B, N, T, splits, ROWS=rows, H=call.H, D=D
        )
    return out_BTNH.transpose(1, 2), lse_BNT


def incoming(call: Call, dout_BNTH: Tensor, out_BNTH: Tensor, lse_BNT: Tensor) -> Incoming:
    """What depends on the output and its gradient alone."""
    from txl.ops.rel_attention import triton_kernels as kernels

    B, N, T, H = out_BNTH.shape
    dout_BNTP, delta_BNT = _aligned(dout_BNTH), empty((B, N, T), lse_BNT)
    rows = 4096 // columns(H)
    kernels.deltas[(_tiles(T, rows) * B * N,)](
        out_BNTH, dout_BNTP, delta_BNT, N, T, *out_BNTH.stride()[:3], *dout_BNTP.stride()[:3],
        ROWS=rows, H=H, D=columns(H),
    )  # fmt: skip
    return Incoming(dout_BNTP, lse_BNT, delta_BNT)


def backward_queries(call: Call, grad: Incoming) -> tuple[Tensor, Tensor]:
    """(dq_BNTH, its sum over batch and queries (N, H) in float32, which is du + dw)."""
    from txl.ops.rel_attention import triton_kernels as kernels

    B, N, T, *_ = call.numbers()
    tiles = _tiles(T, call.tile("queries").side)
    dq_BNTH = empty((B, T, N, call.H), call.qu_BNTP).transpose(1, 2)
    sum_PNH = empty((B * tiles, N, call.H), grad.lse_BNT)
    kernels.backward_queries[(tiles * B * N,)](
        *call.tensors(), *grad, dq_BNTH, sum_PNH, call.seed, call.scale, *call.numbers(),
        *grad.dout_BNTP.stride()[:3], *dq_BNTH.stride()[:3], **call.constants("queries"),
    )  # fmt: skip
    return dq_BNTH, sum_PNH.sum(0)


def backward_keys(call: Call, grad: Incoming) -> tuple[Tensor, Tensor, Tensor]:
    """(dk_BNSH, dv_BNSH, du_NH), the last in float32."""
    from txl.ops.rel_attention import triton_kernels as kernels

    B, N, _, S, *_ = call.numbers()
    tiles = _tiles(S, call.tile("keys").side)
    dk_BNSH, dv_BNSH = (empty((B, S, N, call.H), call.qu_BNTP).transpose(1, 2) for _ in range(2))
    du_PNH = empty((B * tiles, N, call.H), grad.lse_BNT)
    kernels.backward_keys[(tiles * B * N,)](
        *call.tensors(), *grad, dk_BNSH, dv_BNSH, du_PNH, call.seed, call.scale, *call.numbers(),
        *grad.dout_BNTP.stride()[:3], *dk_BNSH.stride()[:3], **call.constants("keys"),
    )  # fmt: skip
    return dk_BNSH, dv_BNSH, du_PNH.sum(0)


def backward_places(call: Call, grad: Incoming) -> Tensor:
    """dr_SNH in float32. Where heads and distances are too few to fill a GPU, the batch is split."""
    from txl.ops.rel_attention import triton_kernels as kernels

    B, N, T, S, *_ = call.numbers()
    side = call.tile("places").side
    programs = _tiles(S + (1 - T) % side, side) * N
    splits = min(B, _tiles(4 * PROGRAMS, programs))
    dr_PSNH = empty((splits, S, N, call.H), grad.lse_BNT)
    kernels.backward_places[(programs * splits,)](
        *call.tensors(), *grad, dr_PSNH, call.seed, *call.numbers(), *grad.dout_BNTP.stride()[:3], splits,
        **call.constants("places"),
    )  # fmt: skip
    return dr_PSNH.sum(0)


def empty(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory that a kernel is about to fill."""
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def columns(head: int) -> int:
    """The power of two that a tile's rows are as long as."""
    return max(16, 1 << (head - 1).bit_length())


def padded_head(head: int, dtype: torch.dtype) -> int:
    """The head size whose rows can be read 16 bytes at a time."""
    return head if head * dtype.itemsize % 16 == 0 else -(-head // 16) * 16


def _queries(q_BNTH: Tensor, u_NH: Tensor, w_NH: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """factor * (q + u) and factor * (q + w), heads padded."""
    from txl.ops.rel_attention import triton_kernels as kernels

    B, N, T, H = q_BNTH.shape
    if q_BNTH.stride(3) != 1:
        q_BNTH = q_BNTH.contiguous()
    HP, D = padded_head(H, q_BNTH.dtype), columns(H)
    qu_BNTP, qw_BNTP = empty((B, N, T, HP), q_BNTH), empty((B, N, T, HP), q_BNTH)
    rows = 4096 // D
    kernels.queries[(_tiles(T, rows) * B * N,)](
        q_BNTH, u_NH.contiguous(), w_NH.contiguous(), qu_BNTP, qw_BNTP, factor, N, T, *q_BNTH.stride()[:3],
        ROWS=rows, H=H, HP=HP, D=D,
    )  # fmt: skip
    return qu_BNTP, qw_BNTP


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


def _tiles(length: int, side: int) -> int:
    return -(-length // side)
