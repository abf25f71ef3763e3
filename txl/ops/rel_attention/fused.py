"""The operator in Triton.

Of T x S tensors it stores one at most, in the backward pass: where it fits, the gradient of the
logits, which is computed once and multiplied. README.md here derives it.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from txl.config import KEEP_MIB
from txl.ops.operator import Operator
from txl.ops.rel_attention import launch
from txl.ops.rel_attention.launch import (
    PROGRAMS,
    Call,
    Incoming,
    aligned,
    backward_keys,
    backward_places,
    backward_queries,
    biased_queries,
    forward,
    incoming,
    n_tiles,
    padded_head,
    shared_gradients,
)
from txl.ops.rel_attention.tiles import LARGEST_FUSED_HEAD, Operands


def fused(
    *operands: *Operands,
    scale: float,
    window: int = -1,
    dropout: float = 0.0,
    keep_mib: int = KEEP_MIB,
) -> Tensor:
    """See `txl.ops.rel_attention.rel_attention`. Memory is linear in T and S, but for `keep_mib`.

    q, k, v and r share a dtype (float32, bfloat16 or float16); u and w may have another. Sums are
    in float32. `out.transpose(1, 2).flatten(2)` is a view. With dropout, the seed comes from
    PyTorch's generator of the device.

    Raises:
        ValueError: the dtypes differ or are not supported, the head is larger than 128, there are
            fewer keys than queries, or dropout is not in [0, 1).
    """
    _check(*operands[:4], dropout)
    seed = None
    if dropout > 0:
        seed = torch.randint(2**62, (1,), dtype=torch.int64, device=operands[0].device)
    return operator(*operands, seed, scale, window, dropout, keep_mib)


def _check(q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, r_SNH: Tensor, dropout: float) -> None:
    dtypes = {x.dtype for x in (q_BNTH, k_BNSH, v_BNSH, r_SNH)}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.bfloat16, torch.float16}:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(
            "q, k, v and r must share float32, bfloat16 or float16 for fused attention, not"
            f" {names}"
        )
    if q_BNTH.shape[3] > LARGEST_FUSED_HEAD:
        raise ValueError(
            f"fused attention takes heads of up to {LARGEST_FUSED_HEAD}, not {q_BNTH.shape[3]}"
        )
    if k_BNSH.shape[2] < q_BNTH.shape[2]:
        raise ValueError(
            f"{q_BNTH.shape[2]} queries need as many keys or more, not {k_BNSH.shape[2]}"
        )
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and less than 1, not {dropout}")


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
    keep_mib: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The output and tensors for the backward pass: out, lse, qu, qw and, empty unless heads are
    padded, k, v, r.
    """
    # Triton launches on the current device, whose tensors these need not be
    with torch.cuda.device_of(q_BNTH):
        qu_BNTP, qw_BNTP = biased_queries(q_BNTH, u_NH, w_NH, scale * math.log2(math.e))
        k_BNSP = aligned(k_BNSH)
        v_BNSP = aligned(v_BNSH)
        r_NSP = aligned(r_SNH.transpose(0, 1)[None])[0]
        call = Call(
            qu_BNTP, qw_BNTP, k_BNSP, v_BNSP, r_NSP, seed, q_BNTH.shape[3], scale, window, dropout
        )
        if qu_BNTP.shape[3] == q_BNTH.shape[3]:  # a custom operator must not return its arguments
            k_BNSP, v_BNSP, r_NSP = (q_BNTH.new_empty(0) for _ in range(3))
        return *forward(call), qu_BNTP, qw_BNTP, k_BNSP, v_BNSP, r_NSP


