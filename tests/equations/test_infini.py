"""The matrices of Infini-attention against loops over rows, heads, tokens and sizes, in float64."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from txl import Context
from txl.config import ModelConfig
from txl.memory import MEMORIES, Span, State

N, H, D = 2, 3, 4


@dataclass
class Projections:
    """Of a layer what a memory asks for."""

    k_NHD: Tensor
    v_NHD: Tensor

    def keys_and_values(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (torch.einsum("bld,nhd->bnlh", x_BLD, weight) for weight in (self.k_NHD, self.v_NHD))
        return k, v


def feature(x_H: Tensor) -> Tensor:
    return torch.stack([x + 1 if x > 0 else x.exp() for x in x_H])


def read(matrix: list[list[Tensor]], norm: list[Tensor], q_H: Tensor) -> Tensor:
    total = sum((q * z for q, z in zip(q_H, norm, strict=True)), torch.zeros(()))
    sums = [sum((q_H[i] * matrix[i][j] for i in range(H)), torch.zeros(())) for j in range(H)]
    return torch.stack(sums) / total if total > 0 else torch.zeros(H, dtype=torch.float64)


def by_the_book(layer: Projections, gate: Tensor, rows: list[Tensor], qs: list[Tensor], delta: bool) -> list[Tensor]:
    """For each segment the result beside a local one of ones, (B, N, T, H); `rows` are what leaves after each."""
    out = []
    zero = torch.zeros((), dtype=torch.float64)
    state = [[([[zero] * H for _ in range(H)], [zero] * H) for _ in range(N)] for _ in range(len(rows[0]))]
    for left_BLD, q_BNTH in zip(rows, qs, strict=True):
        found = torch.zeros_like(q_BNTH)
        for b, of_row in enumerate(state):
            for n, (matrix, norm) in enumerate(of_row):
                share = 1 / (1 + (-gate[n]).exp())
                for t, q_H in enumerate(q_BNTH[b, n]):
                    found[b, n, t] = share * read(matrix, norm, feature(q_H)) + (1 - share)
                new_matrix, new_norm = [list(row) for row in matrix], list(norm)
                for x_D in left_BLD[b]:
                    k_H, v_H = feature(layer.k_NHD[n] @ x_D), layer.v_NHD[n] @ x_D
                    if delta:
                        v_H = v_H - read(matrix, norm, k_H)
                    for i in range(H):
                        new_norm[i] = new_norm[i] + k_H[i]
                        for j in range(H):
                            new_matrix[i][j] = new_matrix[i][j] + k_H[i] * v_H[j]
                of_row[n] = new_matrix, new_norm
        out.append(found)
    return out


@pytest.mark.parametrize("update", ["linear", "delta"])
def test_what_is_read_is_the_formula(update: str, seeded: None) -> None:
    context, shape = Context(tgt_len=3, mem_len=2), (2, 3, D)
    config = ModelConfig(n_head=N, d_head=H, d_model=D, memory="infini", infini_update=update)
    rule = MEMORIES["infini"](config).double()
    given = [torch.randn(N, H, D), torch.randn(N, H, D), *(torch.randn(shape) for _ in range(4))]
    k_NHD, v_NHD, *segments = (x.double().requires_grad_() for x in given)
    layer, qs = Projections(k_NHD, v_NHD), [torch.randn(2, N, 3, H).double() for _ in segments]
    with torch.no_grad():
        rule.gate_N.copy_(torch.tensor([-0.7, 1.1]))
    state: State = rule.empty(config, 2, like=segments[0])
    found, rows, before = [], [], segments[0][:, :0]
    for segment_BTD, q_BNTH in zip(segments, qs, strict=True):
        span = Span.of(context, n_mem=state.length, n_new=3)
        found.append(rule.beside(state.more, span, q_BNTH, torch.ones_like(q_BNTH)))
        state = rule.kept(state, segment_BTD, span, context, layer)
        whole = torch.cat([before, segment_BTD], dim=1)
        rows.append(whole[:, : whole.shape[1] - 2])
        before = whole[:, whole.shape[1] - 2 :].detach()
    expected = by_the_book(layer, rule.gate_N, rows, qs, update == "delta")
    weights = [torch.randn_like(one) for one in found]
    of = [k_NHD, v_NHD, segments[1], rule.gate_N]
    grads, own = (
        torch.autograd.grad(sum((w * x).sum() for w, x in zip(weights, outs, strict=True)), of)
        for outs in (found, expected)
    )
    for ours, theirs in zip([*found, *grads], [*expected, *own], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert bool(grads[2].any())
