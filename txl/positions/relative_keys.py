"""Relative positions as keys: the dot product of a query with a vector of the distance."""

import torch
from einops import rearrange
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.model.span import Span
from txl.positions.base import (
    PositionEncoding,
    RelativeTerms,
    TableSettings,
    draw_like_sinusoids,
    rows_of_table,
)


class RelativeKeys(PositionEncoding):
    """A learned vector per distance, projected to a key of the distance in each layer.

        logit_ts = H^(-1/2) [ q_t.k_s + q_t.W_r P_min(t-s, R-1) ]

    P is a learned table with R rows of size D.

    The term depends on the query's content: term (b) of Dai et al. 2019, sec. 3.3, with learned
    vectors in place of the sinusoids; `deberta` without its third term.
    Source: Huang et al. 2019, Music Transformer (arXiv 1809.04281), sec. 3.3, eq. 3, for q.E_r as
    the only term, where E is not projected; Dai et al. 2019 for the projection.
    Shared by all layers: P, unless `untie_r`. Per layer: W_r. R is `n_position`, the longest span
    in training.
    Works with: softmax.
    Cost: one more product T x S per head, fused with the softmax.
    Beyond the trained length: distances from R-1 on share the last row.
    """

    shared = ("p_RD",)
    Settings = TableSettings
    by_distance = True

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.n_head = config.n_head
        self.d_head = config.d_head
        self.p_RD = nn.Parameter(torch.empty(rows_of_table(config), config.d_model))
        self.r_net = nn.Linear(config.d_model, config.n_head * config.d_head, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """P has the scale of the sinusoids that it replaces; at the scale of other weights it
        learns late.
        """
        draw_like_sinusoids(self.p_RD)

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """The row of each distance, (S,)."""
        return span.distances_S(like.device).clamp(max=len(self.p_RD) - 1)

    def project(self, feats: Tensor) -> Tensor:
        """W_r P, (S, N, H)."""
        return rearrange(self.r_net(self.drop(self.p_RD[feats])), "s (n h) -> s n h", n=self.n_head)

    def relative(self, feats: Tensor) -> RelativeTerms:
        nothing_NH = feats.new_zeros(self.n_head, self.d_head)
        return RelativeTerms(feats, nothing_NH, nothing_NH)
