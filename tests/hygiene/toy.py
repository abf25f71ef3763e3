"""A position encoding as somebody else would write it: one file."""

import torch
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.memory import Span
from txl.positions.base import PositionEncoding, rows_to_pairs


class Toy(PositionEncoding):
    """logit_ts = H^(-1/2) q_t.k_s - a min(t - s, max_distance), with one learned a for all heads and layers."""

    shared = ("a",)
    settings = ("max_distance",)
    by_distance = True

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.a = nn.Parameter(torch.tensor(0.1))
        self.reach = config.max_distance or 50

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        return span.distances_S(like.device).clamp(max=self.reach)[:, None].to(like.dtype)

    def score(self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span) -> Tensor:
        return -self.a * rows_to_pairs(feats, span.n_new)
