"""Attention by positive random features: linear in the length."""

import torch
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.kernels.refusals import require_no_dropatt, require_scoreless
from txl.memory import Span
from txl.positions import PositionEncoding

BLOCK = 128
"""Queries that are computed together: within a block as a masked product, before it as a sum over the prefix."""


class PerformerKernel(nn.Module):
    """Softmax attention with its exponential replaced by an unbiased estimate that factors (FAVOR+).

    out_t = sum_(s<=t) w_ts v_s / sum_(s<=t) w_ts,   w_ts = phi(x_t) . phi(y_s),   x = sqrt(scale) q,  y = sqrt(scale) k
    phi(x) = F^(-1/2) exp(-|x|^2 / 2) [exp(omega_1 . x) ... exp(omega_F . x)],   omega_i ~ N(0, 1)

    E[w_ts] = exp(scale * q_t . k_s). Source: Choromanski et al. 2021, lemma 1, sec. 2.3 and appendix B.1. The omega_i
    are orthogonal to each other in groups of H (sec. 2.4), the same for all heads, and saved with the weights; they
    change only when `redraw` is called. Remembered keys are the beginning of the prefix. Under `same_length` sums over
    a window take the place of sums over the prefix; time then grows with the window.

    An encoding that turns queries and keys is relative in the mean only: the same pair of tokens read at another place
    in [memory, segment] gets another estimate.

    Differs from google-research/performer: no constant is added to the features, which keeps the estimate unbiased.
    Exponents are taken relative to the largest so far, per feature; only a key that outweighs all keys a query of its
    block sees by more than the range of the numbers (e^43 in float32) can make that query's output 0.
    """

    shared_qk = False
    impl = "auto"
    omega_FH: Tensor

    def __init__(self, config: ModelConfig, *, dropatt: float = 0.0) -> None:
        super().__init__()
        require_scoreless(config)
        require_no_dropatt(config, dropatt)
        self.register_buffer("omega_FH", orthogonal_normal(config.n_feature, config.d_head))

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the features anew, the same from the same generator on every device."""
        self.omega_FH.copy_(orthogonal_normal(*self.omega_FH.shape, generator=generator))

    def forward(
        self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, *, pos: PositionEncoding, feats: Tensor, span: Span
    ) -> Tensor:
        with torch.autocast(q_BNTH.device.type, enabled=False):  # exponents of half precision are no estimate
            dtype = torch.promote_types(v_BNSH.dtype, torch.float32)
            omega_FH, root = self.omega_FH.to(dtype), pos.scale**0.5
            x_BNTH, y_BNSH = root * q_BNTH.to(dtype), root * k_BNSH.to(dtype)
            logx_BNTF = x_BNTH @ omega_FH.mT  # the rest of phi(x) is the same above and below the fraction's bar
            logy_BNSF = y_BNSH @ omega_FH.mT - y_BNSH.square().sum(-1, keepdim=True) / 2
            return causal_ratio(logx_BNTF, logy_BNSF, v_BNSH.to(dtype), span).to(v_BNSH.dtype)


def orthogonal_normal(n_row: int, n_column: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Rows that are each N(0, I), orthogonal to each other in groups of `n_column`; (n_row, n_column).

    Choromanski et al. 2021, sec. 2.4: directions from a QR decomposition, lengths of independent normal vectors.
    """
    groups = []
    for first in range(0, n_row, n_column):
        square = torch.randn(n_column, n_column, generator=generator)
        q, r = torch.linalg.qr(square)
        groups.append((q * r.diagonal().sign()).mT[: n_row - first])  # the sign makes q uniform over all rotations
    length_F1 = torch.randn(n_row, n_column, generator=generator).norm(dim=1, keepdim=True)
    return torch.cat(groups) * length_F1


