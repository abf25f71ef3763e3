"""The paper's relative position encoding."""

from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.model.span import Span
from txl.ops.sinusoids import Sinusoids
from txl.positions.base import PositionEncoding, RelativeTerms
from txl.positions.together import terms_of_layers


class RelSinusoid(PositionEncoding):
    """Relative sinusoids with two learned biases.

        logit_ts = H^(-1/2) [ (q_t + u).k_s + (q_t + v).W_r R_(t-s) ]   R_d: sinusoid of distance d

    Source: Dai et al. 2019, sec. 3.3 (terms a to d); appendix B for `txl.ops.rel_attention`.
    u is `r_w_bias` of kimiyoung/transformer-xl, v is `r_r_bias`, W_r is `r_net`.
    Shared by all layers: u, v, unless `untie_r`; per layer: W_r. One dropout mask of R for all.
    Works with: softmax.
    Cost: one more product T x S per head, fused with the softmax.
    Beyond the trained length: works, `clamp_len` keeps distances to those met in training.
    """

    shared = ("u_NH", "v_NH")
    by_distance = True

    has_sinusoids = True

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.u_NH = nn.Parameter(torch.randn(config.n_head, config.d_head) * 0.02)
        self.v_NH = nn.Parameter(torch.randn(config.n_head, config.d_head) * 0.02)
        self.r_net = nn.Linear(config.d_model, config.n_head * config.d_head, bias=False)
        self.sinusoids = Sinusoids(config.d_model)

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        return self.drop(self.sinusoids(span.n_key, like, clamp_len=span.clamp_len))

    def project(self, feats: Any) -> Any:
        """W_r R, (S, N, H), of features (S, D); what `project_for_all` has made stays as it is."""
        if isinstance(feats, RelativeTerms):
            return feats
        return rearrange(self.r_net(feats), "s (n h) -> s n h", n=len(self.u_NH))

    def relative(self, feats: Any) -> RelativeTerms:
        if isinstance(feats, RelativeTerms):
            return feats
        return RelativeTerms(feats, self.u_NH, self.v_NH)

    def project_for_all(
        self, encodings: Sequence[Any], feats: Tensor
    ) -> Sequence[RelativeTerms] | None:
        """See `PositionEncoding`."""
        return terms_of_layers(encodings, feats)
