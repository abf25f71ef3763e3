"""Ids as segments, side by side in a batch: column b of a segment continues column b of the one before."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_utils.files import DataError


class Segment(NamedTuple):
    """A piece of B streams. The target is the input one token on.

    With `ext_len` the input begins earlier than the target, by up to ext_len tokens.
    `counted_BT` says which targets count; None: all of them.
    """

    input_BT: Tensor
    target_BT: Tensor
    counted_BT: Tensor | None = None


class SegmentStream:
    """The text cut into batch_size streams of equal length, and those into segments: what training reads.

    As kimiyoung/transformer-xl's LMOrderedIterator: what is left over at the end of the text is dropped, and the first
    token of each stream is never predicted. Iterating begins anew each time.

    Args:
        start: tokens of each stream to pass over.
    Raises:
        DataError: if the text is too short for so many streams.
    """

    def __init__(self, ids: np.ndarray, *, batch_size: int, tgt_len: int, ext_len: int = 0, start: int = 0) -> None:
        n_step = len(ids) // batch_size
        if n_step < 2:
            raise DataError(
                f"--batch_size {batch_size}: the text of {len(ids)} tokens is too short for so many streams; "
                f"use at most {max(1, len(ids) // 2)}"
            )
        self.streams = ids[: batch_size * n_step].reshape(batch_size, n_step)
        self.tgt_len, self.ext_len, self.start = tgt_len, ext_len, start

    def __len__(self) -> int:
        return -(-(self.streams.shape[1] - 1 - self.start) // self.tgt_len)

    def __iter__(self) -> Iterator[Segment]:
        last = self.streams.shape[1] - 1
        for begin in range(self.start, last, self.tgt_len):
            end = min(begin + self.tgt_len, last)
            yield Segment(
                _tensor(self.streams[:, max(0, begin - self.ext_len) : end]),
                _tensor(self.streams[:, begin + 1 : end + 1]),
            )


class ScoringStream:
    """The text cut so that every token but the first counts exactly once, whatever the batch size.

    The text is one row of segments. Each of the B streams reads the same number of consecutive segments; the first
    stream counts all of its own, every other one reads `n_warmup` segments before those it counts. Where the model sees
    no further than the warm-up reaches, its memory there is what it would be in a single stream, and so is every loss.
    Rows that have come to the end of the text are filled with token 0, which does not count.

    Args:
        batch_size: streams wished for; fewer are used if more would not be faster.
        n_warmup: segments read before the first that counts. See `txl.evaluate.warmup_segments`.
    Raises:
        DataError: if there is no token to predict.
    """

    def __init__(self, ids: np.ndarray, *, batch_size: int, tgt_len: int, ext_len: int = 0, n_warmup: int = 0) -> None:
        if len(ids) < 2:
            raise DataError(f"a split of {len(ids)} token(s): nothing to predict; it needs at least two tokens")
        self.ids, self.tgt_len, self.ext_len = ids, tgt_len, ext_len
        n_segment = -(-(len(ids) - 1) // tgt_len)
        # B streams of L segments that overlap by n_warmup cover n_segment = B (L - n_warmup) + n_warmup of them
        length = -(-(n_segment + (batch_size - 1) * n_warmup) // batch_size)
        self.stride = length - n_warmup
        if self.stride < 1:
            length = self.stride = n_segment
        self.n_warmup = n_warmup
        self.length = length
        self.batch_size = 1 + max(0, -(-(n_segment - length) // self.stride))

    @property
    def n_counted(self) -> int:
        """Tokens that count."""
        return len(self.ids) - 1

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Segment]:
        last = len(self.ids) - 1
        first = np.arange(self.batch_size)[:, None] * self.stride * self.tgt_len
        for k in range(self.length):
            begin = first + k * self.tgt_len
            width = int(min(self.tgt_len, (last - begin).max()))
            context = min(self.ext_len, k * self.tgt_len)
            place = begin + np.arange(-context, width)
            target = place[:, context:] + 1
            counted = target <= last
            if k < self.n_warmup:
                counted[1:] = False
            yield Segment(self._at(place), self._at(target), torch.from_numpy(counted))

    def _at(self, place: np.ndarray) -> Tensor:
        inside = place < len(self.ids)
        return _tensor(np.where(inside, self.ids[np.where(inside, place, 0)], 0))


def _tensor(ids: np.ndarray) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))
