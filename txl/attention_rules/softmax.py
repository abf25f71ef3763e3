"""Softmax attention with the terms of any position encoding, and with factors of a memory."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.config import ModelConfig
from txl.model.attention import RelativeSoftmax
from txl.model.span import Span
from txl.ops.heads import folded, folded_mask, per_query_head
from txl.ops.rel_attention import takes_factors, with_far_rows
from txl.positions import PositionEncoding
from txl.positions.base import rel_shift
from txl.registry import MEMORIES, POSITIONS


class SoftmaxAttention(RelativeSoftmax):
    """out_t = sum_s softmax_s(scale * q_t.k_s + score_ts + log w_ts) v_s, over the keys visible to
    t under `span`.

    w is 1 unless a memory says otherwise, see `Span.log_weight_BTS`.

    Source: Vaswani et al. 2017, eq. 1, with the position encoding's terms. Dropout is applied to
    the probabilities, without renormalisation, as in the original. Encodings without scores use
    PyTorch's `scaled_dot_product_attention`, those of relative terms `txl.ops.rel_attention`, all
    others the equation above.
    """

    is_softmax = True
    masks_documents = True

    @classmethod
    def of_model(cls, config: ModelConfig, *, dropatt: float = 0.0) -> RelativeSoftmax:
        """See `AttentionRule.of_model`: the paper's where that is all that a model needs."""
        if config.n_key_head < config.n_head:
            return GroupedSoftmaxAttention(config, dropatt=dropatt)
        weighs_keys = MEMORIES[config.memory].traits.weighs_keys
        if POSITIONS[config.position].is_relative() and not weighs_keys:
            return RelativeSoftmax(config, dropatt=dropatt)
        return cls(config, dropatt=dropatt)

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
        path = softmax_path(pos)
        log_weight_BTS = span.log_weight_BTS
        n_key = k_BNSH.shape[2]
        needs_grad = torch.is_grad_enabled()
        factors_too = log_weight_BTS is None or takes_factors(
            q_BNTH.device, n_key=n_key, needs_grad=needs_grad
        )
        if path == "relative" and factors_too:
            return super().forward(q_BNTH, k_BNSH, v_BNSH, pos=pos, feats=feats, span=span)
        if path == "scaled_dot_product_attention":
            mask = None
            is_triangle = is_plain_triangle(span)
            if not is_triangle:
                mask = mask_of(span, q_BNTH)
            return self.by_product(q_BNTH, k_BNSH, v_BNSH, pos.scale, mask, is_triangle=is_triangle)
        return self._by_definition(q_BNTH, k_BNSH, v_BNSH, pos, feats, span)

    def by_product(
        self,
        q_BNTH: Tensor,
        k_BNSH: Tensor,
        v_BNSH: Tensor,
        scale: float,
        mask: Tensor | None,
        *,
        is_triangle: bool = False,
    ) -> Tensor:
        """Attention of an encoding that has no terms of its own, by PyTorch's operator."""
        dropout = 0.0
        if self.training:
            dropout = self.drop.p
        if mask is not None and mask.requires_grad and not q_BNTH.requires_grad:
            # on a GPU the operator keeps what that takes only if q, k or v wants a gradient too
            q_BNTH = q_BNTH.detach().requires_grad_()
        return F.scaled_dot_product_attention(
            q_BNTH, k_BNSH, v_BNSH, mask, dropout, is_causal=is_triangle, scale=scale
        )

    def _by_definition(
        self,
        q_BNTH: Tensor,
        k_BNSH: Tensor,
        v_BNSH: Tensor,
        pos: PositionEncoding,
        feats: Tensor,
        span: Span,
    ) -> Tensor:
        log_weight_BTS = span.log_weight_BTS
        logit_BNTS = logits(q_BNTH, k_BNSH, pos, feats, span)
        if log_weight_BTS is not None:
            logit_BNTS = logit_BNTS + log_weight_BTS[:, None]
        logit_BNTS = logit_BNTS.masked_fill(~span.mask(q_BNTH.device), -torch.inf)
        # an encoding's term may have a wider dtype
        prob_BNTS = self.drop(logit_BNTS.softmax(-1)).to(v_BNSH.dtype)
        out_BNTH = prob_BNTS @ v_BNSH
        if (term := pos.value(prob_BNTS, feats, span)) is not None:
            out_BNTH = out_BNTH + term
        return out_BNTH


