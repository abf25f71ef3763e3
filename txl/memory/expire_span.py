"""The memory of Expire-Span: each state says by itself how long it stays."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import Context, ModelConfig
from txl.memory.base import BESIDE, MemoryRule, State
from txl.memory.span import Span

_FIRST_SHARE = 0.1
"""Of max_span: the span of every state in a new model."""


class ExpireSpan(MemoryRule):
    """The hidden states whose learned span has not ended, up to the mem_len last of them.

    e_i = L sigmoid(w.h_i + b)                                     L = max_span
    m_ti = max(0, min(1, 1 + (e_i - (t - i)) / R))                 R = span_ramp, t - i tokens passed since
    a'_ti = m_ti a_ti / sum_j m_tj a_tj                            a the probabilities of all heads of the layer
    loss = alpha / T sum_i e_i                                     alpha = span_loss, over the T tokens of the segment

    Source: Sukhbaatar et al. 2021 (arXiv 2105.06548), sec. 4. Remembered states are detached, w and b take the gradient
    of every m_ti between 0 and 1. A state is dropped after the segment in which its m reaches 0, for good.
    Rows: each keeps states of its own. The tensors are as long as the row that keeps most; in the others zeros with age
    0 stand first, which nobody attends to. So a batch takes as much as its longest row.
    Differs from the paper: the survivors stand at consecutive positions before the segment, for any encoding of
    distances, where the authors place the last block only; b begins so that spans are a tenth of L (as in their code),
    and activations are not divided before the sigmoid; the loss counts all tokens of the segment (their code: those on
    the ramp); no memory is cut at random in training.
    Documents: a state is hidden in another document, by the tokens passed since, and stays until its span ends.
    """

    settings = ("max_span", "span_ramp", "span_loss")
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = BESIDE | {"attention": ("softmax",), "attn_impl": ("auto",)}
    is_bounded = False
    reads_weights = True
    keeps_places = False
    weighs_keys = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.limit, self.ramp, self.alpha = config.max_span, config.span_ramp, config.span_loss
        self.w_D, self.b = nn.Parameter(torch.empty(config.d_model)), nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.w_D)
        nn.init.constant_(self.b, math.log(_FIRST_SHARE / (1 - _FIRST_SHARE)))

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        none_B0D = like.new_empty(batch_size, 0, config.d_model)
        return State(none_B0D, {"age": none_B0D[..., 0].long()})

    def spans(self, h_BSD: Tensor) -> Tensor:
        """e, (B, S)."""
        return self.limit * ((h_BSD * self.w_D).sum(-1) + self.b).sigmoid()

    def through(
        self,
        layer: Any,
        h_BTD: Tensor,
        state: State,
        feats: Tensor,
        span: Span,
        context: Context,
        run: Callable[..., Any],
    ) -> tuple[Tensor, State]:
        """As in other rules, over what this layer keeps: each has survivors of its own."""
        age_BM = state.more["age"]
        n_mem = int((age_BM > 0).sum(1).max()) if age_BM.numel() else 0  # what joined rows were filled with falls away
        begin = state.length - n_mem
        state = State(state.hidden_BMD[:, begin:], {"age": age_BM[:, begin:]})
        own = replace(span, n_mem=n_mem, since_BT=self._since(state.more["age"], span.since_BT))
        feats = layer.attn.pos.prepare(own, like=layer.read(h_BTD))
        return super().through(layer, h_BTD, state, feats, own, context, run)

    def _since(self, age_BM: Tensor, since_BT: Tensor | None) -> Tensor | None:
        """Of the tokens of a document before each query those that are there."""
        if since_BT is None:
            return None
        t_T = torch.arange(since_BT.shape[1], device=since_BT.device)
        remembered_BTM = (age_BM > 0)[:, None] & (age_BM[:, None] <= (since_BT - t_T)[..., None])
        return torch.minimum(since_BT, t_T) + remembered_BTM.sum(-1)

    def weighed(self, span: Span, new_BTD: Tensor, mem_BMD: Tensor, more: Mapping[str, Tensor]) -> Span:
        age_BM, n_new = more["age"], new_BTD.shape[1]
        t_T = torch.arange(n_new, device=age_BM.device)
        age_BS = torch.cat([age_BM, (-t_T).expand(len(age_BM), -1)], dim=1)
        span_BS = torch.cat([self.spans(mem_BMD), self.spans(new_BTD)], dim=1)
        m_BTS = (1 + (span_BS[:, None] - (age_BS[:, None] + t_T[:, None])) / self.ramp).clamp(max=1)
        hidden_BTS = (m_BTS <= 0) | F.pad(age_BM == 0, (0, n_new))[:, None]
        return replace(span, log_weight_BTS=m_BTS.masked_fill(hidden_BTS, 1).log().masked_fill(hidden_BTS, -torch.inf))

    def kept(self, state: State, new_BTD: Tensor, span: Span, context: Context, layer: Any) -> State:
        n_new, age_BM = max(0, new_BTD.shape[1] - context.ext_len), state.more["age"]
        loss = self.alpha * self.spans(new_BTD).mean() if self.training and torch.is_grad_enabled() else None
        hidden_BSD = torch.cat([state.hidden_BMD, new_BTD.detach()[:, :n_new]], dim=1)
        new_age_BT = torch.arange(n_new, 0, -1, device=age_BM.device).expand(len(age_BM), -1)
        age_BS = torch.cat([torch.where(age_BM > 0, age_BM + n_new, 0), new_age_BT], dim=1)
        stays_BS = (age_BS > 0) & (age_BS < self.spans(hidden_BSD).detach() + self.ramp)
        n = min(context.mem_len, int(stays_BS.sum(1).max())) if stays_BS.numel() else 0
        at_BM = stays_BS.sort(dim=1, stable=True).indices[:, stays_BS.shape[1] - n :]
        age_BM = (age_BS * stays_BS).gather(1, at_BM)
        return State(hidden_BSD.take_along_dim(at_BM[..., None], dim=1), {"age": age_BM}, loss)
