"""DeBERTa's disentangled attention."""

import torch
from einops import rearrange
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.model.span import Span
from txl.positions.base import DistanceSettings, PositionEncoding, rel_shift


class Deberta(PositionEncoding):
    """Content to content, content to position, and position to content.

    logit_ts = (3 H)^(-1/2) [ q_t.k_s + q_t.Kr_delta(t,s) + k_s.Qr_delta(s,t) ] Kr = P W_kr, Qr = P
    W_qr, P a learned table with 2k rows of size D; delta(i,j) = min(max(i - j + k, 0), 2k - 1)

    Source: He et al. 2021 (arXiv 2006.03654), eq. 2 to 4, with k = `max_distance` (512, as there).
    Differs from the paper: causal, and without the absolute positions of sec. 3.2.
    Shared by all layers: P, unless `untie_r`. Per layer: W_kr and W_qr.
    Works with: softmax.
    Cost: one more product T x S and one S x k per head, and a gather T x S.
    Beyond the trained length: distances from k on are not distinguished (in the second term from k
    - 1 on).
    """

    shared = ("p_RD",)
    Settings = DistanceSettings

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.scale = (3 * config.d_head) ** -0.5
        self.n_head = config.n_head
        self.k = config.settings(self.Settings).max_distance or 512
        inner = config.n_head * config.d_head
        self.p_RD = nn.Parameter(torch.randn(2 * self.k, config.d_model) * 0.02)
        self.kr_net = nn.Linear(config.d_model, inner, bias=False)
        self.qr_net = nn.Linear(config.d_model, inner, bias=False)

    def project(self, feats: Tensor) -> Tensor:
        """Kr for distances 0 ... k-1, then Qr for distances 0 ... k, (2 k + 1, N, H)."""
        p_RD = self.drop(self.p_RD)
        kr = self.kr_net(p_RD[self.k :])
        qr = self.qr_net(p_RD[: self.k + 1].flip(0))
        return rearrange(torch.cat([kr, qr]), "r (n h) -> r n h", n=self.n_head)

    def score(self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span) -> Tensor:
        kr_RNH, qr_RNH = feats.split([self.k, self.k + 1])
        kr_SNH = kr_RNH[span.distances_S(q_BNTH.device).clamp(max=self.k - 1)]
        to_position_BNTS = rel_shift((self.scale * q_BNTH) @ rearrange(kr_SNH, "s n h -> n h s"))
        by_row_BNSR = (self.scale * k_BNSH) @ rearrange(qr_RNH, "r n h -> n h r")
        distance_TS = span.distances_TS(q_BNTH.device)
        row_ST = distance_TS.clamp(0, self.k).T.expand(*k_BNSH.shape[:3], span.n_new)
        near_BNTS = by_row_BNSR.gather(-1, row_ST).mT
        # the row that far queries share is broadcast, not gathered, so its gradient is summed in a
        # fixed order
        far_BN1S = by_row_BNSR[..., None, :, self.k]
        return to_position_BNTS + torch.where(distance_TS < self.k, near_BNTS, far_BN1S)
