"""The attention rule of the paper."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import KEEP_MIB, ModelConfig
from txl.memory import Span
from txl.ops.dropout import Dropout
from txl.ops.rel_attention import rel_attention, takes_factors, with_far_rows
from txl.positions import PositionEncoding
from txl.positions.base import rel_shift


class SoftmaxAttention(nn.Module):
    """out_t = sum_s softmax_s(scale * q_t.k_s + score_ts + log w_ts) v_s, over the keys visible to t under `span`.

    w is 1 unless a memory says otherwise, see `Span.log_weight_BTS`.

    Source: Vaswani et al. 2017, eq. 1, with the position encoding's terms. Dropout is applied to the probabilities,
    without renormalisation, as in the original.

    Attributes:
        impl: implementation of relative attention, see `txl.ops.rel_attention`. Encodings without scores use PyTorch's
            `scaled_dot_product_attention`, all others the equation above.
        keep_mib: see `txl.ops.rel_attention`.
    """

    shared_qk = False
    impl = "auto"
    keep_mib = KEEP_MIB
    settings = ()

    def __init__(self, config: ModelConfig, *, dropatt: float = 0.0) -> None:
        super().__init__()
        self.drop = Dropout(dropatt)

    def path(self, pos: PositionEncoding) -> str:
        """See `AttentionRule.path`."""
        if pos.is_relative():
            return "relative"
        return "plain" if pos.needs_scores() else "scaled_dot_product_attention"

    def forward(
        self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, *, pos: PositionEncoding, feats: Tensor, span: Span
    ) -> Tensor:
        dropout = self.drop.p if self.training else 0.0
        path, log_weight_BTS = self.path(pos), span.log_weight_BTS
        n_key, needs_grad = k_BNSH.shape[2], torch.is_grad_enabled()
        factors_too = log_weight_BTS is None or takes_factors(q_BNTH.device, n_key=n_key, needs_grad=needs_grad)
        if path == "relative" and factors_too:
            return rel_attention(
                q_BNTH,
                k_BNSH,
                v_BNSH,
                *pos.relative(feats),
                scale=pos.scale,
                window=span.window,
                first_BT=span.first_BT,
                log_weight_BTS=log_weight_BTS,
                dropout=dropout,
                clamp_len=-1 if self.training else span.clamp_len,  # with dropout, clamped distances differ
                impl=self.impl,
                keep_mib=self.keep_mib,
            )
        if path == "scaled_dot_product_attention":
            mask = None if span.is_triangle else span.mask(q_BNTH.device)
            if log_weight_BTS is not None:
                hidden = ~span.mask(q_BNTH.device)
                mask = log_weight_BTS[:, None].masked_fill(hidden, -torch.inf).to(q_BNTH.dtype)
            return F.scaled_dot_product_attention(
                q_BNTH, k_BNSH, v_BNSH, mask, dropout, is_causal=span.is_triangle, scale=pos.scale
            )
        logit_BNTS = logits(q_BNTH, k_BNSH, pos, feats, span)
        if log_weight_BTS is not None:
            logit_BNTS = logit_BNTS + log_weight_BTS[:, None]
        logit_BNTS = logit_BNTS.masked_fill(~span.mask(q_BNTH.device), -torch.inf)
        prob_BNTS = self.drop(logit_BNTS.softmax(-1)).to(v_BNSH.dtype)  # an encoding's term may have a wider dtype
        out_BNTH = prob_BNTS @ v_BNSH
        if (term := pos.value(prob_BNTS, feats, span)) is not None:
            out_BNTH = out_BNTH + term
        return out_BNTH


def logits(q_BNTH: Tensor, k_BNSH: Tensor, pos: PositionEncoding, feats: Tensor, span: Span) -> Tensor:
    """The logits of all pairs, (B, N, T, S), by the encoding's definition; those of hidden pairs are arbitrary."""
    if pos.is_relative():
        r_RNH, u_NH, w_NH = pos.relative(feats)
        r_SNH = with_far_rows(r_RNH, k_BNSH.shape[2])
        logit_BNTS = (pos.scale * (q_BNTH + u_NH[:, None])) @ k_BNSH.mT
        return logit_BNTS + rel_shift((pos.scale * (q_BNTH + w_NH[:, None])) @ r_SNH.permute(1, 2, 0))
    logit_BNTS = (pos.scale * q_BNTH) @ k_BNSH.mT
    term = pos.score(q_BNTH, k_BNSH, feats, span)
    return logit_BNTS if term is None else logit_BNTS + term
