"""What a new model is: its weights, and the cutoffs of its softmax from the frequencies."""

import functools
from itertools import combinations

import numpy as np
import pytest
import torch

from txl import ModelConfig, TransformerXL
from txl.ops.numbers import sinusoid
from txl.runs.resolve import best_cutoffs, products_per_token
from txl.training.config import TrainConfig
from txl.training.init import init_weights


def drawn(config: TrainConfig, **changes: object) -> TransformerXL:
    torch.manual_seed(0)
    model = TransformerXL(
        ModelConfig(n_token=300, n_layer=2, d_model=64, cutoffs=(100,), div_val=2, **changes)
    )
    init_weights(model, config)
    return model


def test_each_kind_of_weight_has_its_own_spread() -> None:
    model = drawn(TrainConfig(init_std=0.05, proj_init_std=0.01))
    layer = model.layers[0]
    for matrix in (
        layer.attn.q_net.weight,
        layer.ff[0].weight,
        model.word_emb.tables[0],
        layer.attn.pos.u_NH,
    ):
        assert matrix.std().item() == pytest.approx(0.05, rel=0.1)
    assert model.word_emb.projs[0].std().item() == pytest.approx(0.01, rel=0.1)
    assert layer.ff_norm.weight.mean().item() == pytest.approx(1.0, abs=0.03)
    assert layer.ff_norm.weight.std().item() == pytest.approx(0.05, rel=0.3)
    assert not any(
        bias.any() for bias in (layer.ff[0].bias, layer.ff_norm.bias, *model.softmax.biases)
    )
    weight = drawn(TrainConfig(init="uniform", init_range=0.3)).layers[0].ff[0].weight
    assert 0.29 < weight.abs().max() <= 0.3


@pytest.mark.parametrize("position", ["learned_absolute", "relative_keys"])
def test_learned_tables_of_positions_begin_as_large_as_sinusoids(position: str) -> None:
    first, second = (
        layer.attn.pos.p_RD
        for layer in drawn(TrainConfig(), position=position, n_position=60).layers
    )
    expected = sinusoid(torch.arange(60), 64, torch.float32).square().mean().sqrt().item()
    assert first is second
    assert first.std().item() == pytest.approx(expected, rel=0.05)


# cutoffs


def zipf(n_token: int) -> np.ndarray:
    return (1e7 / np.arange(1, n_token + 1)).astype(int) + 1


def shape(n_token: int, **sizes: int) -> ModelConfig:
    return ModelConfig(n_token=n_token, **{"d_model": 64, "d_embed": 64, "div_val": 1, **sizes})


@pytest.mark.parametrize("sizes", [{}, {"div_val": 2}, {"d_embed": 32}], ids=str)
def test_no_other_cutoffs_of_the_grid_cost_less(sizes: dict[str, int]) -> None:
    counts, config = zipf(2000), shape(2000, **sizes)
    cost = functools.partial(products_per_token, counts, config=config)
    others = [c for n in range(4) for c in combinations(range(100, 2000, 100), n)]
    assert cost(best_cutoffs(counts, config)) <= min(map(cost, others)) * 1.01


def test_products_are_counted_as_the_softmax_computes_them() -> None:
    counts, config = np.array([6, 2, 1, 1]), shape(4, d_model=8, d_embed=4, div_val=2)
    head, tail = 4 * (2 + 1) + 4 * 8, 2 * 2 + 2 * 8
    assert products_per_token(counts, (2,), config) == pytest.approx(head + 0.2 * tail)


def test_a_small_vocabulary_needs_no_cutoffs_and_clusters_are_not_too_narrow() -> None:
    assert best_cutoffs(zipf(90), shape(90)) == ()
    assert len(best_cutoffs(zipf(200_000), shape(200_000, div_val=4))) == 1
