"""Memories that read what has left the window beside attention, driven without a model: rows, heads and sizes are few,
so that loops over all of them are the formula."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from txl import Context
from txl.config import ModelConfig
from txl.memory import MEMORIES, MemoryRule, Span, State

B, N, T, H, D = 2, 2, 3, 3, 4
M = 2
"""mem_len."""
Rows = list[list[Tensor]]
"""Of each row the vectors of tokens."""


@dataclass
class Projections:
    """Of a layer what a memory asks for."""

    k_NHD: Tensor
    v_NHD: Tensor

    def normed(self, x_BLD: Tensor) -> Tensor:
        """Not as any layer has it: another than x."""
        return x_BLD * abs(x_BLD)

    def keys_and_values(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (torch.einsum("bld,nhd->bnlh", x_BLD, weight) for weight in (self.k_NHD, self.v_NHD))
        return k, v


def compare(
    by_the_book: Callable[[MemoryRule, Projections, list[Tensor], list[Tensor]], list[Tensor]],
    context: Context | None = None,
    **settings: Any,
) -> None:
    """Read five segments with a rule, and as the book says: what is read beside a local result of ones, (B, N, T, H),
    and its gradients agree. The book gets the rule, the layer, what leaves after each segment, and the queries."""
    context = context or Context(tgt_len=T, mem_len=M)
    rule = MEMORIES[settings["memory"]](
        ModelConfig(n_head=N, d_head=H, d_model=D, **settings)
    ).double()
    with torch.no_grad():
        for parameter in rule.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    k_NHD, v_NHD = (torch.randn(N, H, D).double().requires_grad_() for _ in range(2))
    segments = [torch.randn(B, T, D).double().requires_grad_() for _ in range(5)]
    qs, layer = (
        [torch.randn(B, N, T, H).double().requires_grad_() for _ in segments],
        Projections(k_NHD, v_NHD),
    )
    state: State = rule.empty(
        ModelConfig(n_head=N, d_head=H, d_model=D, **settings), B, like=segments[0]
    )
    found, left, before = [], [], segments[0][:, :0]
    for segment_BTD, q_BNTH in zip(segments, qs, strict=True):
        span = Span.of(context, n_mem=rule.n_kept(state), n_new=T)
        found.append(rule.beside(state.extra, span, q_BNTH, torch.ones_like(q_BNTH)))
        state = rule.kept(state, segment_BTD, span, context, layer)
        whole = torch.cat([before, segment_BTD], dim=1)
        left.append(whole[:, : whole.shape[1] - M])
        before = whole[:, whole.shape[1] - M :].detach()
    expected = by_the_book(rule, layer, left, qs)
    weights = [torch.randn_like(one) for one in found]
    of = [k_NHD, v_NHD, *segments[:2], qs[3], *rule.parameters()]
    both = [
        sum((w * x).sum() for w, x in zip(weights, outs, strict=True)) for outs in (found, expected)
    ]
    grads, own = (
        torch.autograd.grad(one, of, allow_unused=True, materialize_grads=True) for one in both
    )
    for ours, theirs in zip([*found, *grads], [*expected, *own], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(found[-1], found[0])


GATES = ("sigmoid", "tanh")


def beside(rule: Any, n: int, read_H: Tensor) -> Tensor:
    """What head n reads, with a local result of ones."""
    gate = rule.gate_N[n]
    if rule.begins_with_nothing:
        return 1 + (gate.exp() - (-gate).exp()) / (gate.exp() + (-gate).exp()) * read_H
    share = 1 / (1 + (-gate).exp())
    return share * read_H + (1 - share)


def unit(x_H: Tensor) -> Tensor:
    return x_H / (x_H * x_H).sum().sqrt()
