"""Relative positions on keys and values."""

import torch
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.model.span import Span
from txl.positions.base import DistanceSettings, PositionEncoding, rel_shift, rel_unshift


class Shaw(PositionEncoding):
    """A learned vector per distance, clipped, added to keys and another one added to values.

        logit_ts = H^(-1/2) q_t.(k_s + aK_min(t-s, k))
        out_t    = sum_s prob_ts (v_s + aV_min(t-s, k))

    Source: Shaw et al. 2018 (arXiv 1803.02155), eq. 3 and 4, sec. 3.2 for clipping at k =
    `max_distance` (16).
    Heads share the vectors (sec. 3.3), as in the paper's big model; in its base model each head has
    its own (sec. 4.1). Attention is causal, so k + 1 of the 2k + 1 vectors remain.
    Shared by all layers: nothing.
    Works with: softmax.
    Cost: two more products T x S per head.
    Beyond the trained length: distances from k on are not distinguished, as in training.
    """

    Settings = DistanceSettings
    by_distance = True

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        n_row = (config.settings(self.Settings).max_distance or 16) + 1
        self.key_RH = nn.Parameter(torch.randn(n_row, config.d_head) * 0.02)
        self.value_RH = nn.Parameter(torch.randn(n_row, config.d_head) * 0.02)

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """The row of each distance, (S,)."""
        return span.distances_S(like.device).clamp(max=len(self.key_RH) - 1)

    def project(self, feats: Tensor) -> Tensor:
        """aK and aV side by side, (S, 2 H)."""
        return torch.cat([self.key_RH[feats], self.value_RH[feats]], dim=-1)

    def score(self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span) -> Tensor:
        key_SH, _ = feats.chunk(2, dim=-1)
        return rel_shift((self.scale * q_BNTH) @ key_SH.T)

    def value(self, prob_BNTS: Tensor, feats: Tensor, span: Span) -> Tensor:
        _, value_SH = feats.chunk(2, dim=-1)
        return rel_unshift(prob_BNTS) @ value_SH
