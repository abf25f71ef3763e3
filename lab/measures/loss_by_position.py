"""Loss by position in the segment, and by distance from the start of the document, in logarithmic
bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from txl.evaluation.measures.bins import log_edges, spans
from txl.evaluation.measures.token_losses import TokenLosses


@dataclass(frozen=True)
class BinnedLoss:
    """Nats and tokens in bins of a distance.

    Attributes:
        edges: see `log_edges`.
        nats_K, tokens_K: sums over the tokens of each bin.
    """

    edges: list[int]
    nats_K: list[float]
    tokens_K: list[int]

    def as_dicts(self) -> list[dict[str, Any]]:
        """JSON-ready, one per non-empty bin; `from` and `to` are inclusive."""
        rows = zip(spans(self.edges), self.nats_K, self.tokens_K, strict=True)
        bins = []
        for (first, last), nats, tokens in rows:
            if tokens:
                bins.append(
                    {
                        "from": first,
                        "to": last,
                        "tokens": tokens,
                        "nats": nats,
                        "nats_per_token": nats / tokens,
                    }
                )
        return bins


def losses_by_place(
    losses: TokenLosses, starts: Sequence[int] | np.ndarray | None
) -> dict[str, BinnedLoss]:
    """The nats of a split in bins of the target's place: `position` in the segment, from 0;
    `distance` from the first token of the document, which has distance 0. Each table sums to the
    nats and tokens of the split.

    Args:
        losses: of the text as it is cut into segments, in its order.
        starts: indices where documents start; text before the first counts as a document. None: no
            table by distance.
    """
    n_token = len(losses.ids_N)
    place_N = np.flatnonzero(losses.visible_N)
    nats_N = losses.nats_N[place_N].astype(np.float64)
    edges = {"position": log_edges(min(losses.context["tgt_len"], n_token) - 1)}
    values = {"position": losses.visible_N[place_N] - 1}
    if starts is not None:
        begins = np.union1d(starts, [0])
        edges["distance"] = log_edges(int(np.diff(begins, append=n_token).max()) - 1)
        values["distance"] = place_N - begins[np.searchsorted(begins, place_N, side="right") - 1]
    found = {}
    for name, value_N in values.items():
        bin_N = np.searchsorted(edges[name], value_N, side="right") - 1
        n_bin = len(edges[name]) - 1
        nats_K = np.bincount(bin_N, weights=nats_N, minlength=n_bin)
        tokens_K = np.bincount(bin_N, minlength=n_bin)
        found[name] = BinnedLoss(edges[name], nats_K.tolist(), tokens_K.tolist())
    return found


def centre(first: int, last: int) -> float:
    """Of a bin on a logarithmic axis, counted from 1."""
    return ((first + 1) * (last + 1)) ** 0.5
