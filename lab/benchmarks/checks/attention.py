"""Fused attention against its definition."""

import torch
from torch import Tensor

from lab.benchmarks.checks.errors import Errors, error, poisoned
from txl.config import KEEP_MIB
from txl.ops.rel_attention.naive import naive

Case = tuple[int, int, int, int, int, int]
"""B, N, H, T, S, window."""
SHAPES = {  # B, N, H, T, M
    "wt103-base": (60, 10, 41, 150, 150),
    "nvidia-base": (32, 8, 64, 192, 192),
    "wt103-large": (16, 16, 64, 384, 384),
    "long": (4, 16, 64, 2048, 2048),
    "memory": (1, 16, 64, 128, 16384),
}
ODD = [  # B, N, H, T, S, window
    (3, 2, 41, 150, 301, -1),
    (2, 3, 64, 193, 457, 192),
    (2, 1, 8, 67, 67, -1),
    (1, 2, 128, 131, 389, 257),
    (2, 2, 48, 1, 1001, 700),
    (2, 2, 32, 300, 331, 1),
    (1, 1, 64, 37, 4111, -1),
]
DROPPED = [  # the last one's keys are shared by several programs
    (2, 3, 64, 193, 457, -1),
    (2, 2, 41, 70, 133, 59),
    (1, 1, 64, 37, 4111, -1),
]
NAMES = ("out", "dq", "dk", "dv", "dr", "du", "dw")
FLOAT64_UP_TO = 2**27  # numbers of the largest tensor of the definition
DROPOUT = 0.25


def inputs(
    B: int, N: int, H: int, T: int, S: int, dtype: torch.dtype, device: str = "cuda"
) -> list[Tensor]:
    """q, k, v, r, u, w; the first three in the memory order (B, L, N, H) that a projection leaves them in."""

    def heads(L: int) -> Tensor:
        return torch.randn(B, L, N, H, device=device).to(dtype).transpose(1, 2).requires_grad_()

    shared = [torch.randn(S, N, H, device=device).to(dtype), *torch.randn(2, N, H, device=device)]
    return [heads(T), heads(S), heads(S), *(x.requires_grad_() for x in shared)]


def usual_norm(out_BNTH: Tensor, n_key: int, window: int) -> float:
    """What the output's norm and each gradient's is about, of inputs from N(0, 1) where a query sees so many keys.

    All are sums over queries and keys of about out.numel() * keys terms, of size 1 / keys each, whose signs are mixed.
    Where terms cancel, as those of every gradient but dv do if a query sees one key, the exact result is 0 and what is
    found is the rounding of the terms: it is to be small beside them.
    """
    n_seen = min(window, n_key) if window > 0 else n_key
    return (out_BNTH.numel() / n_seen) ** 0.5


def fused_errors(
    case: Case, dtype: torch.dtype, device: str = "cuda", *, keep_mib: int = KEEP_MIB
) -> Errors:
    """Of the output and the six gradients; the definition in float64, or in float32 where that takes too much."""
    from txl.ops.rel_attention.fused import fused

    B, N, H, T, S, window = case
    args = inputs(B, N, H, T, S, dtype, device)
    dout_BNTH = torch.randn(B, N, T, H, device=device).to(dtype)
    with poisoned():
        out = fused(*args, scale=H**-0.5, window=window, keep_mib=keep_mib)
        found = [out, *torch.autograd.grad(out, args, dout_BNTH)]
    exact = [x.detach().to(_wide(T * S * N * H)).requires_grad_() for x in args]
    out = naive(*exact, scale=H**-0.5, window=window)
    expected = [out, *torch.autograd.grad(out, exact, dout_BNTH.to(out.dtype))]
    return _by_name(found, expected, usual_norm(out, S, window))


def dropout_errors(
    case: Case, dtype: torch.dtype, device: str = "cuda", *, keep_mib: int = KEEP_MIB
) -> Errors:
    """The same with dropout: the mask is read off the operator itself, then applied to the definition.

    Raises:
        ArithmeticError: if the share that is kept is not that asked for.
    """
    from txl.ops.rel_attention.fused import fused

    B, N, H, T, S, window = case
    args = inputs(B, N, H, T, S, dtype, device)
    dout_BNTH = torch.randn(B, N, T, H, device=device).to(dtype)
    options = {"scale": H**-0.5, "window": window}

    def dropped(v_BNSH: Tensor) -> Tensor:
        torch.manual_seed(3)
        return fused(*args[:2], v_BNSH, *args[3:], **options, dropout=DROPOUT, keep_mib=keep_mib)

    # values that are rows of the identity give the probabilities, H keys at a time
    with torch.no_grad(), poisoned():
        parts = [
            dropped(rows_SH.to(dtype).expand(B, N, S, H)) for rows_SH in _identity(S, H, device)
        ]
        keep_BNTS = torch.cat(parts, dim=-1)[..., :S] != 0
    with poisoned():
        out = dropped(args[2])
        found = [out, *torch.autograd.grad(out, args, dout_BNTH)]

    exact = [x.detach().to(_wide(T * S * N * H)).requires_grad_() for x in args]
    eye_BNSS = torch.eye(S, device=device, dtype=exact[0].dtype).expand(B, N, S, S)
    prob_BNTS = naive(*exact[:2], eye_BNSS, *exact[3:], **options)
    _require_share(keep_BNTS[prob_BNTS > 1e-4])  # smaller ones may be 0 in half precision
    out = (prob_BNTS * keep_BNTS / (1 - DROPOUT)) @ exact[2]
    expected = [out, *torch.autograd.grad(out, exact, dout_BNTH.to(out.dtype))]
    return _by_name(found, expected, usual_norm(out, S, window))


def _by_name(found: list[Tensor], expected: list[Tensor], floor: float) -> Errors:
    return {
        name: error(x, y, floor=floor) for name, x, y in zip(NAMES, found, expected, strict=True)
    }


def _wide(n_largest: int) -> torch.dtype:
    return torch.float64 if n_largest <= FLOAT64_UP_TO else torch.float32


def _identity(S: int, H: int, device: str) -> list[Tensor]:
    """The columns of the identity, H at a time, (S, H) each, the last filled up with zeros."""
    n_part = -(-S // H)
    return list(torch.eye(S, n_part * H, device=device).split(H, dim=1))


def _require_share(keep: Tensor) -> None:
    share = float(keep.double().mean())
    if abs(share - (1 - DROPOUT)) > 5 * (DROPOUT * (1 - DROPOUT) / keep.numel()) ** 0.5:
        raise ArithmeticError(
            f"dropout {DROPOUT} keeps {share:.4f} of {keep.numel()} probabilities"
        )
