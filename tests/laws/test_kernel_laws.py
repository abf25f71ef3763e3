"""What must hold of every pair of position encoding and attention rule that is not refused."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import RULE_SIZES, build
from tests.laws.test_memory_laws import FAR, read
from txl import Context, Memory, ModelConfig, Span, TransformerXL
from txl.attention_rules import ATTENTION_RULES, redraw
from txl.config import UsageError
from txl.positions import POSITION_ENCODINGS, PositionEncoding

SCORELESS = ("performer", "lsh")


class Turned(PositionEncoding):
    """The smallest encoding without scores: each head's first two coordinates turn by the position."""

    def transform_qk(self, q_BNTH: Tensor, k_BNSH: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        device = q_BNTH.device
        return turned(q_BNTH, span.query_positions_T(device)), turned(k_BNSH, span.key_positions_S(device))


def turned(x_BNLH: Tensor, position_L: Tensor) -> Tensor:
    cos_L, sin_L = position_L.to(x_BNLH.dtype).cos(), position_L.to(x_BNLH.dtype).sin()
    a, b = x_BNLH[..., 0], x_BNLH[..., 1]
    return torch.cat([torch.stack([cos_L * a - sin_L * b, sin_L * a + cos_L * b], -1), x_BNLH[..., 2:]], -1)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(POSITION_ENCODINGS, "toy_none", PositionEncoding)
    monkeypatch.setitem(POSITION_ENCODINGS, "toy_turned", Turned)
    return


SERVED = [name for name, cls in POSITION_ENCODINGS.items() if not cls.needs_scores()]
RULE_PAIRS = [(position, rule) for rule in SCORELESS for position in ("toy_none", "toy_turned", *SERVED)]
REFUSED = [(name, rule) for rule in SCORELESS for name, cls in POSITION_ENCODINGS.items() if cls.needs_scores()]


@pytest.fixture(params=RULE_PAIRS, ids="-".join)
def model(request: pytest.FixtureRequest, toys: None, seeded: None) -> TransformerXL:
    position, rule = request.param
    return build("plain", position=position, attention=rule, **RULE_SIZES)


def skip_unless_relative(model: TransformerXL) -> None:
    """Random features are not invariant under rotations: keys that are turned by their place in [memory, segment] get
    estimates that agree in the mean only, when the same tokens are read at another place."""
    pos = model.layers[0].attn.pos
    turns = type(pos).transform_qk is not PositionEncoding.transform_qk
    if pos.places_hidden_states() or (turns and model.config.attention == "performer"):
        pytest.skip("the result depends on where a token stands in [memory, segment]")


@pytest.mark.parametrize(("position", "rule"), REFUSED)
def test_an_encoding_of_scores_is_refused_with_the_pairs_that_work(position: str, rule: str) -> None:
    with pytest.raises(UsageError, match=f"--attention {rule} --position {position}: .* use --attention softmax") as e:
        build("plain", position=position, attention=rule, **RULE_SIZES)
    assert "toy_none or toy_turned" in str(e.value)
    assert f" {position} or" not in str(e.value)


@pytest.mark.parametrize("rule", SCORELESS)
def test_dropping_probabilities_that_are_not_formed_is_refused(rule: str) -> None:
    config = ModelConfig(n_token=5, position="toy_none", attention=rule)
    with pytest.raises(UsageError, match=f"--dropatt 0.1 --attention {rule}: .* leave --dropatt out"):
        TransformerXL(config, dropatt=0.1)


def test_the_page_about_rules_names_the_encodings_that_work() -> None:
    page = (Path(__file__).parents[2] / "docs" / "attention.md").read_text(encoding="utf-8")
    named = re.search(r"those that act on hidden states, queries or keys \(([^)]*)\)", page)[1]
    assert set(re.findall(r"`(\w+)`", named)) == set(SERVED)


def test_every_rule_is_tried_here() -> None:
    assert set(ATTENTION_RULES) == {"softmax", *SCORELESS}


@pytest.mark.slow
def test_segments_equal_one_pass(model: TransformerXL, token_BT: Tensor) -> None:
    whole = read(model, token_BT, [24], FAR)[0]
    for sizes in ([1, 23], [7, 5, 1, 11]):
        torch.testing.assert_close(read(model, token_BT, sizes, FAR)[0], whole)


@pytest.mark.slow
@torch.inference_mode()
def test_remembered_keys_and_values_equal_remembered_hidden_states(model: TransformerXL, token_BT: Tensor) -> None:
    for context, sizes in (
        (FAR, [8, 15, 1]),
        (Context(tgt_len=8, mem_len=5), [3, 16, 5]),
        (Context(mem_len=6, same_length=True), [8, 1, 1, 14]),
    ):
        hidden, cached = None, model.fresh_memory(2)
        for segment_BT in token_BT.split(sizes, dim=1):
            one, hidden = model(segment_BT, hidden, context)
            two, cached = model(segment_BT, cached, context)
            torch.testing.assert_close(two, one)


def test_where_the_memory_came_from_does_not_matter(model: TransformerXL, token_BT: Tensor) -> None:
    skip_unless_relative(model)
    late = read(model, token_BT[:, :16], [8, 8], FAR)[1]
    few = Memory(tuple(layer[:, -4:] for layer in late.layers))
    alone = model(token_BT[:, 16:], few, FAR).hidden_BTD
    bounded = read(model, token_BT[:, :16], [16], Context(mem_len=4))[1]
    torch.testing.assert_close(model(token_BT[:, 16:], bounded, FAR).hidden_BTD, alone)


@pytest.mark.slow
def test_same_length_does_not_depend_on_tgt_len(model: TransformerXL, token_BT: Tensor) -> None:
    skip_unless_relative(model)
    for mem_len in (1, 5):
        context = Context(mem_len=mem_len, same_length=True)
        whole = read(model, token_BT, [24], context)[0]
        for sizes in ([17, 5, 1, 1],):
            torch.testing.assert_close(read(model, token_BT, sizes, context)[0], whole)


def test_what_is_drawn_is_the_same_in_every_call_until_it_is_drawn_anew(model: TransformerXL, token_BT: Tensor) -> None:
    one, again = (model.train()(token_BT, None, FAR).hidden_BTD for _ in range(2))
    assert torch.equal(one, again)
    redraw(model, torch.Generator().manual_seed(5))
    other = model(token_BT, None, FAR).hidden_BTD
    assert not torch.allclose(one, other)
    redraw(model, torch.Generator().manual_seed(5))
    assert torch.equal(other, model(token_BT, None, FAR).hidden_BTD)
    drawn = [b for name, b in model.named_buffers() if "rule" in name]
    assert len({b.sum().item() for b in drawn}) == len(model.layers)


def test_softmax_has_nothing_to_draw(token_BT: Tensor) -> None:
    model = build("plain")
    before = model(token_BT, None, FAR).hidden_BTD
    redraw(model, torch.Generator().manual_seed(5))
    assert torch.equal(before, model(token_BT, None, FAR).hidden_BTD)
