"""Relative attention with the biases u and v: one definition, three implementations."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from txl.config import KEEP_MIB
from txl.ops.numbers import HAS_TRITON, is_autocast_on, product_dtype
from txl.ops.rel_attention.dense import LONG, dense
from txl.ops.rel_attention.naive import naive
from txl.ops.rel_attention.tiles import LARGEST_FUSED_HEAD, Operands


def _fused(*operands: *Operands, **options: Any) -> Tensor:
    # on first use: the import registers a custom operator
    from txl.ops.rel_attention.fused import fused

    return fused(*operands, **options)


IMPLEMENTATIONS: dict[str, Callable[..., Tensor]] = {
    "naive": naive,
    "dense": dense,
    "fused": _fused,
}


def rel_attention(
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
    first_BT: Tensor | None = None,
    log_weight_BTS: Tensor | None = None,
    clamp_len: int = -1,
    impl: str = "auto",
    keep_mib: int = KEEP_MIB,
) -> Tensor:
    """softmax_s(scale * [(q_t + u).k_s + (q_t + w).r_(t-s)]) v_s over the keys visible to query t,
    (B, N, T, H).

    The last query is at the position of the last key, so the distance from query t to key s is S -
    T + t - s. A query sees distances 0 <= d < `window` (-1: all d >= 0).

    Source: Dai et al. 2019, sec. 3.3, terms a to d; w is the paper's v, renamed because v are the
    values here.

    Args:
        r_SNH: one row per distance, farthest first: row S - 1 - d for distance d. If there are
            fewer rows, the first is also that of all distances beyond.
        scale: of the logits; H^(-1/2) in the paper.
        first_BT: the first key that each query of each row may see; None: 0.
        log_weight_BTS: logarithms of factors of the probabilities, which then sum to 1 again, where
            `takes_factors` says so; None: all 1.
        dropout: probability of zeroing an attention probability; the others are divided by 1 -
            dropout.
        clamp_len: states that all rows for larger distances equal the row for this one (-1: no such
            promise); the dense implementation then multiplies them once.
        impl: a name in IMPLEMENTATIONS, or "auto" for the fastest one for these shapes.
        keep_mib: in the fused implementation's backward pass, the largest tensor of gradients of
            logits, in MiB. Where those of one sequence fit, they are stored, not computed three
            times.
    """
    r_SNH = with_far_rows(r_SNH, k_BNSH.shape[2])
    is_autocast = is_autocast_on(q_BNTH.device)
    if is_autocast:
        dtype = product_dtype(q_BNTH)
        q_BNTH, k_BNSH, v_BNSH, r_SNH = (x.to(dtype) for x in (q_BNTH, k_BNSH, v_BNSH, r_SNH))
    shape = {"d_head": q_BNTH.shape[3], "by_row": first_BT is not None}
    if log_weight_BTS is not None:
        impl = "dense"
    impl = resolved(impl, q_BNTH.device, q_BNTH.dtype, **shape)
    special: dict[str, Any] = {
        "dense": {"clamp_len": clamp_len},
        "fused": {"keep_mib": keep_mib},
    }.get(impl, {})
    if first_BT is not None:
        special["first_BT"] = first_BT
    if log_weight_BTS is not None:
        special["log_weight_BTS"] = log_weight_BTS
    with torch.autocast(q_BNTH.device.type, enabled=False) if is_autocast else nullcontext():
        return IMPLEMENTATIONS[impl](
            q_BNTH,
            k_BNSH,
            v_BNSH,
            r_SNH,
            u_NH,
            w_NH,
            scale=scale,
            window=window,
            dropout=dropout,
            **special,
        )


def with_far_rows(r_RNH: Tensor, n_key: int) -> Tensor:
    """One row per distance, (S, N, H): what is missing of the farthest is like the first."""
    n_far = n_key - len(r_RNH)
    if n_far:
        return torch.cat([r_RNH[:1].expand(n_far, -1, -1), r_RNH])
    return r_RNH


def takes_factors(device: torch.device, *, n_key: int, needs_grad: bool) -> bool:
    """True if `rel_attention` takes factors of its probabilities: without gradients, where its
    blocks are faster than the definition.
    """
    return device.type == "cpu" and not needs_grad and n_key >= LONG


def refusal(impl: str, device: torch.device, *, d_head: int) -> str | None:
    """Why an implementation cannot run, and what to use instead; None if it can."""
    if impl != "fused":
        return None
    if device.type != "cuda":
        return "needs a GPU; leave the flag out, or use dense"
    if not HAS_TRITON:
        return "needs Triton, which is not installed; pip install triton"
    if d_head > LARGEST_FUSED_HEAD:
        return f"supports heads of up to {LARGEST_FUSED_HEAD}, not {d_head}; use dense"
    return None


def resolved(
    impl: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    d_head: int,
    by_row: bool = False,
) -> str:
    """The implementation of this name; "auto" resolves to one for these shapes.

    The fused kernels have no masks `by_row`.

    On a GPU in half precision: fused, which uses the tensor cores. In float32 it cannot, and has
    twice as many products in small tiles; preferring dense there is an estimate, not a measurement.
    """
    if impl != "auto":
        return impl
    is_half = dtype in (torch.bfloat16, torch.float16)
    if is_half and not by_row and refusal("fused", device, d_head=d_head) is None:
        return "fused"
    return "dense"


def with_memory(mem_BNMH: Tensor, x_BNTH: Tensor) -> Tensor:
    """[memory, segment], (B, N, S, H). On a CPU stored heads first, as `rel_attention.dense` reads
    them; on a GPU as projected, which takes less time to join."""
    if x_BNTH.device.type == "cpu":
        mem_BNMH = mem_BNMH.transpose(0, 1)
        x_BNTH = x_BNTH.transpose(0, 1)
        return torch.cat([mem_BNMH, x_BNTH], dim=2).transpose(0, 1)
    return torch.cat([mem_BNMH.transpose(1, 2), x_BNTH.transpose(1, 2)], dim=1).transpose(1, 2)
