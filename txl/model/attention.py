"""Multi-head attention over [memory, segment], for any position encoding and attention rule."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from txl.attention_rules import build_attention_rule
from txl.config import ModelConfig
from txl.memory import KeyValue, Span
from txl.ops.linear import Linear
from txl.ops.numbers import product_dtype
from txl.positions import PositionEncoding

Beside = Callable[[Tensor, Tensor], Tensor]
"""Makes, from queries without positions and the result of attention, another result, (B, N, T, H) each."""


class Attention(nn.Module):
    """Queries of the new tokens attend to keys and values of memory and new tokens; an output projection joins heads.

    Projections have no bias. Queries are projected for new tokens only; the original also projects them for the memory
    and discards the result. Memory and segment are projected separately and concatenated afterwards, because the memory
    takes no gradient: concatenated first, it would get one, 3 % of a training step, to be discarded.
    """

    def __init__(self, config: ModelConfig, pos: PositionEncoding, *, dropatt: float = 0.0) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.pos = pos
        self.rule = build_attention_rule(config, dropatt=dropatt)
        inner = config.n_head * config.d_head
        self.q_net = Linear(config.d_model, inner, bias=False)
        self.k_net = self.q_net if self.rule.shared_qk else Linear(config.d_model, inner, bias=False)
        self.v_net = Linear(config.d_model, inner, bias=False)
        self.o_net = Linear(inner, config.d_model, bias=False)

    def forward(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span, beside: Beside | None = None
    ) -> Tensor:
        """The attention output of the new tokens, (B, T, D). `feats` is the result of `pos.prepare` for `span`."""
        x_BTD, mem_BMD = _as_multiplied(x_BTD), _as_multiplied(mem_BMD)
        q_BNTH, k_BNSH = self.queries_and_keys(x_BTD, mem_BMD, feats, span)
        v_BNSH = _joined(self._heads(self.v_net(mem_BMD)), self._heads(self.v_net(x_BTD)))
        return self._attend(q_BNTH, k_BNSH, v_BNSH, self.pos.project(feats), span, beside)

    def queries_and_keys(self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """Projected queries (B, N, T, H) and keys (B, N, S, H), before `pos.transform_qk`; arguments as `forward`."""
        x_BTD, mem_BMD = self.pos.qk_input(x_BTD, mem_BMD, feats, span)
        k_BNSH = _joined(self._heads(self.k_net(mem_BMD)), self._heads(self.k_net(x_BTD)))
        return self._heads(self.q_net(x_BTD)), k_BNSH

    def over(self, x_BTD: Tensor, source_BSD: Tensor, span: Any) -> Tensor:
        """Cross-attention to another sequence, (B, T, D), for encodings without `prepare`.

        Args:
            span: says by `mask`, `is_triangle` and `log_weight_BTS`, like `Span`, which source tokens each token sees.
        """
        q_BNTH, k_BNSH = self._heads(self.q_net(x_BTD)), self._heads(self.k_net(source_BSD))
        return self._attend(q_BNTH, k_BNSH, self._heads(self.v_net(source_BSD)), x_BTD.new_empty(0), span)

    def with_key_values(
        self, x_BTD: Tensor, remembered: KeyValue, feats: Tensor, span: Span
    ) -> tuple[Tensor, KeyValue]:
        """The attention output with remembered keys and values, and the keys and values of [memory, segment].

        `feats` is the result of `pos.project` for `span`.
        """
        x_BTD = _as_multiplied(x_BTD)
        q_BNTH = self._heads(self.q_net(x_BTD))
        both = self.remembered(remembered, x_BTD)
        return self._attend(q_BNTH, both.k_BNMH, both.v_BNMH, feats, span), both

    def remembered(self, before: KeyValue, x_BTD: Tensor) -> KeyValue:
        """The keys and values from before with those of more tokens."""
        return before.appended(*self.keys_and_values(x_BTD))

    def keys_and_values(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Projected keys and values, (B, N, L, H) each, without positions."""
        return self._heads(self.k_net(x_BLD)), self._heads(self.v_net(x_BLD))

    def _attend(
        self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, feats: Tensor, span: Span, beside: Beside | None = None
    ) -> Tensor:
        plain_BNTH = q_BNTH
        if not self.rule.shared_qk:
            q_BNTH, k_BNSH = self.pos.transform_qk(q_BNTH, k_BNSH, span)
        out_BNTH = self.rule(q_BNTH, k_BNSH, v_BNSH, pos=self.pos, feats=feats, span=span)
        if beside is not None:
            out_BNTH = beside(plain_BNTH, out_BNTH)
        return self.o_net(out_BNTH.transpose(1, 2).flatten(2))

    def _heads(self, x_BLE: Tensor) -> Tensor:
        return x_BLE.unflatten(-1, (self.n_head, -1)).transpose(1, 2)


def _as_multiplied(x: Tensor) -> Tensor:
    """Under autocast x in half precision: cast once, not by each projection."""
    return x.to(product_dtype(x))


def _joined(mem_BNMH: Tensor, x_BNTH: Tensor) -> Tensor:
    """[memory, segment], (B, N, S, H). On a CPU stored heads first, as `txl.ops.rel_attention.dense` reads them; on a
    GPU as projected, which takes less time to join and which the fused kernels read as well."""
    if x_BNTH.device.type == "cpu":
        return torch.cat([mem_BNMH.transpose(0, 1), x_BNTH.transpose(0, 1)], dim=2).transpose(0, 1)
    return torch.cat([mem_BNMH.transpose(1, 2), x_BNTH.transpose(1, 2)], dim=1).transpose(1, 2)
