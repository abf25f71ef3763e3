"""Tensors with one row a stream."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def not_finite_in(tensor: Tensor, row_B: Tensor) -> Tensor:
    """True where a tensor of rows is not finite, in the rows where `row_B` is True."""
    return ~tensor.isfinite() & per_row(row_B, tensor)


def per_row(row_B: Tensor, tensor: Tensor) -> Tensor:
    """One number a row, in the shape in which it is broadcast over all that a tensor holds of the row."""
    return row_B.view(-1, *[1] * (tensor.ndim - 1))


def of_rows(tensor: Tensor) -> Tensor:
    """All that a tensor holds of each row, (B, X), also of one with a single number a row."""
    return tensor[..., None].flatten(1)


def rows_joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of several tensors. Zeros stand first in those that are shorter along the second axis."""
    longest = max(part.shape[1] if part.ndim > 1 else 0 for part in parts)
    return torch.cat([F.pad(x, (0, 0) * (x.ndim - 2) + (longest - x.shape[1], 0)) if x.ndim > 1 else x for x in parts])


def require_joinable(memories: Sequence[Mapping[str, Tensor]]) -> None:
    """Raise `ValueError` unless the rows of memories, see `Memory.named`, can stand in one.

    Rows that hold less than others are filled with zeros, which only states with an age tell from what is remembered.
    """
    if not memories:
        raise ValueError("no memories to join: give at least one")
    names = memories[0].keys()
    if any(tensors.keys() != names for tensors in memories):
        raise ValueError("memories of different models: give those of one")
    for name in names:
        layer, _, kept = name.partition(".")
        shapes = sorted({tuple(tensors[name].shape[1:]) for tensors in memories})
        if len(shapes) == 1 or f"{layer}.age" in names:
            continue
        axis = next(i for i, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1)
        sizes = sorted({shape[axis] for shape in shapes})
        what = f"states ({kept})" if kept else "steps"
        raise ValueError(f"memories of {' and '.join(map(str, sizes))} {what}: give memories of one length")
