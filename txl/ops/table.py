"""Parts of a table of words, whose gradients are written where they belong in that of the table.

Joined by autograd, they would be read and written once more.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from txl.ops.numbers import in_one_piece


class _TableGradient:
    """The gradient of a table, in parts."""

    def __init__(self, table_VE: Tensor, sizes: Sequence[int]) -> None:
        self._like = table_VE
        self._sizes = sizes
        self._whole: Tensor | None = None

    def place(self, i: int) -> Tensor:
        """Where that of a part belongs."""
        if self._whole is None:
            self._whole = torch.empty_like(self._like)
        return self._whole.split(self._sizes)[i]

    def joined(self, grads: Sequence[Tensor]) -> Tensor:
        """The whole, with the parts that came from elsewhere."""
        for i, grad in enumerate(grads):
            place = self.place(i)
            if not (in_one_piece(grad, place) and grad.storage_offset() == place.storage_offset()):
                place.copy_(grad)
        whole, self._whole = self._whole, None
        assert whole is not None
        return whole


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table_VE: Tensor, gradient: _TableGradient) -> tuple[Tensor, ...]:
        ctx.gradient = gradient
        return table_VE.split(gradient._sizes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        if torch.is_grad_enabled():  # for second derivatives
            return torch.cat(grads), None
        return ctx.gradient.joined(grads), None


def split_table(table_VE: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Parts of so many rows. Whoever makes the gradient of one may put it where `take_gradient_place`
    says.
    """
    if not torch.is_grad_enabled() or not table_VE.requires_grad:
        return [*table_VE.split(sizes)]
    gradient = _TableGradient(table_VE, sizes)
    parts: Any = [*_Split.apply(table_VE, gradient)]
    for i, part in enumerate(parts):
        part.gradient_place = partial(gradient.place, i)
    return parts


def take_gradient_place(part_RE: Tensor) -> Callable[[], Tensor] | None:
    """What gives the place for the gradient of a part of a table. None: it is no such part, or the
    place is taken: the gradient of a second use is added by autograd.
    """
    return vars(part_RE).pop("gradient_place", None)
