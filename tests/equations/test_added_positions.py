"""Positions added to what a layer reads, the original's attn_type 2 and 3, against their formulas."""

import math

import pytest
import torch
from torch import Tensor

from tests.equations.loops import D, H, N, assert_same, by_loop
from txl import Context, Memory, ModelConfig, Span, TransformerXL
from txl.model.layer import Layer

SIZES = {"n_token": 9, "n_layer": 2, "n_head": N, "d_head": H, "d_model": D, "d_inner": 5}
SPANS = [(0, 1), (0, 5), (3, 4), (7, 2)]


def model_with(position: str, **settings: object) -> TransformerXL:
    model = TransformerXL(ModelConfig(**SIZES | {"position": position} | settings)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def layer_by_loop(layer: Layer, placed_SD: Tensor, M: int, *, pre_lnorm: bool) -> Tensor:
    """Vaswani et al. 2017, sec. 3.1, of tokens M ... S-1: norm(x + f(x)), or x + f(norm(x)), of both parts, (T, D)."""

    def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        return q @ k / H**0.5

    def normalised(net: torch.nn.LayerNorm, x_LD: Tensor) -> Tensor:
        centred_LD = x_LD - x_LD.mean(-1, keepdim=True)
        return centred_LD / (centred_LD.square().mean(-1, keepdim=True) + 1e-5).sqrt() * net.weight + net.bias

    def fed(x_LD: Tensor) -> Tensor:
        (W_1, b_1), (W_2, b_2) = ((net.weight, net.bias) for net in (layer.ff[0], layer.ff[3]))
        return (x_LD @ W_1.T + b_1).clamp(min=0) @ W_2.T + b_2

    new_TD = placed_SD[M:]
    if pre_lnorm:
        new_TD = new_TD + by_loop(layer.attn, normalised(layer.attn_norm, placed_SD), M, logit=logit)
        return new_TD + fed(normalised(layer.ff_norm, new_TD))
    new_TD = normalised(layer.attn_norm, new_TD + by_loop(layer.attn, placed_SD, M, logit=logit))
    return normalised(layer.ff_norm, new_TD + fed(new_TD))


def sinusoid_of(position: int) -> Tensor:
    """Vaswani et al. 2017, sec. 3.5, sines before cosines."""
    angles = [position / 10000 ** (2 * i / D) for i in range(D // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def row(position: int, pos: torch.nn.Module, layer: int) -> Tensor:
    """What the formula adds at a position in a layer, (D,)."""
    if hasattr(pos, "p_RD"):
        return pos.p_RD[position]
    return sinusoid_of(position) if layer == 0 else torch.zeros(D).double()


@pytest.mark.parametrize("position", ["sinusoid_input", "learned_per_layer"])
@pytest.mark.parametrize("pre_lnorm", [False, True])
@pytest.mark.parametrize("count_back", [False, True])
@pytest.mark.parametrize("n_position", [4, 20])
@pytest.mark.parametrize(("M", "T"), SPANS)
def test_a_layer_that_reads_tokens_at_their_positions_is_the_formula(
    position: str, pre_lnorm: bool, count_back: bool, n_position: int, M: int, T: int
) -> None:
    """Vaswani et al. 2017, sec. 3.5, and Al-Rfou et al. 2019: x + P_p, for what is remembered too, then the layer."""
    model = model_with(position, pre_lnorm=pre_lnorm, count_back=count_back, n_position=n_position)
    span, x_SD = Span(M, T), torch.randn(M + T, D).double()
    last_row = n_position - 1 if position == "learned_per_layer" else M + T
    feats = model.layers[0].attn.pos.prepare(span, like=x_SD)
    for i, layer in enumerate(model.layers):
        placed = []
        for token, x_D in enumerate(x_SD):
            from_end = min(M + T - 1 - token, last_row)
            place = from_end if count_back else max(0, min(M + T - 1, last_row) - from_end)
            placed.append(x_D + row(place, layer.attn.pos, i))
        placed_SD = torch.stack(placed)
        expected = layer_by_loop(layer, placed_SD, M, pre_lnorm=pre_lnorm)
        atol = 1e-12 if position == "learned_per_layer" else 1e-5  # frequencies are kept in float32, as in the original
        assert_same(layer(x_SD[None, M:], x_SD[None, :M], feats, span)[0], expected, atol=atol)


@pytest.mark.parametrize("position", ["sinusoid_input", "learned_per_layer"])
def test_what_is_remembered_has_no_positions_of_the_layer_that_reads_it(position: str) -> None:
    model = model_with(position, n_position=20)
    token_BT = torch.randint(0, 9, (2, 5))
    memory = model(token_BT, None, Context(mem_len=5)).memory
    assert isinstance(memory, Memory)
    assert_same(memory.layers[0], model.word_emb(token_BT))


@pytest.mark.parametrize("position", ["sinusoid_input", "learned_per_layer"])
def test_counting_back_makes_what_is_read_depend_on_where_segments_end(position: str) -> None:
    """Why new models count from the start: counted from the end, two segments are not one pass."""
    token_BT, far = torch.randint(0, 9, (2, 12)), Context(mem_len=100)
    for count_back in (False, True):
        model = model_with(position, n_position=20, count_back=count_back)
        first = model(token_BT[:, :5], None, far)
        second = model(token_BT[:, 5:], first.memory, far)
        same = torch.allclose(
            torch.cat([first.hidden_BTD, second.hidden_BTD], dim=1), model(token_BT, None, far).hidden_BTD
        )
        assert same != count_back


def test_positions_that_count_back_are_clamped_as_in_the_original() -> None:
    model = model_with("sinusoid_input", count_back=True)
    x_SD = torch.zeros(6, D).double()
    pos = model.layers[0].attn.pos
    feats = pos.prepare(Span(2, 4, clamp_len=3), like=x_SD)
    expected = torch.stack([row(p, pos, 0) for p in (3, 3, 3, 2, 1, 0)])
    assert_same(feats, expected, atol=1e-6)