def _fake_forward(
    q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, seed, scale, window, dropout, keep_mib
):
    B, N, T, H = q_BNTH.shape
    S = k_BNSH.shape[2]
    HP = padded_head(H, q_BNTH.dtype)
    out_BNTH = q_BNTH.new_empty(B, T, N, H).transpose(1, 2)
    lse_BNT = q_BNTH.new_empty(B, N, T, dtype=torch.float32)
    if HP != H:
        padded = [(B, N, S, HP), (B, N, S, HP), (N, S, HP)]
    else:
        padded = [(0,)] * 3
    return (
        out_BNTH,
        lse_BNT,
        *(q_BNTH.new_empty(shape) for shape in [(B, N, T, HP), (B, N, T, HP), *padded]),
    )


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
    keep_mib: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, of k and v beside each other, (B, S, 2, N, H), of r, u and w, the last two
    in float32.
    """
    with torch.cuda.device_of(dout_BNTH):
        k_BNSP = aligned(k_BNSP)
        v_BNSP = aligned(v_BNSP)
        r_NSP = aligned(r_NSP[None])[0]
        call = Call(
            qu_BNTP, qw_BNTP, k_BNSP, v_BNSP, r_NSP, seed, out_BNTH.shape[3], scale, window, dropout
        )
        grad = incoming(call, dout_BNTH, out_BNTH, lse_BNT)
        if n_sequence := sequences_that_fit(call, keep_mib):
            return kept_backward(call, grad, n_sequence)
        dkv_BS2NH, du_PNH = backward_keys(call, grad)
        dq_BNTH, sum_PNH = backward_queries(call, grad)
        dr_PSNH = backward_places(call, grad)
        return dq_BNTH, dkv_BS2NH, *shared_gradients(call, du_PNH, sum_PNH, dr_PSNH)


def _fake_backward(
    dout_BNTH,
    out_BNTH,
    lse_BNT,
    qu_BNTP,
    qw_BNTP,
    k_BNSP,
    v_BNSP,
    r_NSP,
    seed,
    scale,
    window,
    dropout,
    keep_mib,
):
    B, N, T, H = out_BNTH.shape
    S = k_BNSP.shape[2]
    return (
        out_BNTH.new_empty(B, T, N, H).transpose(1, 2),
        out_BNTH.new_empty(B, S, 2, N, H),
        out_BNTH.new_empty(S, N, H),
        lse_BNT.new_empty(N, H),
        lse_BNT.new_empty(N, H),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
    _, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, seed, *ctx.numbers = inputs
    out_BNTH, lse_BNT, qu_BNTP, qw_BNTP, *padded = results
    k, v, r = padded if padded[0].numel() else (k_BNSH, v_BNSH, r_SNH.transpose(0, 1))
    ctx.save_for_backward(out_BNTH, lse_BNT, qu_BNTP, qw_BNTP, k, v, r, seed)
    ctx.dtypes = r_SNH.dtype, u_NH.dtype, w_NH.dtype


def _gradients(
    ctx: Any, backward: Callable[..., tuple[Tensor, ...]], dout_BNTH: Tensor
) -> tuple[Tensor, ...]:
    dq, dkv_BS2NH, *shared = backward(dout_BNTH, *ctx.saved_tensors, *ctx.numbers)
    return (
        dq,
        *dkv_BS2NH.transpose(1, 3).unbind(2),
        *(x.to(dtype) for x, dtype in zip(shared, ctx.dtypes, strict=True)),
    )


operator = Operator(
    "rel_attention",
    _forward,
    _backward,
    fake_forward=_fake_forward,
    fake_backward=_fake_backward,
    save=_save,
    gradients=_gradients,
)


def sequences_that_fit(call: Call, mib: int) -> int:
    """How many sequences to compute at a time so that the gradients of their logits fit into so
    many MiB.

    0 if those of one do not. Parts are of the same size where the batch allows it.
    """
    B, N, T, *_ = call.numbers()
    at_most = min(B, mib * 2**20 // (N * T * _row_length(call) * call.qu_BNTP.element_size()))
    if at_most:
        return n_tiles(B, n_tiles(B, at_most))
    return 0


def kept_backward(
    call: Call, grad: Incoming, n_sequence: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What `_backward` returns, so many sequences at a time."""
    B, N, T, S, *_ = call.numbers()
    keys = launch.key_gradients(call, grad, "kept_keys")
    dq_BNTH = launch.empty((B, T, N, call.H), call.qu_BNTP).transpose(1, 2)
    sum_PNH = launch.empty(
        (B * n_tiles(T, call.tile("kept_queries").side), N, call.H), grad.lse_BNT
    )
    e_CNTL = launch.empty((n_sequence, N, T, _row_length(call)), call.qu_BNTP)
    splits = min(n_sequence, n_tiles(4 * PROGRAMS, n_tiles(S, call.tile("kept_places").side) * N))
    dr_PSNH = launch.empty((n_tiles(B, n_sequence) * splits, S, N, call.H), grad.lse_BNT)
    for first, dr in zip(range(0, B, n_sequence), dr_PSNH.split(splits), strict=True):
        part = e_CNTL[: B - first]
        launch.launch_keys(call, grad, keys, "kept_keys", part, first)
        _queries(call, part, first, dq_BNTH, sum_PNH)
        _places(call, part, first, dr)
    shared = shared_gradients(call, keys.du_PNH, sum_PNH, dr_PSNH)
    return dq_BNTH, keys.dkv_BS2NH, *shared


def _row_length(call: Call) -> int:
    """Numbers in a row of e: it begins on 32 bytes and ends with a whole tile, of the kernel that
    reads it as well.
    """
    side = max(call.tile(kernel).side for kernel in ("kept_keys", "kept_queries"))
    return n_tiles(call.k_BNSP.shape[2], side) * side


def _queries(call: Call, e_CNTL: Tensor, first: int, dq_BNTH: Tensor, sum_PNH: Tensor) -> None:
    kernels = _kernels()
    tile = call.tile("kept_queries")
    (C, N, T, L), (_, _, _, S, window, *_) = e_CNTL.shape, call.numbers()
    kernels.kept_queries[(n_tiles(T, tile.side) * C * N,)](
        e_CNTL, call.k_BNSP, call.r_NSP, dq_BNTH, sum_PNH, call.scale, first, N, T, S, window, L,
        *call.k_BNSP.stride()[:3], *call.r_NSP.stride()[:2], *dq_BNTH.stride()[:3], **_constants(call, "kept_queries"),
    )  # fmt: skip


def _places(call: Call, e_CNTL: Tensor, first: int, dr_PSNH: Tensor) -> None:
    kernels = _kernels()
    tile = call.tile("kept_places")
    (C, N, T, L), (_, _, _, S, window, *_) = e_CNTL.shape, call.numbers()
    splits = len(dr_PSNH)
    kernels.kept_places[(n_tiles(S, tile.side) * N * splits,)](
        e_CNTL,
        call.qw_BNTP,
        dr_PSNH,
        first,
        C,
        N,
        T,
        S,
        window,
        L,
        splits,
        **_constants(call, "kept_places"),
    )


def _constants(call: Call, kernel: str) -> dict[str, Any]:
    """Dropout is in e."""
    constants = call.constants(kernel)
    del constants["DROPOUT"]
    return constants


def _kernels() -> Any:
    """See `launch`."""
    from txl.ops.rel_attention import triton_kernels

    return triton_kernels
