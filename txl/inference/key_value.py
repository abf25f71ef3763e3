"""Projected keys and values of one layer, in buffers that are not copied for a token more."""

from collections.abc import Mapping

import torch
from torch import Tensor

_MAX_EARLY_SPARE = 1024  # spare tokens of a short buffer


class Workspace:
    """Where layers put what they see, one layer after the other: room for that of one."""

    def __init__(self) -> None:
        self._buffer_2BNSH = torch.empty(0)

    def joined(self, kv_2BNMH: Tensor, n_new: int, *, like: Tensor) -> Tensor:
        """These keys and values and room for n_new more, in the dtype of `like`, (2, B, N, M +
        n_new, H).
        """
        n_kept = kv_2BNMH.shape[3]
        shape = (*kv_2BNMH.shape[:3], n_kept + n_new, kv_2BNMH.shape[4])
        if self._buffer_2BNSH.shape != shape or self._buffer_2BNSH.dtype != like.dtype:
            self._buffer_2BNSH = like.new_empty(shape)
        self._buffer_2BNSH[:, :, :, :n_kept] = kv_2BNMH
        return self._buffer_2BNSH


class KeyValue:
    """Projected keys and values of one layer, (B, N, M, H) each, without positions.

    Immutable, unless it is `in_place` or `in_workspace`: `appended` returns a new one. Both are
    views of one buffer, with spare space at the end, so appending a token does not copy the tokens
    before it.

    Attributes:
        extra: what the rule keeps of them besides, by name, one row a stream. Other keys have none,
            see `with_extra`.
    """

    def __init__(
        self,
        buffer_2BNCH: Tensor,
        begin: int,
        end: int,
        used: list[int],
        extra: Mapping[str, Tensor] | None = None,
        *,
        room: int = 0,
        workspace: Workspace | None = None,
        home: "KeyValue | None" = None,
    ) -> None:
        self._buffer_2BNCH = buffer_2BNCH
        self._begin = begin
        self._end = end
        self._used = used  # filled length of the buffer, shared by all its views
        self._room = room  # of a buffer that is used in place; 0: it is not
        self._workspace = workspace  # where others put theirs, too
        self._home = home  # of keys that are in the workspace: what was remembered before
        self.extra = extra or {}

    @classmethod
    def empty(cls, batch_size: int, n_head: int, d_head: int, *, like: Tensor) -> "KeyValue":
        """No keys, in the dtype and on the device of `like`."""
        return cls(like.new_empty(2, batch_size, n_head, 0, d_head), 0, 0, [0])

    @property
    def k_BNMH(self) -> Tensor:
        return self.kv_2BNMH[0]

    @property
    def v_BNMH(self) -> Tensor:
        return self.kv_2BNMH[1]

    @property
    def kv_2BNMH(self) -> Tensor:
        """The keys, then the values."""
        return self._buffer_2BNCH[:, :, :, self._begin : self._end]

    @property
    def length(self) -> int:
        """Remembered tokens."""
        return self._end - self._begin

    @property
    def batch_size(self) -> int:
        return self._buffer_2BNCH.shape[1]

    def appended(self, k_BNTH: Tensor, v_BNTH: Tensor) -> "KeyValue":
        """With the keys and values of T more tokens."""
        longer, new_2BNTH = self._longer(k_BNTH.shape[2], like=k_BNTH)
        new_2BNTH[0], new_2BNTH[1] = k_BNTH, v_BNTH
        return longer

    def appended_both(self, kv_2BNTH: Tensor) -> "KeyValue":
        """`appended` for keys and values that are in one tensor."""
        longer, new_2BNTH = self._longer(kv_2BNTH.shape[3], like=kv_2BNTH)
        new_2BNTH.copy_(kv_2BNTH)
        return longer

    def in_place(self, room: int) -> "KeyValue":
        """The same keys in a buffer of at most `room` tokens. `appended` overwrites forgotten tokens
        there, and makes earlier objects invalid.
        """
        return KeyValue(
            self._buffer_2BNCH, self._begin, self._end, self._used, self.extra, room=room
        )

    def in_workspace(self, workspace: Workspace) -> "KeyValue":
        """The same keys, which `appended` joins with new ones in the workspace: the result is valid
        until another layer uses it, and its `between` overwrites these keys.
        """
        return KeyValue(
            self._buffer_2BNCH, self._begin, self._end, self._used, self.extra, workspace=workspace
        )

    def rows(self, index_B: Tensor) -> "KeyValue":
        """The rows with these indices, which may repeat, in their order: a copy with as much spare
        space.
        """
        extra = {}
        for name, x in self.extra.items():
            extra[name] = x.index_select(0, index_B)
        return KeyValue(
            self._buffer_2BNCH.index_select(1, index_B), self._begin, self._end, [self._end], extra
        )

    def finite_in(self, row_B: Tensor) -> tuple["KeyValue", Tensor]:
        """With zeros for what is not finite in the rows where `row_B` is True, (B,), and in which
        rows that was.
        A copy with as much spare space, or the same one where all is finite.
        """
        index_R = row_B.nonzero()[:, 0]
        was_bad_B = torch.zeros_like(row_B)
        kv_2RNMH = self.kv_2BNMH.index_select(1, index_R)
        extra = {}
        for name, x in self.extra.items():
            extra[name] = x.index_select(0, index_R)
        everything = [kv_2RNMH.transpose(0, 1), *extra.values()]
        bad_R = torch.stack([~x_RX.isfinite().flatten(1).all(1) for x_RX in everything]).any(0)
        if not bool(bad_R.any()):
            return self, was_bad_B
        was_bad_B[index_R] = bad_R
        changed = self.rows(torch.arange(self.batch_size, device=row_B.device))
        changed.kv_2BNMH[:, index_R] = kv_2RNMH.masked_fill(~kv_2RNMH.isfinite(), 0)
        for name, x in extra.items():
            changed.extra[name][index_R] = x.masked_fill(~x.isfinite(), 0)
        return changed, was_bad_B

    def spoiled(self, row_B: Tensor) -> "KeyValue":
        """With NaN in the rows where `row_B` is True, (B,): a copy with as much spare space."""
        changed = self.rows(torch.arange(self.batch_size, device=row_B.device))
        changed.kv_2BNMH[:, row_B] = torch.nan
        for x in changed.extra.values():
            if x.is_floating_point():
                x[row_B] = torch.nan
        return changed

    def replaced(self, kv_2BNMH: Tensor) -> "KeyValue":
        """These keys and values in place of its own, which stay as they are."""
        length = kv_2BNMH.shape[3]
        return KeyValue(kv_2BNMH, 0, length, [length], self.extra)

    def between(self, begin: int, end: int) -> "KeyValue":
        """The keys from `begin` to `end`, exclusive, relative to the first one here."""
        if self._home is not None:
            return self._home._holding(self.kv_2BNMH[:, :, :, begin:end])
        return KeyValue(
            self._buffer_2BNCH, self._begin + begin, self._begin + end, self._used, room=self._room
        )

    def first_and_between(self, n_first: int, begin: int, end: int) -> "KeyValue":
        """The first keys, and behind them those from `begin` to `end`, exclusive: a copy with spare
        space; in a buffer that is used in place the first ones are moved to the others.
        """
        kv_2BNMH = self.kv_2BNMH
        first_2BNAH = kv_2BNMH[:, :, :, :n_first]
        if self._room:
            kv_2BNMH[:, :, :, begin - n_first : begin] = first_2BNAH.clone()
            return self.between(begin - n_first, end)
        if self._home is not None:
            kept = torch.cat([first_2BNAH, kv_2BNMH[:, :, :, begin:end]], dim=3)
            return self._home._holding(kept)
        length = n_first + end - begin
        buffer_2BNCH = self._new_buffer(length, 1, like=self._buffer_2BNCH)
        buffer_2BNCH[:, :, :, :n_first] = first_2BNAH
        buffer_2BNCH[:, :, :, n_first:length] = kv_2BNMH[:, :, :, begin:end]
        return KeyValue(buffer_2BNCH, 0, length, [length])

    def at(self, place_BM: Tensor) -> "KeyValue":
        """The keys at these places, which each row has for itself: a copy with spare space."""
        length = place_BM.shape[1]
        buffer_2BNCH = self._new_buffer(length, 1, like=self._buffer_2BNCH)
        for b, place_M in enumerate(place_BM):
            buffer_2BNCH[:, b, :, :length] = self.kv_2BNMH[:, b].index_select(2, place_M)
        return KeyValue(buffer_2BNCH, 0, length, [length])

    def with_extra(self, extra: Mapping[str, Tensor]) -> "KeyValue":
        """The same keys, with this besides."""
        return KeyValue(self._buffer_2BNCH, self._begin, self._end, self._used, extra)

    def _longer(self, n_new: int, *, like: Tensor) -> tuple["KeyValue", Tensor]:
        """With n_new more tokens, whose keys and values are to be written into
        the second result.
        """
        if self._workspace is not None:
            buffer_2BNSH = self._workspace.joined(self.kv_2BNMH, n_new, like=like)
            end = buffer_2BNSH.shape[3]
            return KeyValue(buffer_2BNSH, 0, end, [end], home=self), buffer_2BNSH[:, :, :, -n_new:]
        here = self._ready_for(n_new, like=like)
        end = here._used[0] = here._end + n_new
        longer = KeyValue(here._buffer_2BNCH, here._begin, end, here._used, room=self._room)
        return longer, here._buffer_2BNCH[:, :, :, here._end : end]

    def _holding(self, kv_2BNMH: Tensor) -> "KeyValue":
        """These keys and values in the place of its own, which are no longer valid."""
        length = kv_2BNMH.shape[3]
        buffer_2BNCH = self._buffer_2BNCH
        if buffer_2BNCH.dtype != kv_2BNMH.dtype or buffer_2BNCH.shape[3] < length:
            buffer_2BNCH = torch.empty_like(kv_2BNMH, memory_format=torch.contiguous_format)
        buffer_2BNCH[:, :, :, :length] = kv_2BNMH
        return KeyValue(buffer_2BNCH, 0, length, [length], workspace=self._workspace)

    def _ready_for(self, n_new: int, *, like: Tensor) -> "KeyValue":
        """These keys with free space behind them: here, at the beginning of the buffer, or in a
        larger one.
        """
        capacity = self._buffer_2BNCH.shape[3]
        is_last = self._end == self._used[0]
        fits = self._buffer_2BNCH.dtype == like.dtype and self.length + n_new <= capacity
        if fits and self._end + n_new <= capacity and (is_last or self._room):
            return self
        if fits and self._room:
            return self._at_the_beginning()
        return self._in_larger_buffer(n_new, like=like)

    def _at_the_beginning(self) -> "KeyValue":
        # no piece may overlap the place that it is copied to
        for begin in range(0, self.length, self._begin):
            end = min(begin + self._begin, self.length)
            here_2BNPH = self._buffer_2BNCH[:, :, :, self._begin + begin : self._begin + end]
            self._buffer_2BNCH[:, :, :, begin:end] = here_2BNPH
        return KeyValue(self._buffer_2BNCH, 0, self.length, [self.length], room=self._room)

    def _in_larger_buffer(self, n_new: int, *, like: Tensor) -> "KeyValue":
        """A copy in a larger buffer."""
        buffer_2BNCH = self._new_buffer(self.length + n_new, n_new, like=like)
        buffer_2BNCH[:, :, :, : self.length] = self.kv_2BNMH
        return KeyValue(buffer_2BNCH, 0, self.length, [self.length], room=self._room)

    def _new_buffer(self, needed: int, n_new: int, *, like: Tensor) -> Tensor:
        """An empty buffer, with spare space in proportion, so that copies are rare."""
        _, batch_size, n_head, _, d_head = self._buffer_2BNCH.shape
        capacity = needed + max(n_new, min(needed, _MAX_EARLY_SPARE), needed // 4)
        # sooner, a text that ends early would take room for nothing
        if 3 * needed >= self._room > 0:
            capacity = max(needed, self._room)
        return like.new_empty(2, batch_size, n_head, capacity, d_head)
