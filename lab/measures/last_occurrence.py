"""Losses of tokens by where their last occurrence lies and how often the training text has them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from txl.config import require
from txl.evaluation.measures.token_losses import TokenLosses

PLACES = ("segment", "memory", "beyond", "never")
"""Where the last occurrence lies, as seen from a token: among the tokens of its own segment that it
is predicted from; among the mem_len tokens before them; before these; nowhere in the split.
"""


class Cell(NamedTuple):
    """The scored tokens of one place and one range of frequencies.

    Attributes:
        first, last: the range, occurrences in the training text, inclusive; `last` is None in the
        last one.
    """

    place: str
    first: int
    last: int | None
    tokens: int
    nats: float


def distance_to_last(ids_N: np.ndarray) -> np.ndarray:
    """How many tokens back each token stood last, (N,); 0: it has not stood before."""
    ids_N = np.asarray(ids_N)
    order_N = np.argsort(ids_N, kind="stable")
    is_same_N = np.zeros(len(ids_N), dtype=bool)
    is_same_N[1:] = ids_N[order_N][1:] == ids_N[order_N][:-1]
    distance_N = np.zeros(len(ids_N), dtype=np.int64)
    distance_N[order_N[is_same_N]] = order_N[is_same_N] - order_N[np.flatnonzero(is_same_N) - 1]
    return distance_N


def places(losses: TokenLosses) -> np.ndarray:
    """The index in `PLACES` of each token, (N,); -1 of those that were not scored.

    A token of which v tokens of its segment are visible sees those at distances 1 to v, and those
    at v + 1 to v + mem_len in the memory. Deeper layers know of more: what is remembered was
    computed with a memory, too.

    Raises:
        UsageError: if what a token sees does not end where its segment and memory do.
    """
    context = losses.context
    reset = losses.how.get("reset", "never")
    for name, value, plain in (
        ("same_length", context["same_length"], False),
        ("ext_len", context["ext_len"], 0),
        ("reset", reset, "never"),
        ("added", losses.added, ""),
    ):
        require(
            value == plain,
            f"--{name} {value}: what a token sees is not its segment and mem_len tokens; drop it",
        )
    distance_N = distance_to_last(losses.ids_N)
    visible_N = losses.visible_N
    edges = [distance_N <= visible_N, distance_N <= visible_N + context["mem_len"]]
    place_N = np.select([distance_N == 0, *edges], [3, 0, 1], default=2)
    return np.where(visible_N > 0, place_N, -1)


def frequency_edges(counts_V: np.ndarray) -> list[int]:
    """The lowest counts of the ranges 0, 1-9, 10-99, ..., up to that of the most frequent token."""
    return [0, *(10**n for n in range(len(str(int(counts_V.max())))))]


def by_occurrence(
    losses: TokenLosses, place_N: np.ndarray, counts_V: np.ndarray, edges: Sequence[int]
) -> list[Cell]:
    """The sums over the tokens of each place and range of frequencies; empty ones are left out.

    Args:
        place_N: of each token, see `places`; it may be that of another reading of the same tokens.
        counts_V: how often the training text has each token of the vocabulary.
        edges: the lowest counts of the ranges, ascending.
    """
    range_N = np.searchsorted(edges, counts_V[losses.ids_N], side="right") - 1
    lasts = [*(edge - 1 for edge in edges[1:]), None]
    cells = []
    for i, place in enumerate(PLACES):
        for k, (first, last) in enumerate(zip(edges, lasts, strict=True)):
            chosen_N = (place_N == i) & (range_N == k)
            if n_token := int(chosen_N.sum()):
                nats = float(losses.nats_N[chosen_N].sum(dtype=np.float64))
                cells.append(Cell(place, first, last, n_token, nats))
    return cells
