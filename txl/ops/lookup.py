"""Words by their ids: the rows of tables, and which ids are in which cluster of a vocabulary."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
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
        is_own_P: False for an id of another cluster, which counts for nothing; None: there are no
            such ids.
    """

    place_P: Tensor
    order_P: Tensor
    lengths: list[int]
    is_own_P: Tensor | None = None

    @property
    def all_count(self) -> bool:
        """False if there are ids of other clusters."""
        return self.is_own_P is None

    def places(self) -> tuple[Tensor, ...]:
        """The indices of each cluster's ids."""
        return self.place_P.split(self.lengths)

    def in_order(self, row_PD: Tensor, n_id: int) -> Tensor:
        """What was computed for the ids, as these stand in the text, (n_id, D)."""
        h_LD = row_PD.new_zeros(n_id, row_PD.shape[1])
        if self.is_own_P is None:
            return h_LD.index_copy(0, self.order_P, row_PD)
        return h_LD.index_add(0, self.order_P, row_PD.where(self.is_own_P[:, None], 0))

    def added(self, x_L: Tensor, of_clusters: Sequence[Tensor]) -> Tensor:
        """x, with what was computed for each cluster's ids added where they stand in the text."""
        if not of_clusters:
            return x_L
        more_P = torch.cat([*of_clusters])
        if self.is_own_P is not None:
            more_P = more_P.where(self.is_own_P, 0)
        return x_L.index_add(0, self.order_P, more_P)


_all_in_each_cluster = ContextVar("all_in_each_cluster", default=False)


@contextmanager
def shapes_for_any_ids() -> Iterator[None]:
    """Inside, each cluster gets all ids, of which those of others do not count, so that no shape
    depends on the ids, and nothing waits for a device that they are on.
    """
    before = _all_in_each_cluster.set(True)
    try:
        yield
    finally:
        _all_in_each_cluster.reset(before)


def members(id_L: Tensor, sizes: Sequence[int], device: torch.device) -> Members:
    """The ids of the clusters of these sizes. Synchronises if the ids are on a GPU, but inside
    `shapes_for_any_ids`; of ids on the CPU one copy is made.
    """
    if _all_in_each_cluster.get():
        return _all_in_each(to_device(id_L, device), sizes, 0)
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
    if _all_in_each_cluster.get():
        id_L = to_device(id_L, device)
        return _classes(id_L, sizes), _all_in_each(id_L, sizes[1:], sizes[0])
    class_L = id_L.to(torch.int64, copy=True)
    orders, places = _by_cluster(id_L, sizes[1:], sizes[0])
    for c, order in enumerate(orders):
        class_L[order] = sizes[0] + c
    lengths = [*map(len, orders)]
    together = to_device(torch.cat([class_L, *places, *orders]), device)
    class_L, place_P, order_P = together.split([len(id_L), sum(lengths), sum(lengths)])
    return class_L, Members(place_P, order_P, lengths)


def _all_in_each(id_L: Tensor, sizes: Sequence[int], first: int) -> Members:
    """Of clusters, the first of which begins at the word `first`, in operations of which none
    depends on the ids.
    """
    at_L = torch.arange(len(id_L), device=id_L.device)
    places = [id_L[:0]]
    are_own = [id_L[:0].bool()]
    for size in sizes:
        place_L = id_L - first
        inside_L = place_L.clamp(0, size - 1)
        places.append(inside_L)
        are_own.append(inside_L == place_L)
        first += size
    lengths = [len(id_L)] * len(sizes)
    return Members(torch.cat(places), at_L.repeat(len(sizes)), lengths, torch.cat(are_own))


def _classes(id_L: Tensor, sizes: Sequence[int]) -> Tensor:
    """See `classes_and_members`."""
    class_L = id_L.clamp(max=sizes[0])
    border = sizes[0]
    for size in sizes[1:-1]:
        border += size
        class_L = class_L + (id_L >= border)
    return class_L


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
