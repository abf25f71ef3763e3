"""Small models of every kind, in float64, with weights large enough to tell them apart."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from txl import ModelConfig, TransformerXL
from txl.attention_rules import ATTENTION_RULES
from txl.positions import POSITION_ENCODINGS, PositionEncoding

N_TOKEN = 50
SHAPES = {
    "plain": {},
    "pre_lnorm_adaptive": {"pre_lnorm": True, "cutoffs": (10, 30), "div_val": 2, "tie_projs": (False, True, True)},
    "untie_r_one_table": {"untie_r": True, "cutoffs": (10, 30), "d_embed": 6, "tie_projs": (False, True, True)},
    "gated": {"pre_lnorm": True, "gate": "gru"},
    "one_head_untied": {"n_head": 1, "d_head": 5, "cutoffs": (10, 30), "div_val": 2, "not_tied": True},
}
ENCODINGS = {
    "learned_relative": {"n_position": 40},
    "learned_relative_short": {"position": "learned_relative", "n_position": 6},
    "sinusoid_input": {"pre_lnorm": True},
    "learned_per_layer": {"n_position": 40},
    "learned_absolute": {"n_position": 40},
    "learned_absolute_untied": {"position": "learned_absolute", "n_position": 40, "untie_r": True},
    "rotary": {},
    "t5": {"n_bucket": 8, "max_distance": 20},
    "t5_untied": {"position": "t5", "n_bucket": 5, "max_distance": 12, "untie_r": True},
    "shaw": {"max_distance": 9},
    "relative_keys": {"n_position": 40},
    "relative_keys_short": {"position": "relative_keys", "n_position": 6, "untie_r": True, "n_head": 1},
    "deberta": {"max_distance": 9},
    "floater": {},
    "floater_untied": {"position": "floater", "untie_r": True},
    "alibi": {"n_head": 3, "d_head": 5},
    "none": {},
}
"""A shape for each position encoding, and some more."""
SHAPES |= {name: {"position": name} | settings for name, settings in ENCODINGS.items()}
ALONE = {
    "pre_lnorm": {"pre_lnorm": True},
    "adaptive": {"cutoffs": (10, 30), "div_val": 2, "tie_projs": (False, True, True)},
    "adaptive_one_table": {"cutoffs": (10, 30), "d_embed": 6, "tie_projs": (False, True, True)},
    "untied": {"cutoffs": (10, 30), "div_val": 2, "not_tied": True},
}
"""One thing at a time, for tests outside this folder; the laws have them together."""
NEEDED = {"floater": "torchdiffeq", "floater_untied": "torchdiffeq"}
"""Packages without which a shape cannot be built."""
RULE_SIZES = {"n_position": 64, "n_feature": 13, "lsh_round": 2, "lsh_bucket": 4, "lsh_reach": 3}
"""Of attention rules other than softmax, and of tables of the encodings that they are tried with."""
PAIRS = [
    (name, rule)
    for name, cls in POSITION_ENCODINGS.items()
    for rule in ATTENTION_RULES
    if rule == "softmax" or not cls.needs_scores()
]
"""Position encodings and attention rules that are not refused; `test_kernel_laws` holds that all others are."""

Build = Callable[..., TransformerXL]


def build(shape: str, **changes: object) -> TransformerXL:
    for name in (shape, changes.get("position")):
        if name in NEEDED:
            pytest.importorskip(NEEDED[name])
    config = ModelConfig(
        **{"n_token": N_TOKEN, "n_layer": 3, "n_head": 2, "d_head": 8, "d_model": 16, "d_inner": 20}
        | (SHAPES | ALONE)[shape]
        | changes
    )
    model = TransformerXL(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


@pytest.fixture(params=sorted(SHAPES))
def model(request: pytest.FixtureRequest, seeded: None) -> TransformerXL:
    return build(request.param)


def encoding(model: TransformerXL) -> PositionEncoding:
    return model.layers[0].attn.pos


@pytest.fixture
def relative_model(model: TransformerXL) -> TransformerXL:
    """A model whose positions are distances: where its window begins does not matter."""
    if encoding(model).places_hidden_states():
        pytest.skip("positions counted from the start of the window")
    return model


@pytest.fixture
def clamping_model(model: TransformerXL) -> TransformerXL:
    """A model that tells distances apart, up to a limit that can be lowered."""
    if not encoding(model).clamps or model.config.position == "none":
        pytest.skip("no distances to clamp")
    return model


@pytest.fixture
def token_BT(seeded: None) -> Tensor:
    return torch.randint(0, N_TOKEN, (2, 24), generator=torch.Generator().manual_seed(1))
