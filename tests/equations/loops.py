"""Attention as the plainest loop over (query i, key j), and small encodings to hold against it."""

from collections.abc import Callable

import torch
from torch import Tensor

from txl import ModelConfig, Span
from txl.model.attention import Attention
from txl.positions import PositionEncoding, build_position_encodings

N, H, D = 2, 4, 6
SIZES = [(0, 1), (0, 5), (1, 1), (3, 4), (7, 2), (5, 5)]
"""Remembered tokens and new ones."""


def attention_with(position: str, **settings: object) -> tuple[Attention, PositionEncoding]:
    """One attention module in float64, every weight drawn anew from N(0, 1)."""
    sizes = {"n_token": 5, "n_layer": 1, "n_head": N, "d_head": H, "d_model": D, "d_inner": 4}
    config = ModelConfig(**sizes | {"position": position} | settings)
    pos = build_position_encodings(config)[0]
    attention = Attention(config, pos).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_()
    return attention, pos


def by_loop(
    attention: Attention,
    x_SD: Tensor,
    M: int,
    *,
    logit: Callable[[int, Tensor, Tensor, int, int], Tensor],
    place: Callable[[int], Tensor] | None = None,
    value: Callable[[int, int, int], Tensor] | None = None,
    window: int = -1,
) -> Tensor:
    """What tokens M ... S-1 gather, (T, D), one softmax at a time.

    Args:
        logit: of head n, query and key (H,), and their positions i and j.
        place: what is added at a position to what queries and keys are projected from, (D,).
        value: what is added to the value of key j that head n of query i gathers, (H,).
    """
    n_head = attention.n_head
    W_q, W_k, W_v = (
        net.weight.unflatten(0, (n_head, -1)) for net in (attention.q_net, attention.k_net, attention.v_net)
    )
    placed = [x_D + place(p) if place else x_D for p, x_D in enumerate(x_SD)]
    rows = []
    for i in range(M, len(x_SD)):
        seen = [j for j in range(i + 1) if window < 0 or i - j < window]
        heads = []
        for n in range(n_head):
            weights = torch.stack([logit(n, W_q[n] @ placed[i], W_k[n] @ placed[j], i, j) for j in seen]).softmax(0)
            values = [W_v[n] @ x_SD[j] + (value(n, i, j) if value else 0) for j in seen]
            heads.append(sum(w * v for w, v in zip(weights, values, strict=True)))
        rows.append(attention.o_net(torch.cat(heads)))
    return torch.stack(rows)


def attended(attention: Attention, x_SD: Tensor, span: Span) -> Tensor:
    """The same as the product computes it."""
    feats = attention.pos.prepare(span, like=x_SD)
    return attention(x_SD[None, span.n_mem :], x_SD[None, : span.n_mem], feats, span)[0]


def tokens(M: int, T: int) -> Tensor:
    """Hidden states of remembered and new tokens, (S, D)."""
    return torch.randn(M + T, D).double()


def assert_same(ours: Tensor, formula: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(ours, formula, rtol=0, atol=atol)
