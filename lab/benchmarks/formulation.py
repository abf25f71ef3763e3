"""Relative attention as in kimiyoung/transformer-xl and with FlexAttention, for comparison with ours.

Written from the formulas; `--original FOLDER` of attention.py runs the real class.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad


def time_first(
    q_TBNH: Tensor,
    k_SBNH: Tensor,
    v_SBNH: Tensor,
    r_SNH: Tensor,
    u_NH: Tensor,
    w_NH: Tensor,
    *,
    scale: float,
) -> Tensor:
    """Attended values (T, B, N, H), from scores (T, S, B, N) whose position part is shifted by a column of zeros.

    See `txl.ops.rel_attention.rel_attention` for what is computed; r has a row per distance, farthest first.
    """
    T, S = len(q_TBNH), len(k_SBNH)
    content_TSBN = torch.einsum("tbnh,sbnh->tsbn", q_TBNH + u_NH, k_SBNH)
    place_TSBN = shifted(torch.einsum("tbnh,snh->tsbn", q_TBNH + w_NH, r_SNH))
    logit_TSBN = (content_TSBN + place_TSBN).mul_(scale)
    hidden_TS = torch.ones(T, S, dtype=torch.bool, device=q_TBNH.device).triu(1 + S - T)
    prob_TSBN = logit_TSBN.masked_fill(hidden_TS[:, :, None, None], -torch.inf).softmax(1)
    return torch.einsum("tsbn,sbnh->tbnh", prob_TSBN, v_SBNH)


def shifted(x_TSBN: Tensor) -> Tensor:
    """Row t moved T - 1 - t columns to the left: a column of zeros in front, read again with rows one shorter.

    Source: Dai et al. 2019, appendix B.
    """
    T, S, B, N = x_TSBN.shape
    padded = torch.cat([x_TSBN.new_zeros(T, 1, B, N), x_TSBN], dim=1)
    return padded.view(S + 1, T, B, N)[1:].view(T, S, B, N)


def flex(T: int, S: int, device: torch.device) -> Callable[..., Tensor]:
    """FlexAttention with the same scores, compiled for these lengths.

    A score may be changed there, but holds no product with another row: (q + w) r^T is formed before.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def visible(b: Tensor, n: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return s <= t + (S - T)

    # after eight compilations of one function, for other lengths too, there would be no ninth
    torch.compiler.reset()
    block_mask = create_block_mask(visible, None, None, T, S, device=device.type)
    compiled = torch.compile(flex_attention, dynamic=False)

    def attention(
        q_BNTH: Tensor,
        k_BNSH: Tensor,
        v_BNSH: Tensor,
        r_SNH: Tensor,
        u_NH: Tensor,
        w_NH: Tensor,
        *,
        scale: float,
    ) -> Tensor:
        place_BNTS = scale * torch.einsum("bnth,snh->bnts", q_BNTH + w_NH[:, None], r_SNH)
        # so that hidden scores, which are computed too, find something to read
        place_BNTL = pad(place_BNTS, (0, T))

        def with_place(score: Tensor, b: Tensor, n: Tensor, t: Tensor, s: Tensor) -> Tensor:
            return score + place_BNTL[b, n, t, T - 1 - t + s]

        queries_BNTH = q_BNTH + u_NH[:, None]
        # it refuses a CPU as soon as something could ask for a gradient
        if not torch.is_grad_enabled():
            queries_BNTH, k_BNSH, v_BNSH = queries_BNTH.detach(), k_BNSH.detach(), v_BNSH.detach()
        return compiled(
            queries_BNTH, k_BNSH, v_BNSH, score_mod=with_place, block_mask=block_mask, scale=scale
        )

    return attention
