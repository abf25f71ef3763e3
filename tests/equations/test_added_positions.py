"""Positions added to what a layer reads, the original's attn_type 2 and 3, against their formulas."""

import pytest
import torch
from torch import Tensor

from tests.equations.loops import D, assert_same
from txl import Context, Memory, ModelConfig, Span, TransformerXL
from txl.model import Layer
from txl.positions.base import sinusoid

SIZES = {"n_token": 9, "n_layer": 2, "n_head": 2, "d_head": 4, "d_model": D, "d_inner": 5}
SPANS = [(0, 1), (0, 5), (3, 4), (7, 2)]


def model_with(position: str, **settings: object) -> TransformerXL:
    model = TransformerXL(ModelConfig(**SIZES | {"position": position} | settings)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def without_positions(layer: Layer, config: ModelConfig) -> Layer:
    """The same layer with an encoding that does nothing."""
    plain = TransformerXL(ModelConfig(**SIZES | {"pre_lnorm": config.pre_lnorm, "position": "none"})).double().eval()
    weights = {name: value for name, value in layer.state_dict().items() if ".pos." not in name}
    plain.layers[0].load_state_dict(weights)
    return plain.layers[0]


def row(position: int, pos: torch.nn.Module, layer: int) -> Tensor | int:
    """What the formula adds at a position in a layer."""
    if hasattr(pos, "p_RD"):
        return pos.p_RD[position]
    return sinusoid(torch.tensor([position]), D, torch.float64)[0] if layer == 0 else 0


@pytest.mark.parametrize("settings", [{"position": "sinusoid_input"}, {"position": "learned_per_layer"}], ids=str)
@pytest.mark.parametrize("pre_lnorm", [False, True])
@pytest.mark.parametrize("count_back", [False, True])
@pytest.mark.parametrize("n_position", [4, 20])
@pytest.mark.parametrize(("M", "T"), SPANS)
def test_every_token_is_given_its_position_where_a_layer_reads_it(
    settings: dict[str, object], pre_lnorm: bool, count_back: bool, n_position: int, M: int, T: int
) -> None:
    """Vaswani et al. 2017, sec. 3.5, and Al-Rfou et al. 2019: x + P_p, for what is remembered too, then the layer."""
    model = model_with(**settings, pre_lnorm=pre_lnorm, count_back=count_back, n_position=n_position)
    span, x_SD = Span(M, T), torch.randn(M + T, D).double()
    last_row = n_position - 1 if settings["position"] == "learned_per_layer" else M + T
    feats = model.layers[0].attn.pos.prepare(span, like=x_SD)
    for i, layer in enumerate(model.layers):
        placed = []
        for token, x_D in enumerate(x_SD):
            from_end = min(M + T - 1 - token, last_row)
            position = from_end if count_back else max(0, min(M + T - 1, last_row) - from_end)
            placed.append(x_D + row(position, layer.attn.pos, i))
        placed_SD = torch.stack(placed)
        expected = without_positions(layer, model.config)(placed_SD[None, M:], placed_SD[None, :M], feats, span)
        assert_same(layer(x_SD[None, M:], x_SD[None, :M], feats, span), expected)


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
    assert_same(feats, expected)
