"""Tensors with one row a stream."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def not_finite_in(tensor: Tensor, row_B: Tensor) -> Tensor:
    """True where a tensor of rows is not finite, in the rows where `row_B` is True."""
    return ~tensor.isfinite() & row_B.view(-1, *[1] * (tensor.ndim - 1))


def of_rows(tensor: Tensor) -> Tensor:
    """All that a tensor holds of each row, (B, X), also of one with a single number a row."""
    return tensor[..., None].flatten(1)


def rows_joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of several tensors. Zeros stand first in those that are shorter along the second axis."""
    longest = max(part.shape[1] if part.ndim > 1 else 0 for part in parts)
    return torch.cat([F.pad(x, (0, 0) * (x.ndim - 2) + (longest - x.shape[1], 0)) if x.ndim > 1 else x for x in parts])
