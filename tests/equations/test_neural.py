"""The networks of Titans against loops over rows, heads and tokens, with gradients by autograd, in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.equations.beside import B, N, Projections, T, beside, compare, unit
from txl import Context, ModelConfig, Span
from txl.memory import MEMORIES


def network(weights: list[Tensor], x_H: Tensor) -> Tensor:
    for weight in weights[:-1]:
        x_H = x_H @ weight
        x_H = x_H / (1 + (-x_H).exp())
    return x_H @ weights[-1]


def shortening(weights: list[Tensor], keys: list[Tensor], shares: list[Tensor]) -> Tensor:
    """s of the tokens that leave at once."""
    if not keys:
        return torch.ones(())
    outer = [share * torch.outer(k_H, k_H) for k_H, share in zip(keys, shares, strict=True)]
    if len(weights) == 1:
        c = sum(outer).square().sum().sqrt()
    else:
        inner = [
            network([weights[0], torch.eye(weights[1].shape[0]).double()], k_H) for k_H in keys
        ]
        last = sum(share * torch.outer(x, x) for x, share in zip(inner, shares, strict=True))
        through = []
        for k_H in keys:
            at = k_H @ weights[0]
            slope = torch.autograd.grad((at / (1 + (-at).exp())).sum(), at, create_graph=True)[0]
            through.append((slope[:, None] * weights[1]).square().sum())
        before = sum(x * one for x, one in zip(outer, through, strict=True))
        c = last.square().sum().sqrt() + before.square().sum().sqrt()
    return torch.maximum(2 * c, torch.ones_like(c))


def coming_to(t: int, rates: list[Tensor]) -> Tensor:
    """p of token t."""
    weight = momentum = torch.zeros(())
    for u, (forget, keep, rate) in enumerate(rates):
        momentum = keep * momentum + (rate if u == t else 0)
        weight = (1 - forget) * weight + momentum
    keep = rates[-1][1]
    return weight + keep / (1 - keep) * momentum


def by_the_book(rule: Any, layer: Any, left: list[Tensor], qs: list[Tensor]) -> list[Tensor]:
    out, shortened = [torch.zeros_like(q) for q in qs], []
    for b in range(B):
        for n in range(N):
            weights = [begin[n] for begin in rule.begin]
            momentum = [torch.zeros_like(weight) for weight in weights]
            for i, (left_BLD, q_BNTH) in enumerate(zip(left, qs, strict=True)):
                for t in range(T):
                    out[i][b, n, t] = beside(rule, n, network(weights, unit(q_BNTH[b, n, t])))
                first = [
                    weight if weight.requires_grad else weight.requires_grad_()
                    for weight in weights
                ]
                keys = [unit(layer.k_NHD[n] @ x_D) for x_D in left_BLD[b]]
                of_BLD = layer.normed(left_BLD) if rule.rates_of == "normed" else left_BLD
                rates = [
                    (
                        rule.rates.weight[3 * n : 3 * n + 3] @ of_D
                        + rule.rates.bias[3 * n : 3 * n + 3]
                    ).sigmoid()
                    for of_D in of_BLD[b]
                ]
                slower = shortening(first, keys, [coming_to(t, rates) for t in range(len(rates))])
                shortened.append(slower.item())
                for x_D, k_H, (forget, keep, rate) in zip(left_BLD[b], keys, rates, strict=True):
                    v_H = layer.v_NHD[n] @ x_D
                    loss = (network(first, k_H) - v_H).square().sum()
                    grads = torch.autograd.grad(loss, first, create_graph=True)
                    momentum = [
                        keep * s - rate / slower * g for s, g in zip(momentum, grads, strict=True)
                    ]
                    to = [begin[n] * (rule.forgets_to == "begin") for begin in rule.begin]
                    weights = [
                        w_0 + (1 - forget) * (w - w_0) + s
                        for w_0, w, s in zip(to, weights, momentum, strict=True)
                    ]
    assert min(shortened) == 1 < max(shortened)
    return out


@pytest.mark.parametrize(("n_layer", "gate"), [(1, "tanh"), (1, "sigmoid"), (2, "sigmoid")])
def test_what_is_read_is_the_formula(n_layer: int, gate: str, seeded: None) -> None:
    compare(by_the_book, memory="neural", neural_layers=n_layer, memory_gate=gate)


@pytest.mark.parametrize(
    "settings",
    [
        {"rates_of": "normed"},
        {"forgets_to": "begin"},
        {"forgets_to": "begin", "neural_layers": 2, "rates_of": "normed"},
    ],
)
def test_what_is_added_to_trained_weights_is_the_formula(
    settings: dict[str, Any], seeded: None
) -> None:
    compare(by_the_book, memory="neural", **settings)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("n_layer", [1, 2])
@pytest.mark.parametrize(("n_token", "error"), [(1, 0.2), (16, 0.4), (400, 1.5)])
def test_equal_tokens_do_not_overshoot_however_many_leave_at_once(
    n_layer: int, n_token: int, error: float, seeded: None
) -> None:
    """Their value is learned; of hundreds, all but the last segment is forgotten meanwhile."""
    config = ModelConfig(n_head=1, d_head=8, d_model=8, memory="neural", neural_layers=n_layer)
    rule: Any = MEMORIES["neural"](config)
    layer, x_D, context = Projections(*torch.randn(2, 1, 8, 8)), torch.randn(8), Context(mem_len=0)
    k_H, v_H = unit(layer.k_NHD[0] @ x_D), layer.v_NHD[0] @ x_D
    state = rule.empty(config, 1, like=x_D)
    for _ in range(100):
        state = rule.kept(state, x_D.expand(1, n_token, 8), Span(0, n_token), context, layer)
    learned = network([weight[0, 0] for weight in rule.weights(state.extra)], k_H)
    assert (learned - v_H).norm() < error * v_H.norm()
