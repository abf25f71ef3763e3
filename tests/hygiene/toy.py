"""A position encoding as somebody else would write it: one file."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txl.config import ModelConfig, PartSettings, option
from txl.memory import Span
from txl.positions.base import PositionEncoding, rows_to_pairs


class Toy(PositionEncoding):
    """logit_ts = H^(-1/2) q_t.k_s - a min(t - s, max_distance), with one learned a for all heads and layers."""

    @dataclass(frozen=True, kw_only=True)
    class Settings(PartSettings):
        max_distance: int | None = option(None, "distances from this one on are all the same")

    shared = ("a",)
    by_distance = True

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.a = nn.Parameter(torch.tensor(0.1))
        self.reach = config.settings(self.Settings).max_distance or 50

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        return span.distances_S(like.device).clamp(max=self.reach)[:, None].to(like.dtype)

    def score(self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span) -> Tensor:
        return -self.a * rows_to_pairs(feats, span.n_new)
