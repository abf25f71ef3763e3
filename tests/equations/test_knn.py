"""The lookup of Memorizing Transformers against loops over rows, heads, queries and remembered tokens, in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.equations.beside import GATES, B, M, N, T, beside, compare, unit
from txl import Context

K, LENGTH = 2, 7


def by_the_book(rule: Any, layer: Any, left: list[Tensor], qs: list[Tensor]) -> list[Tensor]:
    out = [torch.zeros_like(q) for q in qs]
    for b in range(B):
        for n in range(N):
            stored: list[tuple[Tensor, Tensor]] = []
            for i, (left_BLD, q_BNTH) in enumerate(zip(left, qs, strict=True)):
                for t in range(T):
                    q_H = unit(q_BNTH[b, n, t])
                    near = sorted(stored, key=lambda pair: (q_H * pair[0]).sum().item())[-K:]
                    powers = [(rule.scale_N[n].exp() * (q_H * k_H).sum()).exp() for k_H, _ in near]
                    read = sum(
                        (p / sum(powers) * v_H for p, (_, v_H) in zip(powers, near, strict=True)),
                        torch.zeros(()),
                    )
                    out[i][b, n, t] = beside(rule, n, read)
                new = [(unit(layer.k_NHD[n] @ x_D), layer.v_NHD[n] @ x_D) for x_D in left_BLD[b]]
                stored = [*stored, *((k_H.detach(), v_H.detach()) for k_H, v_H in new)][-LENGTH:]
    return out


CONTEXT = Context(tgt_len=T, mem_len=M, lookup_len=LENGTH)


@pytest.mark.parametrize("gate", GATES)
def test_what_is_read_is_the_formula(gate: str, seeded: None) -> None:
    compare(by_the_book, CONTEXT, memory="knn", lookup_k=K, memory_gate=gate)
