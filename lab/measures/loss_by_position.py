"""Loss by position in the segment, and by distance from the start of the document, in logarithmic
bins.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl.config import Context
from txl.evaluation.reading import Segments, of_counted
from txl.runtime.distributed import Ranks


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


class LossByPosition:
    """Accumulates nats by the target's position during an evaluation.

        watch = LossByPosition(context, n_token=len(ids), starts=starts)
        score = evaluate(model, watch.segments(stream, stream.first_B), context, observe=watch.add)

    The bins of each table sum to the score's nats and tokens.

    Args:
        context: of the evaluation.
        n_token: length of the text.
        starts: indices where documents start; text before the first counts as a document. None: no
            table by distance.
    """

    def __init__(
        self, context: Context, *, n_token: int, starts: Sequence[int] | np.ndarray | None
    ) -> None:
        self._tgt_len = context.tgt_len
        self._edges = {"position": log_edges(min(context.tgt_len, n_token) - 1)}
        self._starts: Tensor | None = None
        if starts is not None:
            begins = np.union1d(starts, [0])
            self._starts = torch.from_numpy(begins)
            self._edges["distance"] = log_edges(int(np.diff(begins, append=n_token).max()) - 1)
        self._sums: dict[str, Tensor] = {}
        self._counts = {}
        for name, edges in self._edges.items():
            self._counts[name] = torch.zeros(len(edges) - 1, dtype=torch.int64)
        self._bins_N: deque[dict[str, Tensor]] = deque()

    def segments(self, segments: Segments, first_B: np.ndarray) -> Segments:
        """The same segments, with their bins noted in passing.

        Row b starts at token first_B[b] of the text.
        """
        for k, segment in enumerate(segments):
            _, target_BT, counted_BT = segment
            values = {"position": torch.arange(target_BT.shape[1]).expand_as(target_BT)}
            if self._starts is not None:
                place_BT = (
                    torch.from_numpy(first_B)[:, None] + k * self._tgt_len + values["position"] + 1
                )
                values["distance"] = place_BT - self._starts[bin_of(place_BT, self._starts)]
            counted = {}
            for name, value_BT in values.items():
                counted[name] = of_counted(value_BT, counted_BT)
            self._bins_N.append(
                {name: bin_of(value_N, self._edges[name]) for name, value_N in counted.items()}
            )
            yield segment

    def add(self, nll_N: Tensor) -> None:
        """Add the nats of the next segment's scored targets, row by row."""
        for name, bin_N in self._bins_N.popleft().items():
            count_K = self._counts[name]
            zeros_K = nll_N.new_zeros(len(count_K), dtype=torch.float64)
            sums_K = self._sums.setdefault(name, zeros_K)
            sums_K += zeros_K.index_add(0, bin_N.to(nll_N.device), nll_N.double())
            count_K += bin_N.bincount(minlength=len(count_K))

    def over(self, ranks: Ranks) -> dict[str, BinnedLoss]:
        """The tables of all ranks together: `position` in the segment, from 0; `distance` from the
        document's first token, which has distance 0.
        """
        mine = {}
        for name, n_K in self._counts.items():
            mine[name] = (self._sums.get(name, torch.zeros(len(n_K))).cpu(), n_K)
        shares = ranks.gathered(mine)
        found = {}
        for name, edges in self._edges.items():
            nats, counts = zip(*(share[name] for share in shares), strict=True)
            found[name] = BinnedLoss(
                edges, *(torch.stack(parts).sum(0).tolist() for parts in (nats, counts))
            )
        return found


_PER_OCTAVE = 2


def log_edges(longest: int) -> list[int]:
    """Bin edges for distances 0 ... longest: 0 1 2 3 4 6 8 11 16 ..., one more than there are bins.

    Two bins per octave; below 4 each distance has its own bin. Only the last bin depends on
    `longest`.
    """
    n = _PER_OCTAVE * int(longest + 1).bit_length()
    places = {round(2 ** (k / _PER_OCTAVE)) for k in range(n + 1)}
    return [0, *sorted(place for place in places if place <= longest), longest + 1]


def spans(edges: list[int]) -> list[tuple[int, int]]:
    """The first and last distance of each bin."""
    return [(begin, end - 1) for begin, end in pairwise(edges)]


def centre(first: int, last: int) -> float:
    """Of a bin on a logarithmic axis, counted from 1."""
    return ((first + 1) * (last + 1)) ** 0.5


def bin_of(distance: Tensor, edges: Sequence[int] | Tensor) -> Tensor:
    """The bin index of each distance, of the same shape, on its device."""
    return torch.bucketize(distance, torch.as_tensor(edges, device=distance.device), right=True) - 1
