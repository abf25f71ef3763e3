"""Launching the Triton kernels of `fused`: tiles, alignment of operands, grids.

Tensors must be on a GPU, or anywhere if TRITON_INTERPRET=1 was set before Triton was first
imported.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Tile(NamedTuple):
    """Launch parameters of a kernel: side of its square tile, warps per
    program, pipeline stages.
    """

    side: int
    warps: int
    stages: int


KERNELS = ("forward", "queries", "keys", "places", "kept_keys", "kept_queries", "kept_places")
"""Those that have tiles; `kept_keys` is `backward_keys` where it stores the
gradient of the logits.
"""


def _default_tile(kernel: str, columns: int, size: int) -> Tile:
    """The largest tile without significant register spills on sm_90, according to `python -m
    lab.benchmarks.aot`.
    """
    if size == 2 and kernel == "forward":
        return Tile(64, 8 if columns == 128 else 4, 2)
    if size == 2:
        return Tile(32 if columns == 128 else 64, 8, 2)
    if columns == 128:
        side = 16
    else:
        side = 32
    return Tile(side, 8, 1 if kernel in ("forward", "queries") else 2)


TILES: dict[tuple[str, int, int], Tile] = {
    (kernel, columns, size): _default_tile(kernel, columns, size)
    for kernel in KERNELS
    for columns in (16, 32, 64, 128)
    for size in (2, 4)
}
"""By kernel, padded head size and bytes per element."""

PROGRAMS = 264  # two for each multiprocessor of an H200
KEYS_PER_SPLIT = 64
"""The fewest keys of a program: at 64 new and 640 remembered tokens, batch 1, there are 110
programs instead of 10.
"""


class Call(NamedTuple):
    """Arguments of all kernels of one call. qu and qw as in triton_kernels.py; H is the head size
    without padding.
    """

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
        """The first arguments of every kernel."""
        return self.qu_BNTP, self.qw_BNTP, self.k_BNSP, self.v_BNSP, self.r_NSP

    def numbers(self) -> tuple[Any, ...]:
        """(B, N, T, S, window, dropout, strides of k, v and r)."""
        B, N, T, _ = self.qu_BNTP.shape
        S = self.k_BNSP.shape[2]
        strides = *self.k_BNSP.stride()[:3], *self.v_BNSP.stride()[:3], *self.r_NSP.stride()[:2]
        return B, N, T, S, self.window if self.window > 0 else S, self.dropout, *strides

    def tile(self, kernel: str) -> Tile:
        """The kernel's launch parameters."""
        return TILES[kernel, columns(self.H), self.qu_BNTP.element_size()]

    def constants(self, kernel: str) -> dict[str, Any]:
        """The kernel's compile-time constants."""
        dtype = self.qu_BNTP.dtype
        tile = self.tile(kernel)
        tf32 = (
            dtype == torch.float32
            and self.qu_BNTP.is_cuda
            and torch.backends.cuda.matmul.allow_tf32
        )
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
    """Additional arguments of the backward kernels: the output's gradient, and per query lse and
    out . dout.
    """

    dout_BNTP: Tensor
    lse_BNT: Tensor
    delta_BNT: Tensor


