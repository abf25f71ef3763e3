"""Relative attention with the biases u and v: one definition, several ways to compute it."""

from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec

import torch
from torch import Tensor

from txl.ops.rel_attention.blockwise import blockwise
from txl.ops.rel_attention.dense import dense
from txl.ops.rel_attention.naive import naive


def _fused(*args: Tensor, **options: float) -> Tensor:
    from txl.ops.rel_attention.fused import fused  # registers an operator: not before somebody asks for it

    return fused(*args, **options)


IMPLEMENTATIONS: dict[str, Callable[..., Tensor]] = {
    "naive": naive,
    "dense": dense,
    "blockwise": blockwise,
    "fused": _fused,
}

_LARGEST_FUSED_HEAD = 128
_LONG = 8192  # keys from which on tiles are faster than rows on a CPU, where no gradient is asked for


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
    clamp_len: int = -1,
    impl: str = "auto",
) -> Tensor:
    """softmax_s(scale * [(q_t + u).k_s + (q_t + w).r_(t-s)]) v_s over the keys that query t may see, (B, N, T, H).

    The last query stands at the last key: the distance from query t to key s is S - T + t - s. A query sees distances
    from 0 up to `window`, exclusive (-1: all there are).

    Source: Dai et al. 2019, sec. 3.3, terms a to d; w is the paper's v, renamed beside the values.

    Args:
        r_SNH: a row per distance, farthest first: row S - 1 - d belongs to distance d.
        scale: of the logits; H^(-1/2) in the paper.
        dropout: share of the probabilities that are zeroed, the others divided by 1 - dropout.
        clamp_len: a promise that rows of larger distances equal that of this one (-1: none), which saves the dense
            path their products.
        impl: a name in IMPLEMENTATIONS; auto: the fastest one for these shapes.
    """
    device = q_BNTH.device.type
    narrows = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if narrows:
        dtype = torch.get_autocast_dtype(device)
        q_BNTH, k_BNSH, v_BNSH, r_SNH = (x.to(dtype) for x in (q_BNTH, k_BNSH, v_BNSH, r_SNH))
    needs_grad = torch.is_grad_enabled() and q_BNTH.requires_grad
    shape = {"d_head": q_BNTH.shape[3], "n_key": k_BNSH.shape[2]}
    impl = resolved(impl, q_BNTH.device, q_BNTH.dtype, **shape, needs_grad=needs_grad)
    promise = {"clamp_len": clamp_len} if impl == "dense" else {}
    with torch.autocast(device, enabled=False) if narrows else nullcontext():
        return IMPLEMENTATIONS[impl](
            q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, scale=scale, window=window, dropout=dropout, **promise
        )


def refusal(impl: str, device: torch.device, *, d_head: int) -> str | None:
    """Why an implementation does not work, and what to do; None: it does."""
    if impl != "fused":
        return None
    if device.type != "cuda":
        return "needs a GPU; leave the flag out, or give dense or blockwise"
    if find_spec("triton") is None:
        return "needs Triton, which is not installed; pip install triton"
    if d_head > _LARGEST_FUSED_HEAD:
        return f"takes heads of up to {_LARGEST_FUSED_HEAD}, not {d_head}; give dense or blockwise"
    return None


def resolved(impl: str, device: torch.device, dtype: torch.dtype, *, d_head: int, n_key: int, needs_grad: bool) -> str:
    """The implementation of this name; for `auto` the fastest one for these shapes.

    On a GPU in half precision the fused one, where the hardware multiplies matrices of 16-bit numbers. In float32 it
    would not, and the fused path has twice as many products, in small tiles; that dense is the faster one there is an
    estimate, not timed on a GPU. Without gradients tiles beat rows from some length on.
    """
    if impl != "auto":
        return impl
    is_half = dtype in (torch.bfloat16, torch.float16)
    if is_half and refusal("fused", device, d_head=d_head) is None:
        return "fused"
    return "blockwise" if not needs_grad and n_key >= _LONG else "dense"
