"""The networks of Titans against loops over rows, heads and tokens, with gradients by autograd, in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.equations.beside import B, N, T, beside, compare, unit


def network(weights: list[Tensor], x_H: Tensor) -> Tensor:
    for weight in weights[:-1]:
        x_H = x_H @ weight
        x_H = x_H / (1 + (-x_H).exp())
    return x_H @ weights[-1]


def by_the_book(rule: Any, layer: Any, left: list[Tensor], qs: list[Tensor]) -> list[Tensor]:
    out = [torch.zeros_like(q) for q in qs]
    for b in range(B):
        for n in range(N):
            weights = [begin[n] for begin in rule.begin]
            momentum = [torch.zeros_like(weight) for weight in weights]
            for i, (left_BLD, q_BNTH) in enumerate(zip(left, qs, strict=True)):
                for t in range(T):
                    out[i][b, n, t] = beside(rule.gate_N[n], network(weights, unit(q_BNTH[b, n, t])))
                first = [weight if weight.requires_grad else weight.requires_grad_() for weight in weights]
                for x_D in left_BLD[b]:
                    k_H, v_H = unit(layer.k_NHD[n] @ x_D), layer.v_NHD[n] @ x_D
                    forget, keep, rate = (
                        rule.rates.weight[3 * n : 3 * n + 3] @ x_D + rule.rates.bias[3 * n : 3 * n + 3]
                    ).sigmoid()
                    loss = (network(first, k_H) - v_H).square().sum()
                    grads = torch.autograd.grad(loss, first, create_graph=True)
                    momentum = [keep * s - rate * g for s, g in zip(momentum, grads, strict=True)]
                    weights = [(1 - forget) * w + s for w, s in zip(weights, momentum, strict=True)]
    return out


@pytest.mark.parametrize("n_layer", [1, 2])
def test_what_is_read_is_the_formula(n_layer: int, seeded: None) -> None:
    compare(by_the_book, memory="neural", neural_layers=n_layer)
