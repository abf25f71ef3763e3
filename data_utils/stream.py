"""Token ids cut into segments. Row b of a segment continues row b of the one before."""

from collections.abc import Iterator
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from .raw_text import DataError


class Segment(NamedTuple):
    """A segment of B streams. The target is the input shifted by one token.

    With `ext_len` the input begins up to ext_len tokens earlier than the target.
    `counted_BT` says which targets count; None: all of them.
    """

    input_BT: Tensor
    target_BT: Tensor
    counted_BT: Tensor | None = None


class TrainingSegment(NamedTuple):
    """A segment of B streams to train on.

    `since_BT` says how many tokens before each input token belong to the same document; None: the text is one.
    """

    input_BT: Tensor
    target_BT: Tensor
    since_BT: Tensor | None = None


class SegmentStream:
    """The text cut into batch_size streams of equal length, and those into segments, for training.

    As kimiyoung/transformer-xl's LMOrderedIterator: the remainder of the text is dropped, and the first token of each
    stream is never predicted. A resumed run can start at any segment of any epoch.

    Args:
        columns: the streams to yield, of all batch_size; None: all. Streams do not depend on which are asked for.
        start: tokens of each stream to skip.
        varlen: draw segment lengths as the original does: around tgt_len, one in twenty around half of it, with a
            standard deviation of 5, at least 5 and at most tgt_len + 15. Each epoch draws its own.
        starts: indices of the tokens that begin a document, or None. The first token of a document is predicted from
            the token before it, which counts as its own, and nothing else.
        roll: in every epoch each stream is rotated by its own random number of tokens, as in NVIDIA's code.
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
        starts: np.ndarray | None = None,
        seed: int = 0,
    ) -> None:
        shortest = 3 if varlen else 2  # with varying lengths a single last token is dropped
        self.columns = columns or slice(0, batch_size)
        self.streams = require_streams(ids, batch_size, shortest=shortest)
        self.tgt_len, self.ext_len, self.start = tgt_len, ext_len, start
        self.varlen, self.roll, self.seed = varlen, roll, seed
        self.begins = None if starts is None else np.unique(np.append(starts[starts > 0] - 1, 0))

    def __len__(self) -> int:
        """Segments of the first epoch; those of others differ with `varlen`."""
        return sum(1 for _ in self._cuts(1))

    def __iter__(self) -> Iterator[TrainingSegment]:
        return self.epoch(1)

    def epoch(self, epoch: int, *, first: int = 0) -> Iterator[TrainingSegment]:
        """The segments of an epoch, counted from 1, from segment `first` on."""
        n_stream, n_step = self.streams.shape
        shifts_B = np.zeros(n_stream, dtype=np.int64)
        if self.roll:
            shifts_B = np.random.default_rng([self.seed, epoch]).integers(0, n_step, n_stream)
        for begin, end in islice(self._cuts(epoch), first, None):
            first_read = max(0, begin - self.ext_len)
            at_BT = (np.arange(first_read, end + 1) - shifts_B[self.columns, None]) % n_step  # in the stream
            id_BT = np.take_along_axis(self.streams[self.columns], at_BT, axis=1)
            target_BT = id_BT[:, begin + 1 - first_read :]
            yield TrainingSegment(as_tensor(id_BT[:, :-1]), as_tensor(target_BT), self._since(at_BT[:, :-1]))

    def _since(self, at_BT: np.ndarray) -> Tensor | None:
        """Of the tokens at these places of their streams; see `TrainingSegment`."""
        if self.begins is None:
            return None
        n_stream, n_step = self.streams.shape
        index_BT = np.arange(n_stream)[self.columns, None] * n_step + at_BT  # in the text
        since_BT = index_BT - self.begins[np.searchsorted(self.begins, index_BT, side="right") - 1]
        return as_tensor(np.minimum(since_BT, at_BT))  # before a stream's first token there is none

    def _cuts(self, epoch: int) -> Iterator[tuple[int, int]]:
        """Begin and end of each segment."""
        last = self.streams.shape[1] - 1
        lengths = _varying_lengths(self.tgt_len, draws_of(epoch, self.seed)) if self.varlen else repeat(self.tgt_len)
        begin = self.start
        while begin < last - self.varlen:
            end = min(begin + next(lengths), last)
            yield begin, end
            begin = end


def draws_of(epoch: int, seed: int) -> np.random.RandomState:
    """What is drawn in an epoch, counted from 1; in the first as in the 2019 code."""
    return np.random.RandomState(seed if epoch == 1 else [seed, epoch])


def _varying_lengths(tgt_len: int, draws: np.random.RandomState) -> Iterator[int]:
    while True:
        mean = tgt_len if draws.random_sample() < 0.95 else tgt_len / 2.0
        yield min(tgt_len + 15, max(5, int(draws.normal(mean, 5))))


def require_streams(ids: np.ndarray, batch_size: int, *, shortest: int = 2) -> np.ndarray:
    """The text as batch_size streams of equal length, (B, n_step); the remainder is dropped. Raises `DataError` if they
    have fewer than `shortest` tokens."""
    n_step = len(ids) // batch_size
    if n_step < shortest:
        short = f"the text of {len(ids)} tokens is too short for so many streams"
        raise DataError(f"--batch_size {batch_size}: {short}; use at most {max(1, len(ids) // shortest)}")
    return rearrange(ids[: batch_size * n_step], "(b t) -> b t", b=batch_size)


def as_tensor(ids: np.ndarray) -> Tensor:
    """Token ids as int64, which embeddings need."""
    return torch.from_numpy(ids.astype(np.int64))
