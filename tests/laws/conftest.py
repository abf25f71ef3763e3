"""Small models of every kind, in float64, with weights large enough to tell them apart."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from txl import ModelConfig, TransformerXL

N_TOKEN = 50
SHAPES = {
    "plain": {},
    "pre_lnorm": {"pre_lnorm": True},
    "untie_r": {"untie_r": True},
    "one_head": {"n_head": 1, "d_head": 5},
    "adaptive": {"cutoffs": (10, 30), "div_val": 2, "tie_projs": (False, True, True)},
    "adaptive_one_table": {"cutoffs": (10, 30), "d_embed": 6, "tie_projs": (False, True, True)},
    "untied": {"cutoffs": (10, 30), "div_val": 2, "not_tied": True},
}

Build = Callable[..., TransformerXL]


def build(shape: str, **changes: object) -> TransformerXL:
    config = ModelConfig(
        **{"n_token": N_TOKEN, "n_layer": 3, "n_head": 2, "d_head": 8, "d_model": 16, "d_inner": 20}
        | SHAPES[shape]
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


@pytest.fixture
def token_BT(seeded: None) -> Tensor:
    return torch.randint(0, N_TOKEN, (2, 24), generator=torch.Generator().manual_seed(1))
