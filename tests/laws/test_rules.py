"""Attention rules other than softmax: what they refuse, and what they draw."""

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import FAR, OF_RULES, RULE_SIZES, SCORELESS, build, for_models
from txl import ModelConfig, TransformerXL
from txl.attention_rules import ATTENTION_RULES, redraw
from txl.config import UsageError
from txl.positions import POSITION_ENCODINGS, PositionEncoding

RULES = sorted(set(ATTENTION_RULES) - {"softmax"})


def test_every_pair_is_tried_or_refused_with_the_pairs_that_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {(c["attention"], c["position"]) for c in OF_RULES.values()} == {
        (r, p) for r in RULES for p in SCORELESS
    }
    monkeypatch.setitem(POSITION_ENCODINGS, "toy_none", PositionEncoding)
    for rule in RULES:
        for position in set(POSITION_ENCODINGS) - {*SCORELESS, "toy_none"}:
            refusal = f"--attention {rule} --position {position}: .* use --attention softmax"
            with pytest.raises(UsageError, match=refusal) as error:
                build("plain", position=position, attention=rule, **RULE_SIZES)
            assert "sinusoid_input or toy_none" in str(error.value)
            assert f" {position} or" not in str(error.value)


@pytest.mark.parametrize("rule", RULES)
def test_what_a_rule_has_no_matrix_of_probabilities_for_is_refused(
    rule: str, token_BT: Tensor
) -> None:
    config = ModelConfig(n_token=50, position="none", attention=rule)
    with pytest.raises(
        UsageError, match=f"--dropatt 0.1 --attention {rule}: .* leave --dropatt out"
    ):
        TransformerXL(config, dropatt=0.1)
    with pytest.raises(
        UsageError, match=f"--attention {rule}: this rule does not mask the documents"
    ):
        build("none", attention=rule)(token_BT, None, FAR, torch.zeros_like(token_BT))


@for_models(lambda c: c.position == "none")
def test_what_is_drawn_is_the_same_in_every_call_until_it_is_drawn_anew(
    model: TransformerXL, token_BT: Tensor
) -> None:
    one, again = (model.train()(token_BT, None, FAR).hidden_BTD for _ in range(2))
    redraw(model, torch.Generator().manual_seed(5))
    other = model(token_BT, None, FAR).hidden_BTD
    redraw(model, torch.Generator().manual_seed(5))
    assert torch.equal(one, again)
    assert torch.equal(other, model(token_BT, None, FAR).hidden_BTD)
    drawn = [b for name, b in model.named_buffers() if "rule" in name]
    # which has nothing to draw
    assert torch.equal(one, other) == (model.config.attention == "softmax")
    assert len({b.sum().item() for b in drawn}) == len(model.layers) * (
        model.config.attention != "softmax"
    )
