"""Words by their ids: the rows of tables, and which ids are in which cluster of a vocabulary."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.ops.numbers import on_gpu
from txl.ops.operator import is_traced

NO_WORD = -1
"""A target that counts for nothing."""


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
        is_own_P: False where a cluster has room for more ids than it has, which counts for nothing;
            None: there are no such places.
        is_lost: True, on the device, if a cluster has no room for one of its ids; None: it has.
    """

    place_P: Tensor
    order_P: Tensor
    lengths: list[int]
    is_own_P: Tensor | None = None
    is_lost: Tensor | None = None

    @property
    def all_count(self) -> bool:
        """False if there are places without an id."""
        return self.is_own_P is None

    def places(self) -> tuple[Tensor, ...]:
        """The indices of each cluster's ids."""
        return self.place_P.split(self.lengths)

    def in_order(self, row_PD: Tensor, n_id: int) -> Tensor:
        """What was computed for the ids, as these stand in the text, (n_id, D)."""
        h_LD = row_PD.new_zeros(n_id, row_PD.shape[1])
        if self.is_own_P is None:
            return h_LD.index_copy(0, self.order_P, row_PD)
        own_PD = row_PD.where(self.is_own_P[:, None], 0)
        return self._marked(h_LD.index_add(0, self.order_P, own_PD))

    def added(self, x_L: Tensor, of_clusters: Sequence[Tensor]) -> Tensor:
        """x, with what was computed for each cluster's ids added where they stand in the text."""
        if not of_clusters:
            return x_L
        more_P = torch.cat([*of_clusters])
        if self.is_own_P is not None:
            more_P = more_P.where(self.is_own_P, 0)
        return self._marked(x_L.index_add(0, self.order_P, more_P))

    def _marked(self, x: Tensor) -> Tensor:
        """NaN if an id was lost."""
        if self.is_lost is None:
            return x
        return x.masked_fill(self.is_lost, torch.nan)


class _Places(NamedTuple):
    """The places of C clusters of words in a room, on a device.

    Attributes:
        first_C1, end_C1: the words of each cluster.
        before_C1: how many places there are before its first.
        most_C1: how many it has.
        cluster_P: of each place its cluster.
        rank_P: of each place its number within the cluster.
        lengths: most_C1 as Python's numbers.
    """

    first_C1: Tensor
    end_C1: Tensor
    before_C1: Tensor
    most_C1: Tensor
    cluster_P: Tensor
    rank_P: Tensor
    lengths: list[int]


