"""Token ids cut into segments, for training and for evaluation. Row b of a segment continues row b
of the one before."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from typing import NamedTuple, Protocol

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from .errors import DataError


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

    `since_BT` says how many tokens before each input token belong to the same document; None: the
    text is one."""

    input_BT: Tensor
    target_BT: Tensor
    since_BT: Tensor | None = None


class SegmentStream:
    """The text cut into batch_size streams of equal length, and those into segments, for training.

    As kimiyoung/transformer-xl's LMOrderedIterator: the remainder of the text is dropped, and the
    first token of each stream is never predicted. A resumed run can start at any segment of any
    epoch.

    Args:
        columns: the streams to yield, of all batch_size; None: all. Streams do not depend on which
            are asked for.
        start: tokens of each stream to skip.
        varlen: draw segment lengths as the original does: around tgt_len, one in twenty around half
            of it, with a standard deviation of 5, at least 5 and at most tgt_len + 15. Each epoch
            draws its own.
        starts: indices of the tokens that begin a document, or None. The first token of a document
            is predicted from the token before it, which counts as its own, and nothing else.
        roll: in every epoch each stream is rotated by its own random number of tokens, as in
            NVIDIA's code.
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
        shortest = 2
        if varlen:  # a single last token is dropped
            shortest = 3
        self.columns = columns or slice(0, batch_size)
        self.streams = require_streams(ids, batch_size, shortest=shortest)
        self.tgt_len = tgt_len
        self.ext_len = ext_len
        self.start = start
        self.varlen = varlen
        self.roll = roll
        self.seed = seed
        self.begins = None
        if starts is not None:
            self.begins = np.unique(np.append(starts[starts > 0] - 1, 0))

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
            at_BT = (
                np.arange(first_read, end + 1) - shifts_B[self.columns, None]
            ) % n_step  # in the stream
            id_BT = np.take_along_axis(self.streams[self.columns], at_BT, axis=1)
            target_BT = id_BT[:, begin + 1 - first_read :]
            yield TrainingSegment(
                as_tensor(id_BT[:, :-1]), as_tensor(target_BT), self._since(at_BT[:, :-1])
            )

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
        lengths = repeat(self.tgt_len)
        if self.varlen:
            lengths = _varying_lengths(self.tgt_len, draws_of(epoch, self.seed))
        begin = self.start
        while begin < last - self.varlen:
            end = min(begin + next(lengths), last)
            yield begin, end
            begin = end


def draws_of(epoch: int, seed: int) -> np.random.RandomState:
    """What is drawn in an epoch, counted from 1; in the first as in the 2019 code."""
    if epoch == 1:
        return np.random.RandomState(seed)
    return np.random.RandomState([seed, epoch])


def _varying_lengths(tgt_len: int, draws: np.random.RandomState) -> Iterator[int]:
    while True:
        mean = tgt_len
        if draws.random_sample() >= 0.95:
            mean = tgt_len / 2.0
        yield min(tgt_len + 15, max(5, int(draws.normal(mean, 5))))


def require_streams(ids: np.ndarray, batch_size: int, *, shortest: int = 2) -> np.ndarray:
    """The text as batch_size streams of equal length, (B, n_step); the remainder is dropped. Raises
    `DataError` if they have fewer than `shortest` tokens."""
    n_step = len(ids) // batch_size
    if n_step < shortest:
        short = f"the text of {len(ids)} tokens is too short for so many streams"
        raise DataError(
            f"--batch_size {batch_size}: {short}; use at most {max(1, len(ids) // shortest)}"
        )
    return rearrange(ids[: batch_size * n_step], "(b t) -> b t", b=batch_size)


def as_tensor(ids: np.ndarray) -> Tensor:
    """Token ids as int64, which embeddings need."""
    return torch.from_numpy(ids.astype(np.int64))


LATE_PARTS = 4
"""Of a segment. A token is late in its segment if it stands in the last of these parts."""


class Cut(NamedTuple):
    """Where the segments of a row end, and which of their targets count.

    Attributes:
        first_len: tokens of the row's first segment; all others have tgt_len.
        n_counted: of the last targets of a whole segment, those that count.
    """

    first_len: int
    n_counted: int


def late_cuts(tgt_len: int) -> list[Cut]:
    """The readings of a row in which each of its targets counts exactly once, late in its segment:
    the borders of segments are shifted by a quarter of a segment each. The first segment of a
    shifted reading is shorter, so that the targets of a row's first tgt_len tokens have all of the
    row before them."""
    n_late = -(-tgt_len // LATE_PARTS)
    shifted = range(n_late, tgt_len, n_late)
    whole = Cut(tgt_len, tgt_len - n_late * len(shifted))
    return [*(Cut(first_len, n_late) for first_len in shifted), whole]


@dataclass(eq=False)
class RowStream:
    """Rows of a text, read side by side in segments. Rows that end earlier than others are padded.

    Row b reads from token `first_B[b]` on and predicts the tokens after it up to `last_B[b]`; its
    targets count after the first `n_warmup_B[b]` times tgt_len. A negative index counts from the
    end of the text.

    Attributes:
        cut: None: all segments have tgt_len tokens, and all their targets count.
    """

    ids: np.ndarray
    first_B: np.ndarray
    last_B: np.ndarray
    n_warmup_B: np.ndarray
    tgt_len: int
    ext_len: int
    cut: Cut | None = None

    def late(self, *, only_shifted: bool = False) -> list["RowStream"]:
        """The same rows in several readings, each with an empty memory, in which every target that
        counts here counts once, late in its segment; see `late_cuts`. In a shifted reading segments
        begin up to tgt_len earlier, for which the rows need one more segment of warmup.

        Args:
            only_shifted: without the reading whose segments are those of these rows.
        """
        cuts = late_cuts(self.tgt_len)
        if only_shifted:
            cuts.pop()
        return [replace(self, cut=cut) for cut in cuts]

    def share(self, rank: int, world: int) -> "RowStream":
        """The rows of one of `world` processes."""
        rows = np.array_split(np.arange(len(self.first_B)), world)[rank]
        return replace(
            self,
            first_B=self.first_B[rows],
            last_B=self.last_B[rows],
            n_warmup_B=self.n_warmup_B[rows],
        )

    def __len__(self) -> int:
        longest = int(max(self.last_B - self.first_B, default=0))
        if not longest:
            return 0
        return -(-(longest + self.tgt_len - self._first_len) // self.tgt_len)

    def __iter__(self) -> Iterator[Segment]:
        last_B1 = self.last_B[:, None]
        n_read = 0
        length = self._first_len
        for _ in range(len(self)):
            begin_B1 = self.first_B[:, None] + n_read
            width = int(min(length, (last_B1 - begin_B1).max()))
            context = min(self.ext_len, n_read)
            index_BT = begin_B1 + np.arange(-context, width)
            target_BT = index_BT[:, context:] + 1
            is_after_warmup_BT = target_BT >= self._first_counted_B[:, None]
            is_late_BT = self._is_late(target_BT - self.first_B[:, None])
            counted_BT = (target_BT <= last_B1) & is_after_warmup_BT & is_late_BT
            yield Segment(self._at(index_BT), self._at(target_BT), torch.from_numpy(counted_BT))
            n_read += length
            length = self.tgt_len

    def sums(self, sizes: Mapping[str, np.ndarray]) -> Counter[str]:
        """Sums over the targets that count. `sizes` has a number for each token of the text, (N,),
        by name."""
        sums = Counter(dict.fromkeys(sizes, 0))
        for begin, first, last in zip(
            self.first_B, self._first_counted_B, self.last_B, strict=True
        ):
            is_late_S = self._is_late(np.arange(first, last + 1) - begin)
            for name, size_N in sizes.items():
                sums[name] += int(size_N[first : last + 1].sum(where=is_late_S))
        return sums

    @property
    def _first_len(self) -> int:
        return self.cut.first_len if self.cut else self.tgt_len

    @property
    def _first_counted_B(self) -> np.ndarray:
        return self.first_B + 1 + self.n_warmup_B * self.tgt_len

    def _is_late(self, nth: np.ndarray) -> np.ndarray:
        """True for the targets that count by their place in the segment; `nth`: 1 for the first
        target of a row."""
        if self.cut is None:
            return np.ones(nth.shape, dtype=bool)
        place = (nth - 1 - self.cut.first_len) % self.tgt_len
        return place >= self.tgt_len - self.cut.n_counted

    def _at(self, index_BT: np.ndarray) -> Tensor:
        inside_BT = index_BT < len(self.ids)
        return as_tensor(np.where(inside_BT, self.ids[np.where(inside_BT, index_BT, 0)], 0))


class CountedRows(Protocol):
    """Rows that an evaluation reads side by side, and what their targets stand for in the text."""

    first_B: np.ndarray

    def __iter__(self) -> Iterator[Segment]: ...

    def __len__(self) -> int: ...

    def sums(self, sizes: Mapping[str, np.ndarray]) -> Counter[str]:
        """Sums over the targets that count. `sizes` has a number for each token of the text, (N,),
        by name."""
        ...


def total_sums(streams: Sequence[CountedRows], sizes: Mapping[str, np.ndarray]) -> Counter[str]:
    """`sums` of several streams together."""
    return sum((stream.sums(sizes) for stream in streams), Counter())


def scoring_stream(
    ids: np.ndarray, *, batch_size: int, tgt_len: int, ext_len: int = 0, n_warmup: int = 0
) -> RowStream:
    """The text cut so that every token but the first counts exactly once, whatever the batch size.

    The text is one row of segments. Each of the B streams reads the same number of consecutive
    segments. The first stream counts all of its segments; the others read `n_warmup` segments
    before those they count. Where the model sees no further than the warmup reaches, its memory
    there equals that of a single stream, and so does every loss.

    Args:
        batch_size: streams wished for; fewer are used if more would not be faster.
        n_warmup: segments read before the first that counts. See
            `txl.evaluation.reading.warmup_segments`.
    Raises:
        DataError: if there is no token to predict.
    """
    _require_a_target(ids)
    last = len(ids) - 1
    n_segment = -(-last // tgt_len)
    # B streams of L segments that overlap by n_warmup cover
    # n_segment = B (L - n_warmup) + n_warmup of them
    length = -(-(n_segment + (batch_size - 1) * n_warmup) // batch_size)
    stride = length - n_warmup
    if stride < 1:
        length = stride = n_segment
    row_B = np.arange(1 + max(0, -(-(n_segment - length) // stride)))
    first_B = row_B * stride * tgt_len
    last_B = np.minimum(last, first_B + length * tgt_len)
    return RowStream(ids, first_B, last_B, np.where(row_B > 0, n_warmup, 0), tgt_len, ext_len)


def equal_streams(
    ids: np.ndarray, *, batch_size: int, tgt_len: int, ext_len: int = 0, n_warmup: int = 0
) -> RowStream:
    """The text cut into batch_size streams of equal length, as other code evaluates. The remainder
    of the text and the first token of each stream never count.

    With `n_warmup` this is NVIDIA's way (DeepLearningExamples, Transformer-XL, data_utils.py): each
    stream first reads that many segments of the stream before it, which do not count; the first
    stream reads those of the last. Raises `DataError` if the text is too short for so many streams,
    or the streams are too short for the warmup."""
    n_step = len(require_streams(ids, batch_size)[0])
    if n_warmup * tgt_len > n_step:
        short = (
            f"streams of {n_step} tokens are too short to warm up on {n_warmup * tgt_len} tokens "
            "of the one before"
        )
        raise DataError(
            f"--batch_size {batch_size}: {short}; use fewer streams or a smaller --mem_len"
        )
    row_B = np.arange(batch_size)
    first_B = row_B * n_step - n_warmup * tgt_len
    last_B = (row_B + 1) * n_step - 1
    return RowStream(
        ids[: batch_size * n_step], first_B, last_B, np.full(batch_size, n_warmup), tgt_len, ext_len
    )


def document_streams(
    ids: np.ndarray, starts: np.ndarray, *, batch_size: int, tgt_len: int, ext_len: int = 0
) -> list[RowStream]:
    """The documents of a text, batch_size of them side by side, each stream to be read with an
    empty memory.

    Every token but the text's first counts once. The first of a document is predicted from the
    token before it, the `<eos>` that ends the document before, and from nothing else. Documents of
    similar length are read together.

    Args:
        starts: indices into `ids` where documents begin. The text before the first of them is a
            document too.
    Raises:
        DataError: if there is no token to predict.
    """
    _require_a_target(ids)
    begin_D = np.unique(np.append(starts[starts > 0], 1))  # of the tokens that are predicted
    end_D = np.append(begin_D[1:], len(ids))
    longest_first_D = np.argsort(begin_D - end_D, kind="stable")
    first_D = begin_D[longest_first_D] - 1
    last_D = end_D[longest_first_D] - 1
    streams = []
    for i in range(0, len(first_D), batch_size):
        first_B = first_D[i : i + batch_size]
        last_B = last_D[i : i + batch_size]
        no_warmup_B = np.zeros_like(first_B)
        streams.append(RowStream(ids, first_B, last_B, no_warmup_B, tgt_len, ext_len))
    return streams


def text_streams(
    ids: np.ndarray,
    *,
    starts: np.ndarray | None = None,
    is_aside: bool = False,
    only_shifted: bool = False,
    n_warmup: int = 0,
    cut: Callable[..., RowStream] = scoring_stream,
    rank: int = 0,
    world: int = 1,
    **lengths: int,
) -> list[RowStream]:
    """One process's share of a text, in streams that are read with a memory each.

    Args:
        starts: where documents begin, each of which is read with an empty memory; None: the text is
            read as one.
        is_aside: each token stands late in its segment.
        only_shifted: of these readings, those whose segments are not those of the text as it is cut
            otherwise.
        n_warmup: segments that must be read before the first that counts.
        cut: `scoring_stream` or `equal_streams`, of a text that is read as one.
        lengths: batch_size, tgt_len and ext_len.
    """
    if starts is not None:
        streams = document_streams(ids, starts, **lengths)[rank::world]
    else:
        if is_aside:  # its segments begin elsewhere
            n_warmup += 1
        streams = [cut(ids, n_warmup=n_warmup, **lengths).share(rank, world)]
    if is_aside:
        late = (stream.late(only_shifted=only_shifted) for stream in streams)
        streams = list(chain.from_iterable(late))
    return streams


def _require_a_target(ids: np.ndarray) -> None:
    if len(ids) < 2:
        raise DataError(
            f"a split of {len(ids)} token(s): nothing to predict; it needs at least two tokens"
        )
