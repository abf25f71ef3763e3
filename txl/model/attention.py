"""Multi-head attention over [memory, segment], and the attention rule of the paper."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from txl.config import KEEP_MIB, ModelConfig
from txl.model.projections import build_projections
from txl.model.span import Span
from txl.ops.dropout import Dropout
from txl.ops.linear import Linear
from txl.ops.numbers import as_multiplied, on_gpu
from txl.ops.projections import project_with_memory
from txl.ops.rel_attention import rel_attention, with_memory

Then = Callable[[Tensor, Tensor], Tensor]
"""Changes the result of attention, given the queries before positions, (B, N, T, H) each."""


class RelativeSoftmax(nn.Module):
    """out_t = sum_s softmax_s(scale * [(q_t + u).k_s + (q_t + w).r_(t-s)]) v_s, over visible keys.

    Source: Dai et al. 2019, sec. 3.3; dropout of probabilities, without renormalisation, as in the
    original. Other rules are in `txl.attention_rules`; `impl` and `keep_mib`: see `rel_attention`.
    """

    shared_qk = False
    impl = "auto"
    keep_mib = KEEP_MIB

    def __init__(self, config: ModelConfig, *, dropatt: float = 0.0) -> None:
        super().__init__()
        self.drop = Dropout(dropatt)

    def forward(
        self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, *, pos: Any, feats: Tensor, span: Span
    ) -> Tensor:
        """The result for each query, (B, N, T, H). `feats` are projected, see `pos.project`."""
        dropout = 0.0
        clamp_len = span.clamp_len
        if self.training:  # rows of clamped distances differ by dropout
            dropout = self.drop.p
            clamp_len = -1
        seen = {"window": span.window, "first_BT": span.first_BT, "clamp_len": clamp_len}
        how = {"scale": pos.scale, "impl": self.impl, "keep_mib": self.keep_mib, "dropout": dropout}
        inputs = (q_BNTH, k_BNSH, v_BNSH, *pos.relative(feats))
        return rel_attention(*inputs, log_weight_BTS=span.log_weight_BTS, **seen, **how)


class Attention(nn.Module):
    """Queries of the new tokens attend to keys and values of [memory, segment].

    Queries are projected for new tokens only: the original discards those of the memory.
    """

    def __init__(self, config: ModelConfig, pos: Any, rule: Any) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.d_head = config.d_head
        self.pos = pos
        self.rule = rule
        nets: Any = build_projections(config, shared_qk=rule.shared_qk)
        self.q_net, self.k_net, self.v_net, self.o_net = nets

    def forward(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span, then: Then | None = None
    ) -> Tensor:
        """The output of the new tokens, (B, T, D); `then` changes it before heads are joined."""
        q_BNTH, k_BNSH, v_BNSH = self.project(x_BTD, mem_BMD, feats, span)
        out_BNTH = self.attend(q_BNTH, k_BNSH, v_BNSH, self.pos.project(feats), span)
        if then is not None:
            out_BNTH = then(q_BNTH, out_BNTH)
        return self.joined(out_BNTH)

    def project(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, N, T, H), keys and values (B, N, S, H), without positions."""
        x_BTD = as_multiplied(x_BTD)
        mem_BMD = as_multiplied(mem_BMD).to(x_BTD.dtype)
        nets = (self.q_net, self.k_net, self.v_net)
        is_plain = all(type(net) is Linear for net in nets)
        if on_gpu(x_BTD) and torch.is_grad_enabled() and is_plain:
            operands = [net.operands() for net in nets]
            q_BTE, k_BSE, v_BSE = project_with_memory(x_BTD, mem_BMD, *operands)
            return self.heads(q_BTE), self.heads(k_BSE), self.heads(v_BSE)
        k_BNSH = with_memory(self.heads(self.k_net(mem_BMD)), self.heads(self.k_net(x_BTD)))
        q_BNTH = self.heads(self.q_net(x_BTD))
        v_BNSH = with_memory(self.heads(self.v_net(mem_BMD)), self.heads(self.v_net(x_BTD)))
        return q_BNTH, k_BNSH, v_BNSH

    def attend(self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, feats: Any, span: Span) -> Any:
        """The rule's result, (B, N, T, H), with projected features."""
        return self.rule(q_BNTH, k_BNSH, v_BNSH, pos=self.pos, feats=feats, span=span)

    def keys_and_values(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Those of any tokens, (B, N, L, H) each, without positions."""
        return self.heads(self.k_net(x_BLD)), self.heads(self.v_net(x_BLD))

    def heads(self, x_BLE: Tensor) -> Tensor:
        """(B, L, N H) to (B, N, L, H); of keys and values N is `n_key_head` of the model."""
        return x_BLE.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def joined(self, out_BNTH: Tensor) -> Tensor:
        """The output projection of all heads, (B, T, D)."""
        return self.o_net(out_BNTH.transpose(1, 2).flatten(2))
