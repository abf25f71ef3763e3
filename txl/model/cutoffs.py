"""Cutoffs of the adaptive softmax from the frequencies of the words."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from txl.config import ModelConfig

MOST_CUTOFFS = 3
_N_CANDIDATE = 200
_NARROWEST = 8
"""The smallest width of a cluster's embedding; narrower ones tell too few words apart."""


def products_per_token(counts_V: np.ndarray, cutoffs: Sequence[int], config: ModelConfig) -> float:
    """Expected multiplications per token of the softmax, projections included, with these cutoffs.

    Every token needs the head: the shortlist and an entry per tail cluster. A token of a tail
    cluster needs that too.

    Args:
        counts_V: how often each word of the vocabulary occurs.
    """
    sum_V1 = np.append(0, np.cumsum(counts_V)) / max(1, int(counts_V.sum()))
    costs = []
    for i, (begin, end) in enumerate(pairwise((0, *cutoffs, len(counts_V)))):
        costs.append(
            _cost(config, i, np.array(end - begin + len(cutoffs) * (i == 0)))
            * (1.0 if i == 0 else sum_V1[end] - sum_V1[begin])
        )
    return float(sum(costs))


def best_cutoffs(counts_V: np.ndarray, config: ModelConfig) -> tuple[int, ...]:
    """The cutoffs, at most three and none for small vocabularies, with the fewest products per
    token.

    Ranks are looked at on a grid that is finer at the frequent end.
    """
    n_token = len(counts_V)
    grid = np.unique(np.geomspace(min(100, n_token), n_token, _N_CANDIDATE).round(-1).astype(int))
    grid = grid[(grid > 0) & (grid < n_token)]
    sum_G = np.append(np.append(0, np.cumsum(counts_V))[grid] / max(1, int(counts_V.sum())), 1.0)
    rank_G = np.append(grid, n_token)
    best = products_per_token(counts_V, (), config)
    found = ()
    for n_cutoff in range(1, MOST_CUTOFFS + 1):
        if config.d_embed // config.div_val**n_cutoff < _NARROWEST:
            break
        # cost_G[g]: least cost of the clusters so far, the last of which ends at rank_G[g]
        cost_G = _cost(config, 0, rank_G + n_cutoff)
        paths = []
        for i in range(1, n_cutoff + 1):
            share_GG = sum_G[None] - sum_G[:, None]
            step_GG = cost_G[:, None] + share_GG * _cost(config, i, rank_G[None] - rank_G[:, None])
            step_GG[np.tril_indices(len(rank_G))] = np.inf
            paths.append(step_GG.argmin(0))
            cost_G = step_GG.min(0)
        if cost_G[-1] < best:
            g = len(rank_G) - 1
            places = []
            for path in reversed(paths):
                places.append(g := int(path[g]))
            best = float(cost_G[-1])
            found = tuple(int(rank_G[g]) for g in reversed(places))
    return found


def _cost(config: ModelConfig, i: int, n_class: np.ndarray) -> np.ndarray:
    """Products of one token in cluster i of `n_class` classes."""
    width = config.d_embed // config.div_val**i
    has_projection = config.div_val > 1 or config.d_embed != config.d_model
    return width * n_class + (width * config.d_model if has_projection else 0)
