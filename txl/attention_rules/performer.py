"""Attention with positive random features: linear time."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txl.attention_rules.causal_ratio import causal_ratio
from txl.attention_rules.refusals import require_no_dropatt, require_scoreless
from txl.config import FEW, ModelConfig, PartSettings, option
from txl.model.span import Span
from txl.ops.numbers import at_least_float32
from txl.positions import PositionEncoding


class PerformerAttention(nn.Module):
    """Softmax attention with an unbiased, factorised estimate of the exponential (FAVOR+).

    out_t = sum_(s<=t) w_ts v_s / sum_(s<=t) w_ts,   w_ts = phi(x_t) . phi(y_s),   x = sqrt(scale)
    q,  y = sqrt(scale) k phi(x) = F^(-1/2) exp(-|x|^2 / 2) [exp(omega_1 . x) ... exp(omega_F . x)],
    omega_i ~ N(0, 1)

    E[w_ts] = exp(scale * q_t . k_s).
    Source: Choromanski et al. 2021, lemma 1, sec. 2.3 and
    appendix B.1. The omega_i are orthogonal in groups of H (sec. 2.4), shared by all heads, and
    saved with the weights; only `redraw` changes them. Remembered keys are the start of the prefix.
    With `same_length`, sums run over a window instead of the prefix, and time grows with the
    window.

    Rotary positions are relative in expectation only: the estimate for a pair of tokens depends on
    its position in [memory, segment].

    Differs from google-research/performer: no constant is added to the features, which keeps the
    estimate unbiased. Exponents are relative to about the largest that a query sees, so keys of any
    norm work.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(PartSettings):
        n_feature: int = option(256, "random features per layer", **FEW)

    shared_qk = False
    impl = "auto"
    keep_mib = 0
    omega_FH: Tensor

    def __init__(self, config: ModelConfig, *, dropatt: float = 0.0) -> None:
        super().__init__()
        require_scoreless(config)
        require_no_dropatt(config, dropatt)
        n_feature = config.settings(self.Settings).n_feature
        self.register_buffer("omega_FH", orthogonal_normal(n_feature, config.d_head))

    def redraw(self, generator: torch.Generator) -> None:
        """Redraw the features; the result depends on the generator, not on the device."""
        self.omega_FH.copy_(orthogonal_normal(*self.omega_FH.shape, generator=generator))

    @classmethod
    def of_model(cls, config: ModelConfig, *, dropatt: float = 0.0) -> "PerformerAttention":
        """See `AttentionRule.of_model`."""
        return cls(config, dropatt=dropatt)

    @classmethod
    def n_product(cls, config: ModelConfig) -> int:
        """See `AttentionRule.n_product`."""
        return 2 * config.settings(cls.Settings).n_feature

    def forward(
        self,
        q_BNTH: Tensor,
        k_BNSH: Tensor,
        v_BNSH: Tensor,
        *,
        pos: PositionEncoding,
        feats: Tensor,
        span: Span,
    ) -> Tensor:
        # half precision is too coarse for exponents
        with torch.autocast(q_BNTH.device.type, enabled=False):
            dtype = at_least_float32(v_BNSH.dtype)
            omega_FH = self.omega_FH.to(dtype)
            root = pos.scale**0.5
            x_BNTH = root * q_BNTH.to(dtype)
            y_BNSH = root * k_BNSH.to(dtype)
            logx_BNTF = x_BNTH @ omega_FH.mT  # the other factors of phi(x) cancel
            logy_BNSF = y_BNSH @ omega_FH.mT - y_BNSH.square().sum(-1, keepdim=True) / 2
            return causal_ratio(logx_BNTF, logy_BNSF, v_BNSH.to(dtype), span).to(v_BNSH.dtype)


def orthogonal_normal(
    n_row: int, n_column: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """Rows distributed as N(0, I), orthogonal in groups of `n_column`; (n_row, n_column).

    Choromanski et al. 2021, sec. 2.4: directions from a QR decomposition, lengths of independent
    normal vectors.
    """
    groups = []
    for first in range(0, n_row, n_column):
        square = torch.randn(n_column, n_column, generator=generator)
        q, r = torch.linalg.qr(square)
        # with this sign q is uniform over rotations
        groups.append((q * r.diagonal().sign()).mT[: n_row - first])
    length_F1 = torch.randn(n_row, n_column, generator=generator).norm(dim=1, keepdim=True)
    return torch.cat(groups) * length_F1
