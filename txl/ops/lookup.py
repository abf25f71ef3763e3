"""Words by their ids: the rows of tables, and which ids are in which cluster of a vocabulary."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.ops.operator import is_traced


def check_ids(ids: Tensor, n_token: int) -> None:
    """Raise `ValueError` if an id is outside the vocabulary."""
    if is_traced():
        return
    # on a GPU this would synchronise in every step; there the kernels' own assertions apply
    if (
        ids.device.type == "cpu"
        and ids.numel()
        and not 0 <= int(ids.min()) <= int(ids.max()) < n_token
    ):
        raise ValueError(
            f"token ids must lie in [0, {n_token}), got {int(ids.min())} to {int(ids.max())}"
        )


def to_device(ids: Tensor, device: torch.device) -> Tensor:
    """Copy to a GPU without synchronisation, which needs pinned memory."""
    if device.type == "cuda" and not ids.is_cuda:
        ids = ids.pin_memory()
    return ids.to(device, non_blocking=True)


class Members(NamedTuple):
    """The ids of a text by cluster, on a device, one cluster after the other.

    Attributes:
        place_P: of each id its index within its cluster.
        order_P: where in the text it stands.
        lengths: how many ids each cluster has.
    """

    place_P: Tensor
    order_P: Tensor
    lengths: list[int]


def members(id_L: Tensor, sizes: Sequence[int], device: torch.device) -> Members:
    """The ids of the clusters of these sizes. Synchronises if the ids are on a GPU; of ids on the
    CPU one copy is made.
    """
    orders, places = _by_cluster(id_L, sizes, 0)
    lengths = [*map(len, orders)]
    place_P, order_P = to_device(torch.cat([*places, *orders]), device).split([len(id_L)] * 2)
    return Members(place_P, order_P, lengths)


def classes_and_members(
    id_L: Tensor, sizes: Sequence[int], device: torch.device
) -> tuple[Tensor, Members]:
    """The class of each id in the head of an adaptive softmax, (L,), which has the words of the
    first cluster and an entry for each other one; and the ids of these others. Copies and
    synchronises as `members`.
    """
    class_L = id_L.to(torch.int64, copy=True)
    orders, places = _by_cluster(id_L, sizes[1:], sizes[0])
    for c, order in enumerate(orders):
        class_L[order] = sizes[0] + c
    lengths = [*map(len, orders)]
    together = to_device(torch.cat([class_L, *places, *orders]), device)
    class_L, place_P, order_P = together.split([len(id_L), sum(lengths), sum(lengths)])
    return class_L, Members(place_P, order_P, lengths)


def _by_cluster(
    id_L: Tensor, sizes: Sequence[int], first: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Of each cluster, the first of which begins at the word `first`: where its ids stand, and
    their indices in it.
    """
    orders = []
    places = []
    for size in sizes:
        order = ((id_L >= first) & (id_L < first + size)).nonzero().squeeze(1)
        orders.append(order)
        places.append(id_L[order] - first)
        first += size
    return orders, places


class _LookUp(torch.autograd.Function):
    """Rows of a table, and the table itself for further use; one gradient for both."""

    @staticmethod
    def forward(id_L: Tensor, table_VE: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return F.embedding(id_L, table_VE), table_VE.view_as(table_VE)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, drow_LE: Tensor, dtable_VE: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        id_L, _ = ctx.saved_tensors
        # the first: for second derivatives
        if torch.is_grad_enabled():
            add = Tensor.index_add
        else:
            add = Tensor.index_add_
        return None, add(dtable_VE, 0, id_L.flatten(), drow_LE.flatten(0, -2))


def look_up(id_L: Tensor, table_VE: Tensor, reused: list[Tensor] | None = None) -> Tensor:
    """Rows of a table, (..., E).

    Args:
        reused: a list that gets the table for a further use. A gradient of that takes up the one of
            the rows in place, which else is as large as the table and almost all zeros.
    """
    if reused is None:
        return F.embedding(id_L, table_VE)
    row_LE, same_VE = _LookUp.apply(id_L, table_VE)
    reused.append(same_VE)
    return row_LE
