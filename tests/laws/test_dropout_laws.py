"""Where dropout acts: each place changes the hidden states of training, and none those of evaluation."""

import pytest
import torch
from torch import Tensor, nn

from tests.laws.conftest import N_TOKEN, build
from txl import Context, ModelConfig, TransformerXL


@pytest.fixture(params=[{}, {"pre_lnorm": True}, {"pre_lnorm": True, "reversible": True}], ids=str)
def model(request: pytest.FixtureRequest) -> TransformerXL:
    quiet = build("plain", n_layer=1, **request.param)
    noisy = TransformerXL(ModelConfig(**vars(quiet.config)), dropout=0.5).double().train()
    noisy.load_state_dict(quiet.state_dict())
    return noisy


def silenced(model: TransformerXL, but: nn.Module | None) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5 if module is but else 0.0


def states(model: TransformerXL, token_BT: Tensor) -> Tensor:
    return model(token_BT, None, Context(mem_len=8)).hidden_BTD.detach()


def test_each_place_of_dropout_acts_alone(model: TransformerXL) -> None:
    """With all others off, the result differs from that without dropout; with all off it does not."""
    token_BT = torch.randint(0, N_TOKEN, (2, 9))
    silenced(model, None)
    quiet = states(model, token_BT)
    torch.testing.assert_close(states(model.eval(), token_BT), quiet)
    places = [name for name, module in model.train().named_modules() if isinstance(module, nn.Dropout)]
    acting = []
    for name in places:
        silenced(model, model.get_submodule(name))
        if not torch.equal(states(model, token_BT), quiet):
            acting.append(name)
    assert acting == places
    assert len(places) == 6  # words and last hidden states, R, probabilities, after attention, two in the feed-forward


def test_the_last_hidden_states_are_dropped_out(model: TransformerXL) -> None:
    token_BT = torch.randint(0, N_TOKEN, (2, 9))
    silenced(model, model.drop)
    assert isinstance(model.drop, nn.Dropout)
    dropped = states(model, token_BT)
    kept = dropped != 0
    assert 0.3 < kept.double().mean() < 0.7