@dataclass(frozen=True)
class Room:
    """How many ids of a text each cluster of a vocabulary has room for, the shortlist first.

    Attributes:
        sizes: words of the clusters.
        at_most: ids of each cluster.
    """

    sizes: Sequence[int]
    at_most: Sequence[int]
    _places: dict[Any, _Places] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, sizes: Sequence[int], shares: Sequence[float], n_id: int) -> "Room":
        """Room for texts of n_id ids, of which each cluster has these shares on average.

        m + 10 sqrt(m) + 16 where m are expected, in multiples of 16. Rare words come together: of
        Wikipedia's they vary by 1.7 sqrt(m), and 1 of 12,801 texts of 6,144 words has more.
        """
        at_most = []
        for share in shares:
            mean = share * n_id
            most = mean + 10 * mean**0.5 + 16
            at_most.append(min(n_id, -int(-most // 16) * 16))
        return cls(sizes, at_most)

    def holds(self, ids: Tensor) -> bool:
        """True if no cluster has more of these ids, which are on the CPU."""
        ends = torch.tensor(self.sizes).cumsum(0)
        cluster_L = torch.bucketize(ids.flatten().contiguous(), ends[:-1], right=True)
        n_C = torch.bincount(cluster_L, minlength=len(self.sizes)).tolist()
        return all(n <= most for n, most in zip(n_C, self.at_most, strict=True))

    def places(self, begin: int, n_id: int, device: torch.device) -> _Places:
        """Those of the clusters from `begin` on, for n_id ids; a recorded update reads them where they
        are.
        """
        key = begin, n_id, device
        if key not in self._places:
            self._places[key] = self._made_places(begin, n_id, device)
        return self._places[key]

    def _made_places(self, begin: int, n_id: int, device: torch.device) -> _Places:
        first_C, end_C, before_C, most_C, cluster_P, rank_P = [], [], [], [], [], []
        word = sum(self.sizes[:begin])
        for c, size in enumerate(self.sizes[begin:]):
            most = min(self.at_most[begin + c], n_id)
            first_C.append(word)
            word += size
            end_C.append(word)
            before_C.append(len(rank_P))
            most_C.append(most)
            cluster_P += [c] * most
            rank_P += range(most)
        found = (first_C, end_C, before_C, most_C, cluster_P, rank_P)
        *each_C, cluster_P, rank_P = (torch.tensor(x, dtype=torch.int64) for x in found)
        each_C1 = [x_C[:, None] for x_C in each_C]
        return _Places(*(x.to(device) for x in (*each_C1, cluster_P, rank_P)), lengths=most_C)


_room = ContextVar[Room | None]("room", default=None)


@contextmanager
def shapes_for_any_ids(room: Room) -> Iterator[None]:
    """Inside, each cluster gets as many ids as it has room for, so that no shape depends on the
    ids, and nothing waits for a device that they are on. If it has more, all that is computed of
    the text is NaN; see `Room.holds`.
    """
    before = _room.set(room)
    try:
        yield
    finally:
        _room.reset(before)


def members(id_L: Tensor, sizes: Sequence[int], device: torch.device) -> Members:
    """The ids of the clusters of these sizes. Synchronises if the ids are on a GPU, but inside
    `shapes_for_any_ids`; of ids on the CPU one copy is made.
    """
    room = _room.get()
    if room is not None:
        return _in_room(to_device(id_L, device), room, 0, empty=0)
    orders, places = _by_cluster(id_L, sizes, 0)
    lengths = [*map(len, orders)]
    place_P, order_P = to_device(torch.cat([*places, *orders]), device).split([len(id_L)] * 2)
    return Members(place_P, order_P, lengths)


def classes_and_members(
    id_L: Tensor, sizes: Sequence[int], device: torch.device
) -> tuple[Tensor, Members]:
    """The class of each id in the head of an adaptive softmax, (L,), which has the words of the
    first cluster and an entry for each other one; and the ids of these others, `NO_WORD` at places
    without one. Copies and synchronises as `members`.
    """
    room = _room.get()
    if room is not None:
        id_L = to_device(id_L, device)
        return _classes(id_L, sizes), _in_room(id_L, room, 1, empty=NO_WORD)
    class_L = id_L.to(torch.int64, copy=True)
    orders, places = _by_cluster(id_L, sizes[1:], sizes[0])
    for c, order in enumerate(orders):
        class_L[order] = sizes[0] + c
    lengths = [*map(len, orders)]
    together = to_device(torch.cat([class_L, *places, *orders]), device)
    class_L, place_P, order_P = together.split([len(id_L), sum(lengths), sum(lengths)])
    return class_L, Members(place_P, order_P, lengths)


def _in_room(id_L: Tensor, room: Room, begin: int, *, empty: int) -> Members:
    """Of the clusters from `begin` on, in operations whose shapes do not depend on the ids. `empty`:
    the index where there is none.
    """
    n_id = len(id_L)
    place = room.places(begin, n_id, id_L.device)
    n_place = len(place.rank_P)
    is_own_CL = (id_L >= place.first_C1) & (id_L < place.end_C1)
    rank_CL = is_own_CL.cumsum(1)  # from 1 on
    count_C1 = rank_CL[:, -1:]
    has_place_CL = is_own_CL & (rank_CL <= place.most_C1)
    slot_CL = (rank_CL + (place.before_C1 - 1)).where(has_place_CL, n_place)
    # a place that stays empty has an id of its own, to which it adds nothing; the last one is spare
    order_P = torch.cat([place.rank_P, slot_CL.new_zeros(1)])
    at_CL = torch.arange(n_id, device=id_L.device).expand_as(slot_CL)
    order_P = order_P.scatter_(0, slot_CL.flatten(), at_CL.flatten())[:-1]
    is_own_P = place.rank_P < count_C1[:, 0].index_select(0, place.cluster_P)
    first_P = place.first_C1[:, 0].index_select(0, place.cluster_P)
    place_P = (id_L.index_select(0, order_P) - first_P).where(is_own_P, empty)
    is_lost = (count_C1 > place.most_C1).any()
    return Members(place_P, order_P, place.lengths, is_own_P, is_lost)


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
        id_L = ctx.saved_tensors[0].flatten()
        drow_LE = drow_LE.flatten(0, -2)
        is_last = not torch.is_grad_enabled()  # else second derivatives need what there was
        if on_gpu(dtable_VE):  # by sorted ids: atomic sums differ from run to run
            put = Tensor.index_put_ if is_last else Tensor.index_put
            return None, put(dtable_VE, (id_L,), drow_LE, accumulate=True)
        add = Tensor.index_add_ if is_last else Tensor.index_add
        return None, add(dtable_VE, 0, id_L, drow_LE)


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