class GroupedSoftmaxAttention(SoftmaxAttention):
    """Head n of the queries reads head n // G of K keys and values, G = N / K.

    Source: Ainslie et al. 2023 (arXiv 2305.13245), sec. 2.2.
    Where positions are in queries and keys, the queries that share keys are read as further ones
    of one head, and nothing is copied. Terms of an encoding differ by head: there each head gets
    a copy of its keys.
    """

    def __init__(self, config: ModelConfig, *, dropatt: float = 0.0) -> None:
        super().__init__(config, dropatt=dropatt)
        self.n_group = config.n_head // config.n_key_head

    def forward(
        self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, *, pos: Any, feats: Tensor, span: Span
    ) -> Tensor:
        """See `SoftmaxAttention.forward`, with keys and values (B, K, S, H)."""
        if softmax_path(pos) != "scaled_dot_product_attention":
            k_BNSH, v_BNSH = per_query_head(q_BNTH.shape[1], k_BNSH, v_BNSH)
            return super().forward(q_BNTH, k_BNSH, v_BNSH, pos=pos, feats=feats, span=span)
        q_BKLH = folded(q_BNTH, k_BNSH.shape[1])
        out_BKLH = self.by_product(q_BKLH, k_BNSH, v_BNSH, pos.scale, self._mask(q_BNTH, span))
        return out_BKLH.reshape(q_BNTH.shape)

    def _mask(self, q_BNTH: Tensor, span: Span) -> Tensor | None:
        """That of each of the G T queries of a head; None: all see everything."""
        sees_all = span.n_new == 1 and not 0 < span.window < span.n_key
        if sees_all and span.since_BT is None and span.log_weight_BTS is None:
            return None
        return folded_mask(mask_of(span, q_BNTH), self.n_group)


def mask_of(span: Span, like: Tensor) -> Tensor:
    """What is added to logits in the dtype of `like`, where keys have factors; else where a query
    may attend. (T, S), or (B, 1, T, S).
    """
    mask = span.mask(like.device)
    if span.log_weight_BTS is None:
        return mask
    return span.log_weight_BTS[:, None].masked_fill(~mask, -torch.inf).to(like.dtype)


def is_plain_triangle(span: Any) -> bool:
    """True if the mask is a causal triangle and no more: nothing remembered, no window that hides a
    key, no borders of documents, no factors.
    """
    is_plain = span.since_BT is None and span.log_weight_BTS is None
    return span.n_mem == 0 and not 0 < span.window < span.n_key and is_plain


def softmax_path(pos: PositionEncoding) -> str:
    """The computation that serves an encoding."""
    if pos.is_relative():
        return "relative"
    if pos.needs_scores():
        return "plain"
    return "scaled_dot_product_attention"


def logits(
    q_BNTH: Tensor, k_BNSH: Tensor, pos: PositionEncoding, feats: Tensor, span: Span
) -> Tensor:
    """The logits of all pairs, (B, N, T, S), by the encoding's definition; those of hidden pairs
    are arbitrary.
    """
    if pos.is_relative():
        r_RNH, u_NH, w_NH = pos.relative(feats)
        r_SNH = with_far_rows(r_RNH, k_BNSH.shape[2])
        logit_BNTS = (pos.scale * (q_BNTH + u_NH[:, None])) @ k_BNSH.mT
        return logit_BNTS + rel_shift(
            (pos.scale * (q_BNTH + w_NH[:, None])) @ r_SNH.permute(1, 2, 0)
        )
    logit_BNTS = (pos.scale * q_BNTH) @ k_BNSH.mT
    term = pos.score(q_BNTH, k_BNSH, feats, span)
    if term is None:
        return logit_BNTS
    return logit_BNTS + term
