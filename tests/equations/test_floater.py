"""FLOATER against its differential equation."""

import sys

import pytest
import torch
from torch import Tensor

from tests.equations.loops import SIZES, D, H, assert_same, attended, attention_with, by_loop, tokens
from txl import ModelConfig, Span, TransformerXL
from txl.config import UsageError
from txl.positions.base import sinusoid
from txl.training.config import TrainConfig
from txl.training.init import init_weights

needs_solver = pytest.mark.skipif("not __import__('importlib.util').util.find_spec('torchdiffeq')")


def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    return q @ k / H**0.5


def derivative(pos: torch.nn.Module, time: float, z: Tensor) -> Tensor:
    """f(tau, z) = W_2 tanh(W_1 [z, tau] + b_1) + b_2."""
    first, second = pos.motion[0], pos.motion[2]
    inner = torch.tanh(first.weight[:, :D] @ z + first.weight[:, D] * time + first.bias)
    return second.weight @ inner + second.bias


def position_of(pos: torch.nn.Module, i: int, n_step: int = 100) -> Tensor:
    """S_i + z(0.1 i), z by many small steps of the midpoint rule."""
    z, h = pos.z0_D, 0.1 / n_step
    for step in range(i * n_step):
        time = step * h
        z = z + h * derivative(pos, time + h / 2, z + h / 2 * derivative(pos, time, z))
    return sinusoid(torch.tensor([i]), D, torch.float64)[0] + z


@needs_solver
@pytest.mark.parametrize("untie_r", [False, True])
@pytest.mark.parametrize(("M", "T"), SIZES)
def test_attention_is_the_formula(M: int, T: int, untie_r: bool) -> None:
    """q_i = W_q (x_i + p_i), k_j = W_k (x_j + p_j), v_j = W_v x_j, p by Liu et al. 2020; to the solver's accuracy."""
    attention, pos = attention_with("floater", untie_r=untie_r)
    with torch.no_grad():
        for parameter in pos.parameters():
            parameter.mul_(0.5)
        path = [position_of(pos, i) for i in range(M + T)]
        x_SD = tokens(M, T)
        formula = by_loop(attention, x_SD, M, logit=logit, place=path.__getitem__)
        assert_same(attended(attention, x_SD, Span(M, T)), formula, atol=1e-4)


@needs_solver
def test_a_step_is_the_three_eighths_rule_of_runge_and_kutta() -> None:
    _, pos = attention_with("floater")
    path_SD, h = pos.path(Span(0, 4)), 0.1
    for i in range(3):
        t, z = h * i, path_SD[i]
        k1 = derivative(pos, t, z)
        k2 = derivative(pos, t + h / 3, z + h * k1 / 3)
        k3 = derivative(pos, t + 2 * h / 3, z + h * (k2 - k1 / 3))
        k4 = derivative(pos, t + h, z + h * (k1 - k2 + k3))
        assert_same(path_SD[i + 1], z + h * (k1 + 3 * k2 + 3 * k3 + k4) / 8)


@needs_solver
@pytest.mark.parametrize("untie_r", [False, True])
def test_training_begins_at_the_sinusoids(untie_r: bool) -> None:
    config = ModelConfig(n_token=5, n_layer=2, n_head=1, d_head=4, d_model=D, d_inner=4, position="floater")
    model = TransformerXL(ModelConfig(**{**vars(config), "untie_r": untie_r}))
    init_weights(model, TrainConfig())
    span, x_BSD = Span(3, 5), torch.zeros(1, 8, D)
    for layer in model.layers:
        feats = model.layers[0].attn.pos.prepare(span, like=x_BSD)
        placed_BTD, placed_BMD = layer.attn.pos.qk_input(x_BSD[:, 3:], x_BSD[:, :3], feats, span)
        placed_SD = torch.cat([placed_BMD, placed_BTD], dim=1)[0]
        assert torch.equal(placed_SD, sinusoid(torch.arange(8), D, torch.float32))
    assert model.layers[1].attn.pos.motion[0].weight.std() > 0.005


@needs_solver
def test_layers_share_the_equation_unless_they_are_untied() -> None:
    for untie_r in (False, True):
        config = ModelConfig(n_token=5, n_layer=2, n_head=1, d_head=4, d_model=D, position="floater", untie_r=untie_r)
        first, second = (layer.attn.pos for layer in TransformerXL(config).layers)
        assert (first.motion is second.motion) == (first.z0_D is second.z0_D) == (not untie_r)


@needs_solver
def test_more_text_does_not_move_the_positions_before_it() -> None:
    _, pos = attention_with("floater")
    long_SD, short_SD = pos.path(Span(9, 4)), pos.path(Span(0, 5))
    assert torch.equal(long_SD[:5], short_SD)
    assert torch.equal(pos.path(Span(0, 1)), pos.z0_D[None])


def test_without_the_solver_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(UsageError, match=r"--position floater: needs torchdiffeq, .* pip install torchdiffeq"):
        attention_with("floater")
