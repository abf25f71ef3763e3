"""Sinusoids of distances, made once."""

from typing import Any

import torch
from torch import Tensor

from txl.ops.numbers import sinusoid


class Sinusoids:
    """Rows of a table, which grows with the longest span that is read.

    A recorded update reads the table where it was, so former ones are kept: each has at least twice
    the rows of the one before.

    Args:
        dim: columns.
    """

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._tables: dict[Any, list[Tensor]] = {}

    def __reduce__(self) -> Any:
        """Copies and files are without the tables."""
        return Sinusoids, (self._dim,)

    def __call__(self, n_key: int, like: Tensor, *, clamp_len: int = -1) -> Tensor:
        """Those of the distances n_key - 1, ..., 1, 0, (S, D); see `sinusoid`. `clamp_len`: larger
        ones count as this one.
        """
        if 0 < clamp_len < n_key - 1:
            rows_SD = self(clamp_len + 1, like)
            return torch.cat([rows_SD[:1].expand(n_key - len(rows_SD), -1), rows_SD])
        tables = self._tables.setdefault((like.device, like.dtype), [])
        if not tables or len(tables[-1]) < n_key:
            n_row = max(n_key, 2 * len(tables[-1]) if tables else 0)
            with torch.inference_mode(False):  # training may need what evaluation has made
                distance_S = torch.arange(n_row - 1, -1, -1, device=like.device)
                tables.append(sinusoid(distance_S, self._dim, like.dtype))
        return tables[-1][-n_key:]
