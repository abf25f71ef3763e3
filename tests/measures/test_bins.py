"""Logarithmic bins cover every distance once."""

import numpy as np
import pytest
import torch

from txl.evaluation.measures.bins import bin_of, log_edges, spans


@pytest.mark.parametrize("longest", [0, 1, 2, 3, 7, 8, 9, 63, 64, 703, 100_000])
def test_every_distance_falls_in_the_bin_that_names_it(longest: int) -> None:
    edges = log_edges(longest)
    distance = np.unique(np.minimum(np.geomspace(1, longest + 1, 500).astype(int) - 1, longest))
    bins = bin_of(torch.from_numpy(distance), edges).tolist()
    assert all(
        spans(edges)[k][0] <= d <= spans(edges)[k][1] for d, k in zip(distance, bins, strict=True)
    )
    assert edges == sorted(set(edges))
    assert (edges[0], edges[-1]) == (0, longest + 1)


def test_bins_grow_by_the_root_of_two() -> None:
    assert log_edges(40) == [0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 41]


def test_bins_of_shorter_distances_are_the_same_but_for_the_last() -> None:
    assert log_edges(1000)[: len(log_edges(70)) - 1] == log_edges(70)[:-1]
