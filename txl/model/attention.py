"""Multi-head attention over [memory, segment]. Knows neither which encoding nor which attention rule it joins."""

import torch
from einops import rearrange
from torch import Tensor, nn

from txl.attention_rules import build_attention_rule
from txl.config import ModelConfig
from txl.memory import KeyValue, Span
from txl.ops.few_rows import Linear
from txl.positions import PositionEncoding


class Attention(nn.Module):
    """Queries of the new tokens over keys and values of memory and new tokens, heads joined by an output projection.

    Projections carry no bias. Queries are projected for new tokens only; the original projects them for the memory
    too and throws those away. Keys and values of memory and segment are projected apart and then joined, because the
    memory takes no gradient: joined before, it would get one, 3 % of a training step, to be thrown away.
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

    def forward(self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span) -> Tensor:
        """What the new tokens gather, (B, T, D). `feats` is what `pos.prepare` returned for `span`."""
        q_BNTH, k_BNSH = self.queries_and_keys(x_BTD, mem_BMD, feats, span)
        v_BNSH = self._heads(_joined(self.v_net(mem_BMD), self.v_net(x_BTD)))
        return self._attend(q_BNTH, k_BNSH, v_BNSH, self.pos.project(feats), span)

    def queries_and_keys(self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """Projected queries (B, N, T, H) and keys (B, N, S, H), before `pos.transform_qk`; arguments as `forward`."""
        placed_BTD, placed_BMD = self.pos.qk_input(x_BTD, mem_BMD, feats, span)
        q_BNTH = self._heads(self.q_net(placed_BTD))
        return q_BNTH, self._heads(_joined(self.k_net(placed_BMD), self.k_net(placed_BTD)))

    def over(self, x_BTD: Tensor, source_BSD: Tensor, span: Span) -> Tensor:
        """What tokens gather from another sequence, (B, T, D); for encodings that need nothing prepared.

        `span` says by its mask which source tokens each token sees.
        """
        q_BNTH, k_BNSH = self._heads(self.q_net(x_BTD)), self._heads(self.k_net(source_BSD))
        return self._attend(q_BNTH, k_BNSH, self._heads(self.v_net(source_BSD)), x_BTD.new_empty(0), span)

    def with_key_values(
        self, x_BTD: Tensor, remembered: KeyValue, feats: Tensor, span: Span
    ) -> tuple[Tensor, KeyValue]:
        """The same from remembered keys and values, and the keys and values of [remembered, new].

        `feats` is what `pos.project` returned for `span`.
        """
        q_BNTH = self._heads(self.q_net(x_BTD))
        both = remembered.appended(self._heads(self.k_net(x_BTD)), self._heads(self.v_net(x_BTD)))
        return self._attend(q_BNTH, both.k_BNMH, both.v_BNMH, feats, span), both

    def _attend(self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, feats: Tensor, span: Span) -> Tensor:
        if not self.rule.shared_qk:
            q_BNTH, k_BNSH = self.pos.transform_qk(q_BNTH, k_BNSH, span)
        out_BNTH = self.rule(q_BNTH, k_BNSH, v_BNSH, pos=self.pos, feats=feats, span=span)
        return self.o_net(rearrange(out_BNTH, "b n t h -> b t (n h)"))

    def _heads(self, x_BLE: Tensor) -> Tensor:
        return rearrange(x_BLE, "b l (n h) -> b n l h", n=self.n_head)


def _joined(mem_BME: Tensor, x_BTE: Tensor) -> Tensor:
    return torch.cat([mem_BME, x_BTE], dim=1)
