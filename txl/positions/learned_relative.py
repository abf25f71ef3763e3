"""Learned relative positions, the original's attn_type 1."""

import torch
from einops import rearrange
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.model.span import Span
from txl.positions.base import PositionEncoding, TableSettings, rel_shift, rows_of_table


class LearnedRelative(PositionEncoding):
    """A learned vector and a learned number for every distance, head and layer.

        logit_ts = H^(-1/2) [ (q_t + u).k_s + q_t.r_(t-s) + b_(t-s) ]

    r and b are learned tables with R rows.

    Source: kimiyoung/transformer-xl, attn_type 1, after Shaw et al. 2018 (arXiv 1803.02155), eq. 4.
    r is `r_emb` there, b is `r_bias`, u is `r_w_bias`; its tables hold the farthest distance first,
    ours distance 0. Differs from Shaw et al.: no vectors added to values; biases u and b. Each head
    has its vectors, as in their base model.
    Shared by all layers: nothing. R is `n_position`, the longest span in training.
    Works with: softmax.
    Cost: one more product T x S per head.
    Beyond the trained length: distances from R-1 on share the last row. With `clamp_len`, distances
    from clamp_len - 1 on share one, a distance earlier than in other encodings, as in the original.
    """

    Settings = TableSettings
    by_distance = True

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        n_row = rows_of_table(config)
        shape = (config.n_head, config.d_head)
        self.u_NH = nn.Parameter(torch.randn(shape) * 0.02)
        self.r_RNH = nn.Parameter(torch.randn(n_row, *shape) * 0.02)
        self.b_RN = nn.Parameter(torch.zeros(n_row, config.n_head))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.b_RN)

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """The row of each distance, (S,)."""
        if span.clamp_len > 0:
            n_row = min(len(self.b_RN), span.clamp_len)
        else:
            n_row = len(self.b_RN)
        return span.distances_S(like.device).clamp(max=n_row - 1)

    def project(self, feats: Tensor) -> Tensor:
        """r and b side by side, (S, N, H + 1)."""
        return torch.cat([self.r_RNH[feats], self.b_RN[feats][..., None]], dim=-1)

    def score(self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span) -> Tensor:
        r_NHS, b_N1S = rearrange(feats, "s n h -> n h s").split([feats.shape[-1] - 1, 1], dim=1)
        content_BN1S = (self.scale * self.u_NH)[:, None] @ k_BNSH.mT
        distance_BNTS = (self.scale * q_BNTH) @ r_NHS + self.scale * b_N1S
        return content_BN1S + rel_shift(distance_BNTS)