def forward(call: Call) -> tuple[Tensor, Tensor]:
    """(out_BNTH, lse_BNT).

    With too few queries to fill a GPU, several programs share a query's keys.
    """
    kernels = _attention_kernels()
    B, N, T, S, *_ = call.numbers()
    programs = n_tiles(T, call.tile("forward").side) * B * N
    splits = max(1, min(PROGRAMS // programs, S // KEYS_PER_SPLIT))
    out_BTNH = empty((B, T, N, call.H), call.qu_BNTP)
    lse_BNT = empty((B, N, T), call.qu_BNTP, torch.float32)
    part_PBTNH = out_BTNH[None]
    part_PBNT = lse_BNT[None]
    if splits > 1:
        part_PBTNH = empty((splits, B, T, N, call.H), lse_BNT)
        part_PBNT = empty((splits, B, N, T), lse_BNT)
    strides = (
        part_PBTNH.stride(0),
        part_PBTNH.stride(1),
        part_PBTNH.stride(3),
        part_PBTNH.stride(2),
    )
    kernels.forward[(programs * splits,)](
        *call.tensors(), part_PBTNH, part_PBNT, call.seed, *call.numbers(), *strides, splits,
        **call.constants("forward"),
    )  # fmt: skip
    if splits > 1:
        D = columns(call.H)
        rows = 1024 // D
        kernels.join[(n_tiles(T, rows) * B * N,)](
            part_PBTNH, part_PBNT, out_BTNH, lse_BNT, B, N, T, splits, ROWS=rows, H=call.H, D=D
        )
    return out_BTNH.transpose(1, 2), lse_BNT


def incoming(call: Call, dout_BNTH: Tensor, out_BNTH: Tensor, lse_BNT: Tensor) -> Incoming:
    """The arguments of the backward kernels that depend on the output and its gradient."""
    kernels = _row_kernels()
    B, N, T, H = out_BNTH.shape
    dout_BNTP = aligned(dout_BNTH)
    delta_BNT = empty((B, N, T), lse_BNT)
    rows = 4096 // columns(H)
    kernels.deltas[(n_tiles(T, rows) * B * N,)](
        out_BNTH, dout_BNTP, delta_BNT, N, T, *out_BNTH.stride()[:3], *dout_BNTP.stride()[:3],
        ROWS=rows, H=H, D=columns(H),
    )  # fmt: skip
    return Incoming(dout_BNTP, lse_BNT, delta_BNT)


def backward_queries(call: Call, grad: Incoming) -> tuple[Tensor, Tensor]:
    """dq_BNTH, and parts of its sum over batch and queries in float32, (P, N, H), which is du + dw."""
    kernels = _attention_kernels()
    B, N, T, *_ = call.numbers()
    tiles = n_tiles(T, call.tile("queries").side)
    dq_BNTH = empty((B, T, N, call.H), call.qu_BNTP).transpose(1, 2)
    sum_PNH = empty((B * tiles, N, call.H), grad.lse_BNT)
    kernels.backward_queries[(tiles * B * N,)](
        *call.tensors(), *grad, dq_BNTH, sum_PNH, call.seed, call.scale, *call.numbers(),
        *grad.dout_BNTP.stride()[:3], *dq_BNTH.stride()[:3], **call.constants("queries"),
    )  # fmt: skip
    return dq_BNTH, sum_PNH


def backward_keys(call: Call, grad: Incoming) -> "KeyGradients":
    """Those of keys and values, and parts of du."""
    found = key_gradients(call, grad, "keys")
    launch_keys(call, grad, found, "keys")
    return found


class KeyGradients(NamedTuple):
    """What `backward_keys` fills: gradients of keys and values beside each other, and parts of du in
    float32.
    """

    dkv_BS2NH: Tensor
    du_PNH: Tensor


def key_gradients(call: Call, grad: Incoming, kernel: str) -> KeyGradients:
    """Not yet filled."""
    B, N, _, S, *_ = call.numbers()
    tiles = n_tiles(S, call.tile(kernel).side)
    dkv_BS2NH = empty((B, S, 2, N, call.H), call.qu_BNTP)
    return KeyGradients(dkv_BS2NH, empty((B * tiles, N, call.H), grad.lse_BNT))


def launch_keys(
    call: Call,
    grad: Incoming,
    found: KeyGradients,
    kernel: str,
    e_CNTL: Tensor | None = None,
    first: int = 0,
) -> None:
    """Fill the gradients of all sequences; or of those from `first` on that e
    has room for, and e.
    """
    kernels = _attention_kernels()
    B, N, _, S, *_ = call.numbers()
    count, row = (B, 0) if e_CNTL is None else (len(e_CNTL), e_CNTL.shape[3])
    dk_BNSH, dv_BNSH = found.dkv_BS2NH.transpose(1, 3).unbind(2)
    kernels.backward_keys[(n_tiles(S, call.tile(kernel).side) * count * N,)](
        *call.tensors(), *grad, dk_BNSH, dv_BNSH, found.du_PNH, e_CNTL, call.seed, call.scale, first, *call.numbers(),
        *grad.dout_BNTP.stride()[:3], *dk_BNSH.stride()[:3], row, **call.constants(kernel),
    )  # fmt: skip


def backward_places(call: Call, grad: Incoming) -> Tensor:
    """Parts of dr in float32, (P, S, N, H): with too few heads and distances to fill a GPU, the
    batch is split.
    """
    kernels = _attention_kernels()
    B, N, T, S, *_ = call.numbers()
    side = call.tile("places").side
    programs = n_tiles(S + (1 - T) % side, side) * N
    splits = min(B, n_tiles(4 * PROGRAMS, programs))
    dr_PSNH = empty((splits, S, N, call.H), grad.lse_BNT)
    kernels.backward_places[(programs * splits,)](
        *call.tensors(), *grad, dr_PSNH, call.seed, *call.numbers(), *grad.dout_BNTP.stride()[:3], splits,
        **call.constants("places"),
    )  # fmt: skip
    return dr_PSNH


def shared_gradients(
    call: Call, du_PNH: Tensor, sum_PNH: Tensor, dr_PSNH: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of r, u and w, given parts of those of r and u and of u + w. That of r has its
    dtype, the others float32.
    """
    kernels = _row_kernels()
    dr_SNH = empty(dr_PSNH.shape[1:], call.qu_BNTP)
    du_NH, dw_NH = (empty(du_PNH.shape[1:], du_PNH) for _ in range(2))
    rows, cols = 16, 64
    grid = n_tiles(dr_SNH.numel(), rows * cols) + n_tiles(du_NH.numel(), cols)
    kernels.sum_parts[(grid,)](
        du_PNH, sum_PNH, dr_PSNH, du_NH, dw_NH, dr_SNH, len(du_PNH), len(sum_PNH), len(dr_PSNH),
        dr_SNH.numel(), du_NH.numel(), ROWS=rows, COLS=cols,
    )  # fmt: skip
    return dr_SNH, du_NH, dw_NH


def empty(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised tensor, to be filled by a kernel."""
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def columns(head: int) -> int:
    """Row length of a tile: the next power of two."""
    return max(16, 1 << (head - 1).bit_length())


def padded_head(head: int, dtype: torch.dtype) -> int:
    """The head size padded so that rows can be read 16 bytes at a time."""
    if head * dtype.itemsize % 16 == 0:
        return head
    return -(-head // 16) * 16


def biased_queries(
    q_BNTH: Tensor, u_NH: Tensor, w_NH: Tensor, factor: float
) -> tuple[Tensor, Tensor]:
    """factor * (q + u) and factor * (q + w), heads padded."""
    kernels = _row_kernels()
    B, N, T, H = q_BNTH.shape
    if q_BNTH.stride(3) != 1:
        q_BNTH = q_BNTH.contiguous()
    HP = padded_head(H, q_BNTH.dtype)
    D = columns(H)
    qu_BNTP = empty((B, N, T, HP), q_BNTH)
    qw_BNTP = empty((B, N, T, HP), q_BNTH)
    rows = 4096 // D
    kernels.queries[(n_tiles(T, rows) * B * N,)](
        q_BNTH, u_NH.contiguous(), w_NH.contiguous(), qu_BNTP, qw_BNTP, factor, N, T, *q_BNTH.stride()[:3],
        ROWS=rows, H=H, HP=HP, D=D,
    )  # fmt: skip
    return qu_BNTP, qw_BNTP


def aligned(x_BNLH: Tensor) -> Tensor:
    """x with heads zero-padded; a copy unless every row can already be read 16 bytes at a time."""
    kernels = _row_kernels()
    B, N, L, H = x_BNLH.shape
    size = x_BNLH.element_size()
    HP = padded_head(H, x_BNLH.dtype)
    offsets = [stride * size for stride in x_BNLH.stride()[:3]]
    if (
        HP == H
        and x_BNLH.stride(3) == 1
        and not any(offset % 16 for offset in [x_BNLH.data_ptr(), *offsets])
    ):
        return x_BNLH
    if x_BNLH.stride(3) != 1:
        return F.pad(x_BNLH, (0, HP - H)).contiguous()
    out_BNLP = empty((B, N, L, HP), x_BNLH)
    rows = 4096 // columns(H)
    kernels.copy_rows[(n_tiles(L, rows) * B * N,)](
        x_BNLH, out_BNLP, N, L, *x_BNLH.stride()[:3], ROWS=rows, H=H, HP=HP, D=columns(H)
    )
    return out_BNLP


def n_tiles(length: int, side: int) -> int:
    """How many it takes, the last one perhaps in part."""
    return -(-length // side)


def _attention_kernels() -> Any:
    """Imported on first use; untyped, because a type checker does not
    understand kernel launches.
    """
    from txl.ops.rel_attention import triton_kernels

    return triton_kernels


def _row_kernels() -> Any:
    """See `_attention_kernels`."""
    from txl.ops.rel_attention import triton_rows

    return triton_rows
