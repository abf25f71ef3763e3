"""T5's buckets of distances."""

import functools
from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txl.config import ModelConfig, option, require
from txl.model.span import Span
from txl.positions.base import DistanceSettings, PositionEncoding, rows_to_pairs


class T5(PositionEncoding):
    """A learned number per head and bucket of distances, added to the logits.

        logit_ts  = H^(-1/2) q_t.k_s + b_bucket(t-s)
        bucket(d) = d                                  for d < E = n_bucket / 2, else
                    min(E + floor((n_bucket - E) ln(d / E) / ln(max_distance / E)), n_bucket - 1)

    Source: Raffel et al. 2020 (arXiv 1910.10683), sec. 2.1, with the buckets of its code for one
    direction.
    Differs from the paper: q.k is scaled by H^(-1/2), which T5 leaves to the initial weights.
    Shared by all layers: the table b, unless `untie_r`.
    Works with: softmax.
    Cost: N T S additions per layer.
    Beyond the trained length: distances from `max_distance` (128) on share the last bucket.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(DistanceSettings):
        n_bucket: int = option(32, "buckets of distances", minimum=1, maximum=1024)

    shared = ("b_RN",)
    by_distance = True

    starts_R: Tensor

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        settings = config.settings(self.Settings)
        max_distance = settings.max_distance or 128
        n_bucket = settings.n_bucket
        require(n_bucket >= 2, f"--n_bucket {n_bucket}: --position t5 needs at least 2")
        require(
            max_distance > n_bucket // 2,
            f"--max_distance {max_distance}: must be above half of --n_bucket {n_bucket}, up to"
            " which every distance has its own bucket",
        )
        self.b_RN = nn.Parameter(torch.randn(n_bucket, config.n_head) * 0.02)
        self.register_buffer(
            "starts_R", torch.tensor(bucket_starts(n_bucket, max_distance)), persistent=False
        )

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """The bucket of each distance, (S,)."""
        return torch.bucketize(span.distances_S(like.device), self.starts_R, right=True) - 1

    def project(self, feats: Tensor) -> Tensor:
        """The number of each distance, (S, N)."""
        return self.b_RN[feats]

    def score(self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span) -> Tensor:
        return rows_to_pairs(feats, span.n_new)


@functools.cache
def bucket_starts(n_bucket: int, max_distance: int) -> list[int]:
    """The smallest distance of each bucket.

    In integers, because rounded logarithms put some distances into the wrong bucket:
    (n - E) ln(d / E) / ln(m / E) >= i  is  d^(n - E) E^i >= m^i E^(n - E).
    """
    exact = n_bucket // 2
    n_log = n_bucket - exact
    starts = list(range(exact))
    distance = exact
    for i in range(n_log):
        bound = max_distance**i * exact**n_log
        within = range(distance, max_distance)
        distance += bisect_left(within, bound, key=lambda d, i=i: d**n_log * exact**i)
        starts.append(distance)
    return starts
