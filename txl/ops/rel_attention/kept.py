"""The backward pass of `fused` that stores the gradient of the logits once and multiplies it."""

from typing import Any

from torch import Tensor

from txl.ops.rel_attention import launch
from txl.ops.rel_attention.launch import PROGRAMS, Call, Incoming, n_tiles


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v, r, u and w, the last three in float32; so many
    sequences at a time.
    """
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
    du_NH = keys.du_PNH.sum(0)
    return dq_BNTH, keys.dk_BNSH, keys.dv_BNSH, dr_PSNH.sum(0), du_NH, sum_PNH.sum(0) - du_NH


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
    from txl.ops.rel_attention import triton_kept

    return triton_kept