def causal_ratio(logx_BNTF: Tensor, logy_BNSF: Tensor, v_BNSH: Tensor, span: Span) -> Tensor:
    """sum_s w_ts v_s / sum_s w_ts with w_ts = sum_f exp(logx_tf + logy_sf), (B, N, T, H); s is what `span` lets t see.

    Block by block: memory grows with the length, not with its square.
    """
    v1_BNSH = torch.cat([v_BNSH, torch.ones_like(v_BNSH[..., :1])], dim=-1)  # the last column sums the weights
    prefix = _Prefix.empty(logy_BNSF, v1_BNSH)
    if span.window <= 0:
        prefix = prefix.joined(logy_BNSF[..., : span.n_mem, :], v1_BNSH[..., : span.n_mem, :])
    out = []
    for begin in range(0, span.n_new, BLOCK):
        logx_BNCF = logx_BNTF[..., begin : begin + BLOCK, :]
        n_query = logx_BNCF.shape[-2]
        first = end = span.n_mem + begin
        end += n_query
        if span.window > 0:
            first = max(0, first - span.window + 1)
        logy_BNKF, v1_BNKH = logy_BNSF[..., first:end, :], v1_BNSH[..., first:end, :]
        near = Span(end - first - n_query, n_query, window=span.window)
        out.append(prefix.read(logx_BNCF, logy_BNKF, v1_BNKH, near))
        if span.window <= 0:
            prefix = prefix.joined(logy_BNKF, v1_BNKH)
    sums_BNTH = torch.cat(out, dim=-2)
    weight_BNT1 = sums_BNTH[..., -1:]
    is_lost = weight_BNT1 < torch.finfo(sums_BNTH.dtype).tiny ** 0.5
    return (sums_BNTH[..., :-1] / weight_BNT1.masked_fill(is_lost, 1)).masked_fill(is_lost, 0)


class _Prefix:
    """sum_s exp(logy_sf - peak_f) v_s over the keys so far, (B, N, F, H), and the peaks (B, N, 1, F)."""

    def __init__(self, peak_BN1F: Tensor, sum_BNFH: Tensor) -> None:
        self.peak_BN1F, self.sum_BNFH = peak_BN1F, sum_BNFH

    @classmethod
    def empty(cls, logy_BNSF: Tensor, v_BNSH: Tensor) -> "_Prefix":
        B, N, _, F = logy_BNSF.shape
        lowest = torch.finfo(logy_BNSF.dtype).min
        return cls(logy_BNSF.new_full((B, N, 1, F), lowest), v_BNSH.new_zeros(B, N, F, v_BNSH.shape[-1]))

    def joined(self, logy_BNKF: Tensor, v_BNKH: Tensor) -> "_Prefix":
        """The prefix with more keys."""
        if not logy_BNKF.shape[-2]:
            return self
        peak_BN1F = self._peak_with(logy_BNKF)
        return _Prefix(peak_BN1F, self._below(peak_BN1F) + (logy_BNKF - peak_BN1F).exp().mT @ v_BNKH)

    def read(self, logx_BNCF: Tensor, logy_BNKF: Tensor, v_BNKH: Tensor, near: Span) -> Tensor:
        """Weighted sums over the prefix and those of the keys K that `near` lets the queries see, each row up to a
        factor of its own."""
        peak_BN1F = self._peak_with(logy_BNKF)
        logx_BNCF = logx_BNCF + peak_BN1F
        x_BNCF = (logx_BNCF - logx_BNCF.detach().amax(-1, keepdim=True)).exp()
        w_BNCK = x_BNCF @ (logy_BNKF - peak_BN1F).exp().mT
        w_BNCK = w_BNCK.masked_fill(~near.mask_TS(w_BNCK.device), 0)
        return x_BNCF @ self._below(peak_BN1F) + w_BNCK @ v_BNKH

    def _peak_with(self, logy_BNKF: Tensor) -> Tensor:
        return torch.maximum(self.peak_BN1F, logy_BNKF.detach().amax(-2, keepdim=True))

    def _below(self, peak_BN1F: Tensor) -> Tensor:
        """The sums relative to higher peaks."""
        return self.sum_BNFH * (self.peak_BN1F - peak_BN1F).exp().mT
