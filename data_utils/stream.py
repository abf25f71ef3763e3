"""Ids as segments, side by side in a batch: column b of a segment continues column b of the one before."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from .files import DataError


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
        shortest = 3 if varlen else 2  # with varying lengths a last token that stands alone is dropped
        self.columns = columns or slice(0, batch_size)
        self.streams = require_streams(ids, batch_size, shortest=shortest)
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


class RowStream:
    """Rows of a text read side by side, each from a place and to a place of its own; those that are over are filled up.

    Row b reads from token `first_B[b]` on and predicts the tokens after it up to `last_B[b]`; what it predicts counts
    from its segment `n_warmup_B[b]` on. A place below zero is counted from the end of the text.
    """

    def __init__(
        self,
        ids: np.ndarray,
        *,
        first_B: np.ndarray,
        last_B: np.ndarray,
        n_warmup_B: np.ndarray,
        tgt_len: int,
        ext_len: int = 0,
    ) -> None:
        self.ids, self.tgt_len, self.ext_len = ids, tgt_len, ext_len
        self.first_B, self.last_B, self.n_warmup_B = first_B, last_B, n_warmup_B

    def __len__(self) -> int:
        return -(-int(max(self.last_B - self.first_B, default=0)) // self.tgt_len)

    def __iter__(self) -> Iterator[Segment]:
        last_B1 = self.last_B[:, None]
        for k in range(len(self)):
            begin_B1 = self.first_B[:, None] + k * self.tgt_len
            width = int(min(self.tgt_len, (last_B1 - begin_B1).max()))
            context = min(self.ext_len, k * self.tgt_len)
            place_BT = begin_B1 + np.arange(-context, width)
            target_BT = place_BT[:, context:] + 1
            counted_BT = (target_BT <= last_B1) & (k >= self.n_warmup_B[:, None])
            yield Segment(self._at(place_BT), self._at(target_BT), torch.from_numpy(counted_BT))

    def sums(self, sizes: Mapping[str, np.ndarray]) -> Counter[str]:
        """Sums over the targets that count; `sizes` has a number of each token of the text, (N,), by name."""
        first_B = self.first_B + 1 + self.n_warmup_B * self.tgt_len
        counted = [slice(first, last + 1) for first, last in zip(first_B, self.last_B, strict=True)]
        return Counter({name: int(sum(size_N[row].sum() for row in counted)) for name, size_N in sizes.items()})

    def _at(self, place_BT: np.ndarray) -> Tensor:
        inside_BT = place_BT < len(self.ids)
        return _tensor(np.where(inside_BT, self.ids[np.where(inside_BT, place_BT, 0)], 0))


class ScoringStream(RowStream):
    """The text cut so that every token but the first counts exactly once, whatever the batch size.

    The text is one row of segments. Each of the B streams reads the same number of consecutive segments; the first
    stream counts all of its own, every other one reads `n_warmup` segments before those it counts. Where the model sees
    no further than the warm-up reaches, its memory there is what it would be in a single stream, and so is every loss.

    Args:
        batch_size: streams wished for; fewer are used if more would not be faster.
        n_warmup: segments read before the first that counts. See `txl.evaluation.reading.warmup_segments`.
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
        require_a_target(ids)
        last = len(ids) - 1
        n_segment = -(-last // tgt_len)
        # B streams of L segments that overlap by n_warmup cover n_segment = B (L - n_warmup) + n_warmup of them
        length = -(-(n_segment + (batch_size - 1) * n_warmup) // batch_size)
        stride = length - n_warmup
        if stride < 1:
            length = stride = n_segment
        self.batch_size = 1 + max(0, -(-(n_segment - length) // stride))
        row_B = _share(self.batch_size, rank, world)
        first_B = row_B * stride * tgt_len
        super().__init__(
            ids,
            first_B=first_B,
            last_B=np.minimum(last, first_B + length * tgt_len),
            n_warmup_B=np.where(row_B > 0, n_warmup, 0),
            tgt_len=tgt_len,
            ext_len=ext_len,
        )


def equal_streams(
    ids: np.ndarray,
    *,
    batch_size: int,
    tgt_len: int,
    ext_len: int = 0,
    n_warmup: int = 0,
    rank: int = 0,
    world: int = 1,
) -> RowStream:
    """The text cut into batch_size streams of equal length, as others evaluate: what is left over at the end of the
    text, and the first token of each stream, never count.

    With `n_warmup` this is NVIDIA's way (DeepLearningExamples, Transformer-XL, data_utils.py): so many segments of the
    stream before are read first and do not count; before the first stream, those of the last.

    Raises:
        DataError: if the text is too short for so many streams, or the streams are for the warm-up.
    """
    n_step = len(require_streams(ids, batch_size)[0])
    if n_warmup * tgt_len > n_step:
        raise DataError(
            f"--batch_size {batch_size}: streams of {n_step} tokens are too short to warm up on {n_warmup * tgt_len} "
            f"tokens of the stream before; use fewer streams or a smaller --mem_len"
        )
    row_B = _share(batch_size, rank, world)
    return RowStream(
        ids[: batch_size * n_step],
        first_B=row_B * n_step - n_warmup * tgt_len,
        last_B=(row_B + 1) * n_step - 1,
        n_warmup_B=np.full(len(row_B), n_warmup),
        tgt_len=tgt_len,
        ext_len=ext_len,
    )


def document_streams(
    ids: np.ndarray,
    starts: np.ndarray,
    *,
    batch_size: int,
    tgt_len: int,
    ext_len: int = 0,
    rank: int = 0,
    world: int = 1,
) -> list[RowStream]:
    """The documents of a text, batch_size of them side by side, each stream to be read with a fresh memory.

    Every token but the text's first counts once. The first of a document is predicted from the token before it, the
    `<eos>` that ends the document before, and from nothing else. Documents of like length are read together.

    Args:
        starts: places in `ids` where documents begin; what stands before the first of them is a document too.
        rank, world: of the streams, those of one of `world` processes.
    Raises:
        DataError: if there is no token to predict.
    """
    require_a_target(ids)
    begin_D = np.unique(np.append(starts[starts > 0], 1))  # of the tokens that are predicted
    end_D = np.append(begin_D[1:], len(ids))
    longest_first_D = np.argsort(begin_D - end_D, kind="stable")
    lengths = {"batch_size": batch_size, "tgt_len": tgt_len, "ext_len": ext_len}
    first_D, last_D = (places_D[longest_first_D] - 1 for places_D in (begin_D, end_D))
    return _row_streams(ids, first_D, last_D, **lengths)[rank::world]


def window_streams(
    ids: np.ndarray,
    *,
    length: int,
    every: int,
    batch_size: int,
    tgt_len: int,
    ext_len: int = 0,
    rank: int = 0,
    world: int = 1,
) -> list[RowStream]:
    """Windows of `length` tokens, one from every `every`-th token on, batch_size of them side by side, each group to be
    read with a fresh memory.

    Args:
        rank, world: of the groups, those of one of `world` processes.
    """
    last = len(ids) - 1
    first_W = np.arange(0, last, every)
    lengths = {"batch_size": batch_size, "tgt_len": tgt_len, "ext_len": ext_len}
    return _row_streams(ids, first_W, np.minimum(first_W + length, last), **lengths)[rank::world]


def _row_streams(
    ids: np.ndarray, first_R: np.ndarray, last_R: np.ndarray, *, batch_size: int, tgt_len: int, ext_len: int
) -> list[RowStream]:
    """Rows from a place to a place each, all of which count, batch_size of them side by side, in their order."""
    groups = [slice(i, i + batch_size) for i in range(0, len(first_R), batch_size)]
    return [
        RowStream(
            ids,
            first_B=first_R[group],
            last_B=last_R[group],
            n_warmup_B=np.zeros(len(first_R[group]), dtype=np.int64),
            tgt_len=tgt_len,
            ext_len=ext_len,
        )
        for group in groups
    ]


def require_a_target(ids: np.ndarray) -> None:
    """Raise `DataError` unless there is a token with one before it to predict it from."""
    if len(ids) < 2:
        raise DataError(f"a split of {len(ids)} token(s): nothing to predict; it needs at least two tokens")


def require_streams(ids: np.ndarray, batch_size: int, *, shortest: int = 2) -> np.ndarray:
    """The text as batch_size streams of equal length, (B, n_step); what is left over at its end is dropped.

    Raises:
        DataError: if they have fewer than `shortest` tokens.
    """
    n_step = len(ids) // batch_size
    if n_step < shortest:
        raise DataError(
            f"--batch_size {batch_size}: the text of {len(ids)} tokens is too short for so many streams; "
            f"use at most {max(1, len(ids) // shortest)}"
        )
    return rearrange(ids[: batch_size * n_step], "(b t) -> b t", b=batch_size)


def _share(n_row: int, rank: int, world: int) -> np.ndarray:
    """The rows of one of `world` processes."""
    return np.array_split(np.arange(n_row), world)[rank]


def _tensor(ids: np.ndarray) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))
