"""Ids as segments, side by side in a batch: column b of a segment continues column b of the one before."""

from collections.abc import Iterator
from itertools import islice, repeat
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
    token of each stream is never predicted. Any segment of any epoch can be asked for, so that a run can go on.

    Args:
        columns: the streams to yield, of all batch_size; None: all. Streams do not depend on which are asked for.
        start: tokens of each stream to pass over.
        varlen: lengths are drawn around tgt_len as the original draws them: one in twenty around half of it, with a
            standard deviation of 5, at least 5 and at most tgt_len + 15. Each epoch has its own.
        roll: in every epoch each stream is turned by a number of tokens of its own, as in NVIDIA's code.
        seed: what `varlen` and `roll` are drawn from, together with the epoch.
    Raises:
        DataError: if the text is too short for so many streams.
    """

    def __init__(
        self,
        ids: np.ndarray,
        *,
        batch_size: int,
        tgt_len: int,
        ext_len: int = 0,
        columns: slice | None = None,
        start: int = 0,
        varlen: bool = False,
        roll: bool = False,
        seed: int = 0,
    ) -> None:
        n_step = len(ids) // batch_size
        shortest = 3 if varlen else 2  # with varying lengths a last token that stands alone is dropped
        if n_step < shortest:
            raise DataError(
                f"--batch_size {batch_size}: the text of {len(ids)} tokens is too short for so many streams; "
                f"use at most {max(1, len(ids) // shortest)}"
            )
        self.columns = columns or slice(0, batch_size)
        self.streams = ids[: batch_size * n_step].reshape(batch_size, n_step)
        self.tgt_len, self.ext_len, self.start = tgt_len, ext_len, start
        self.varlen, self.roll, self.seed = varlen, roll, seed

    def __len__(self) -> int:
        """Segments of the first epoch; those of others differ with `varlen`."""
        return sum(1 for _ in self._cuts(1))

    def __iter__(self) -> Iterator[Segment]:
        return self.epoch(1)

    def epoch(self, epoch: int, *, first: int = 0) -> Iterator[Segment]:
        """The segments of an epoch, counted from 1, from segment `first` on."""
        streams = self.streams[self.columns]
        if self.roll:
            streams = self._rolled(streams, epoch)
        for begin, end in islice(self._cuts(epoch), first, None):
            yield Segment(
                _tensor(streams[:, max(0, begin - self.ext_len) : end]),
                _tensor(streams[:, begin + 1 : end + 1]),
            )

    def _cuts(self, epoch: int) -> Iterator[tuple[int, int]]:
        """Where each segment begins and ends."""
        last = self.streams.shape[1] - 1
        lengths = _varying_lengths(self.tgt_len, self._draws(epoch)) if self.varlen else repeat(self.tgt_len)
        begin = self.start
        while begin < last - self.varlen:
            end = min(begin + next(lengths), last)
            yield begin, end
            begin = end

    def _draws(self, epoch: int) -> np.random.RandomState:
        return np.random.RandomState(self.seed if epoch == 1 else [self.seed, epoch])

    def _rolled(self, streams: np.ndarray, epoch: int) -> np.ndarray:
        n_stream, n_step = self.streams.shape
        shifts = np.random.default_rng([self.seed, epoch]).integers(0, n_step, n_stream)[self.columns]
        return np.stack([np.roll(stream, shift) for stream, shift in zip(streams, shifts, strict=True)])


def _varying_lengths(tgt_len: int, draws: np.random.RandomState) -> Iterator[int]:
    while True:
        mean = tgt_len if draws.random_sample() < 0.95 else tgt_len / 2.0
        yield min(tgt_len + 15, max(5, int(draws.normal(mean, 5))))


class ScoringStream:
    """The text cut so that every token but the first counts exactly once, whatever the batch size.

    The text is one row of segments. Each of the B streams reads the same number of consecutive segments; the first
    stream counts all of its own, every other one reads `n_warmup` segments before those it counts. Where the model sees
    no further than the warm-up reaches, its memory there is what it would be in a single stream, and so is every loss.
    Rows that have come to the end of the text are filled with token 0, which does not count.

    Args:
        batch_size: streams wished for; fewer are used if more would not be faster.
        n_warmup: segments read before the first that counts. See `txl.evaluate.warmup_segments`.
        rank, world: of the streams, those of one of `world` processes; together they count every token once.
    Raises:
        DataError: if there is no token to predict.
    """

    def __init__(
        self,
        ids: np.ndarray,
        *,
        batch_size: int,
        tgt_len: int,
        ext_len: int = 0,
        n_warmup: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
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
        self.rows = np.array_split(np.arange(self.batch_size), world)[rank]

    def __len__(self) -> int:
        return self.length if len(self.rows) else 0

    def __iter__(self) -> Iterator[Segment]:
        last = len(self.ids) - 1
        first = self.rows[:, None] * self.stride * self.tgt_len
        for k in range(len(self)):
            begin = first + k * self.tgt_len
            width = int(min(self.tgt_len, (last - begin).max()))
            if width < 1:  # all rows of this process have come to the end
                return
            context = min(self.ext_len, k * self.tgt_len)
            place = begin + np.arange(-context, width)
            target = place[:, context:] + 1
            counted = target <= last
            if k < self.n_warmup:
                counted[self.rows > 0] = False
            yield Segment(self._at(place), self._at(target), torch.from_numpy(counted))

    def _at(self, place: np.ndarray) -> Tensor:
        inside = place < len(self.ids)
        return _tensor(np.where(inside, self.ids[np.where(inside, place, 0)], 0))


def _tensor(ids: np.ndarray) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))
