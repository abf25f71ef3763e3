"""The matrices of Infini-attention against loops over rows, heads, tokens and sizes, in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.equations.beside import GATES, B, H, N, T, beside, compare


def feature(x_H: Tensor) -> Tensor:
    return torch.stack([x + 1 if x > 0 else x.exp() for x in x_H])


def read(matrix: list[list[Tensor]], norm: list[Tensor], q_H: Tensor) -> Tensor:
    total = sum((q * z for q, z in zip(q_H, norm, strict=True)), torch.zeros(()))
    sums = [sum((q_H[i] * matrix[i][j] for i in range(H)), torch.zeros(())) for j in range(H)]
    return torch.stack(sums) / total if total > 0 else torch.zeros(H, dtype=torch.float64)


def by_the_book(rule: Any, layer: Any, left: list[Tensor], qs: list[Tensor]) -> list[Tensor]:
    zero, out = torch.zeros((), dtype=torch.float64), [torch.zeros_like(q) for q in qs]
    for b in range(B):
        for n in range(N):
            matrix, norm = [[zero] * H for _ in range(H)], [zero] * H
            for i, (left_BLD, q_BNTH) in enumerate(zip(left, qs, strict=True)):
                for t in range(T):
                    out[i][b, n, t] = beside(rule, n, read(matrix, norm, feature(q_BNTH[b, n, t])))
                new_matrix, new_norm = [list(row) for row in matrix], list(norm)
                for x_D in left_BLD[b]:
                    k_H, v_H = feature(layer.k_NHD[n] @ x_D), layer.v_NHD[n] @ x_D
                    if rule.has_delta:
                        v_H = v_H - read(matrix, norm, k_H)
                    for r in range(H):
                        new_norm[r] = new_norm[r] + k_H[r]
                        for c in range(H):
                            new_matrix[r][c] = new_matrix[r][c] + k_H[r] * v_H[c]
                matrix, norm = new_matrix, new_norm
    return out


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("update", ["linear", "delta"])
def test_what_is_read_is_the_formula(update: str, gate: str, seeded: None) -> None:
    compare(by_the_book, memory="infini", infini_update=update, memory_gate=gate)
