"""Softmax attention in which several heads of queries read one head of keys and values."""

from typing import Any

import torch
from torch import Tensor

from txl.attention_rules.softmax import SoftmaxAttention, mask_of, softmax_path
from txl.config import ModelConfig
from txl.model.span import Span


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
        self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, *, pos: Any, feats: Tensor, span: Span
    ) -> Tensor:
        """See `SoftmaxAttention.forward`, with keys and values (B, K, S, H)."""
        if softmax_path(pos) != "scaled_dot_product_attention":
            k_BNSH = k_BKSH.repeat_interleave(self.n_group, dim=1)
            v_BNSH = v_BKSH.repeat_interleave(self.n_group, dim=1)
            return super().forward(q_BNTH, k_BNSH, v_BNSH, pos=pos, feats=feats, span=span)
        q_BKLH = q_BNTH.unflatten(1, (-1, self.n_group)).flatten(2, 3)
        out_BKLH = self.by_product(q_BKLH, k_BKSH, v_BKSH, pos.scale, self._mask(q_BNTH, span))
        return out_BKLH.reshape(q_BNTH.shape)

    def _mask(self, q_BNTH: Tensor, span: Span) -> Tensor | None:
        """That of each of the G T queries of a head; None: all see everything."""
        sees_all = span.n_new == 1 and not 0 < span.window < span.n_key
        if sees_all and span.since_BT is None and span.log_weight_BTS is None:
            return None
        mask = mask_of(span, q_BNTH)
        return torch.cat([mask] * self.n_group, dim=-2)
