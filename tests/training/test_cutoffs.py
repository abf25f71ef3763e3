"""Cutoffs of the adaptive softmax from the frequencies."""

from itertools import combinations

import numpy as np
import pytest

from txl.config import ModelConfig
from txl.model.cutoffs import best_cutoffs, products_per_token


def zipf(n_token: int) -> np.ndarray:
    return (1e7 / np.arange(1, n_token + 1)).astype(int) + 1


def shape(n_token: int, **sizes: int) -> ModelConfig:
    return ModelConfig(n_token=n_token, **{"d_model": 64, "d_embed": 64, "div_val": 1, **sizes})


@pytest.mark.parametrize("sizes", [{}, {"div_val": 2}, {"d_embed": 32}], ids=str)
def test_no_other_cutoffs_of_the_grid_cost_less(sizes: dict[str, int]) -> None:
    counts, config = zipf(2000), shape(2000, **sizes)
    found = best_cutoffs(counts, config)
    grid = [*range(100, 2000, 100)]
    others = [c for n in range(4) for c in combinations(grid, n)]
    assert (
        products_per_token(counts, found, config) <= min(products_per_token(counts, c, config) for c in others) * 1.01
    )


def test_products_are_counted_as_the_softmax_computes_them() -> None:
    counts, config = np.array([6, 2, 1, 1]), shape(4, d_model=8, d_embed=4, div_val=2)
    head, tail = 4 * (2 + 1) + 4 * 8, 2 * 2 + 2 * 8
    assert products_per_token(counts, (2,), config) == pytest.approx(head + 0.2 * tail)


def test_a_small_vocabulary_needs_no_cutoffs() -> None:
    assert best_cutoffs(zipf(90), shape(90)) == ()


def test_clusters_are_not_made_too_narrow() -> None:
    assert len(best_cutoffs(zipf(200_000), shape(200_000, div_val=4))) == 1
