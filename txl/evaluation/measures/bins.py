"""Logarithmic bins of distances."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

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


def bin_of(distance: Tensor, edges: Sequence[int] | Tensor) -> Tensor:
    """The bin index of each distance, of the same shape, on its device."""
    return torch.bucketize(distance, torch.as_tensor(edges, device=distance.device), right=True) - 1
