"""What weights are drawn from."""

import pytest
import torch

from txl import ModelConfig, TransformerXL
from txl.positions.base import sinusoid
from txl.training.config import TrainConfig
from txl.training.init import init_weights


def drawn(config: TrainConfig, **changes: object) -> TransformerXL:
    torch.manual_seed(0)
    model = TransformerXL(ModelConfig(n_token=300, n_layer=2, d_model=64, cutoffs=(100,), div_val=2, **changes))
    init_weights(model, config)
    return model


def test_each_kind_of_weight_has_its_own_spread() -> None:
    model = drawn(TrainConfig(init_std=0.05, proj_init_std=0.01))
    layer = model.layers[0]
    for matrix in (layer.attn.q_net.weight, layer.ff[0].weight, model.word_emb.tables[0], layer.attn.pos.u_NH):
        assert matrix.std().item() == pytest.approx(0.05, rel=0.1)
    assert model.word_emb.projs[0].std().item() == pytest.approx(0.01, rel=0.1)
    assert layer.ff_norm.weight.mean().item() == pytest.approx(1.0, abs=0.03)
    assert layer.ff_norm.weight.std().item() == pytest.approx(0.05, rel=0.3)
    assert not any(bias.any() for bias in (layer.ff[0].bias, layer.ff_norm.bias, *model.softmax.biases))


def test_uniform_weights_stay_in_their_range() -> None:
    weight = drawn(TrainConfig(init="uniform", init_range=0.3)).layers[0].ff[0].weight
    assert 0.29 < weight.abs().max() <= 0.3


@pytest.mark.parametrize("position", ["learned_absolute", "relative_keys"])
def test_learned_tables_of_positions_begin_as_large_as_sinusoids(position: str) -> None:
    first, second = (layer.attn.pos.p_RD for layer in drawn(TrainConfig(), position=position, n_position=60).layers)
    expected = sinusoid(torch.arange(60), 64, torch.float32).square().mean().sqrt().item()
    assert first is second
    assert first.std().item() == pytest.approx(expected, rel=0.05)
