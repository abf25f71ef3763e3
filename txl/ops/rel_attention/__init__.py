"""Relative attention with the biases u and v: one definition, several ways to compute it."""

from collections.abc import Callable

from torch import Tensor

from txl.ops.rel_attention.naive import naive


def _fused(*args: Tensor, **options: float) -> Tensor:
    from txl.ops.rel_attention.fused import fused  # registers an operator: not before somebody asks for it

    return fused(*args, **options)


IMPLEMENTATIONS: dict[str, Callable[..., Tensor]] = {"naive": naive, "fused": _fused}


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
    impl: str = "auto",
) -> Tensor:
    """softmax_s(scale * [(q_t + u).k_s + (q_t + w).r_(t-s)]) v_s over the keys that query t may see, (B, N, T, H).

    Query t stands S - T tokens behind key t, so its distance to key s is S - T + t - s; it sees distances from 0 up to
    `window`, exclusive (-1: all there are).

    Source: Dai et al. 2019, sec. 3.3, terms a to d; w is the paper's v, renamed beside the values.

    Args:
        r_SNH: a row per distance, farthest first: row S - 1 - d belongs to distance d.
        scale: of the logits; H^(-1/2) in the paper.
        dropout: share of the probabilities that are zeroed, the others divided by 1 - dropout.
        impl: a name in IMPLEMENTATIONS; auto: the fastest one for these shapes.
    """
    return IMPLEMENTATIONS["naive" if impl == "auto" else impl](
        q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, scale=scale, window=window, dropout=dropout
    )
