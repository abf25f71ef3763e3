"""The rows of a text that an evaluation reads side by side, and which of their targets count."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .raw_text import DataError
from .stream import Segment, as_tensor, require_streams

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
    """The readings of a row in which each of its targets counts exactly once, late in its segment: the borders of
    segments are shifted by a quarter of a segment each. The first segment of a shifted reading is shorter, so that
    the targets of a row's first tgt_len tokens have all of the row before them."""
    n_late = -(-tgt_len // LATE_PARTS)
    shifted = range(n_late, tgt_len, n_late)
    return [*(Cut(first_len, n_late) for first_len in shifted), Cut(tgt_len, tgt_len - n_late * len(shifted))]


@dataclass(eq=False)
class RowStream:
    """Rows of a text, read side by side in segments. Rows that end earlier than others are padded.

    Row b reads from token `first_B[b]` on and predicts the tokens after it up to `last_B[b]`; its targets count after
    the first `n_warmup_B[b]` times tgt_len. A negative index counts from the end of the text.

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

    def late(self) -> list["RowStream"]:
        """The same rows in several readings, each with an empty memory, in which every target that counts here counts
        once, late in its segment; see `late_cuts`. In a shifted reading segments begin up to tgt_len earlier, for which
        the rows need one more segment of warmup."""
        return [replace(self, cut=cut) for cut in late_cuts(self.tgt_len)]

    def share(self, rank: int, world: int) -> "RowStream":
        """The rows of one of `world` processes."""
        rows = np.array_split(np.arange(len(self.first_B)), world)[rank]
        mine = {name: getattr(self, name)[rows] for name in ("first_B", "last_B", "n_warmup_B")}
        return replace(self, **mine)

    def __len__(self) -> int:
        longest = int(max(self.last_B - self.first_B, default=0))
        return -(-(longest + self.tgt_len - self._first_len) // self.tgt_len) if longest else 0

    def __iter__(self) -> Iterator[Segment]:
        last_B1 = self.last_B[:, None]
        n_read = 0
        for k in range(len(self)):
            begin_B1 = self.first_B[:, None] + n_read
            length = self.tgt_len if k else self._first_len
            width = int(min(length, (last_B1 - begin_B1).max()))
            context = min(self.ext_len, n_read)
            index_BT = begin_B1 + np.arange(-context, width)
            target_BT = index_BT[:, context:] + 1
            counted_BT = (
                (target_BT <= last_B1)
                & (target_BT >= self._first_counted_B[:, None])
                & self._is_late(target_BT - self.first_B[:, None])
            )
            yield Segment(self._at(index_BT), self._at(target_BT), torch.from_numpy(counted_BT))
            n_read += length

    def sums(self, sizes: Mapping[str, np.ndarray]) -> Counter[str]:
        """Sums over the targets that count. `sizes` has a number for each token of the text, (N,), by name."""
        sums: Counter[str] = Counter(dict.fromkeys(sizes, 0))
        for begin, first, last in zip(self.first_B, self._first_counted_B, self.last_B, strict=True):
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
        """True for the targets that count by their place in the segment; `nth`: 1 for the first target of a row."""
        if self.cut is None:
            return np.ones(nth.shape, dtype=bool)
        return (nth - 1 - self.cut.first_len) % self.tgt_len >= self.tgt_len - self.cut.n_counted

    def _at(self, index_BT: np.ndarray) -> Tensor:
        inside_BT = index_BT < len(self.ids)
        return as_tensor(np.where(inside_BT, self.ids[np.where(inside_BT, index_BT, 0)], 0))


class CountedRows(Protocol):
    """Rows that an evaluation reads side by side, and what their targets stand for in the text."""

    first_B: np.ndarray

    def __iter__(self) -> Iterator[Segment]: ...

    def __len__(self) -> int: ...

    def sums(self, sizes: Mapping[str, np.ndarray]) -> Counter[str]:
        """Sums over the targets that count. `sizes` has a number for each token of the text, (N,), by name."""
        ...


def total_sums(streams: Sequence[CountedRows], sizes: Mapping[str, np.ndarray]) -> Counter[str]:
    """`sums` of several streams together."""
    return sum((stream.sums(sizes) for stream in streams), Counter())


def scoring_stream(ids: np.ndarray, *, batch_size: int, tgt_len: int, ext_len: int = 0, n_warmup: int = 0) -> RowStream:
    """The text cut so that every token but the first counts exactly once, whatever the batch size.

    The text is one row of segments. Each of the B streams reads the same number of consecutive segments. The first
    stream counts all of its segments; the others read `n_warmup` segments before those they count. Where the model sees
    no further than the warmup reaches, its memory there equals that of a single stream, and so does every loss.

    Args:
        batch_size: streams wished for; fewer are used if more would not be faster.
        n_warmup: segments read before the first that counts. See `txl.evaluation.reading.warmup_segments`.
    Raises:
        DataError: if there is no token to predict.
    """
    _require_a_target(ids)
    last = len(ids) - 1
    n_segment = -(-last // tgt_len)
    # B streams of L segments that overlap by n_warmup cover n_segment = B (L - n_warmup) + n_warmup of them
    length = -(-(n_segment + (batch_size - 1) * n_warmup) // batch_size)
    stride = length - n_warmup
    if stride < 1:
        length = stride = n_segment
    row_B = np.arange(1 + max(0, -(-(n_segment - length) // stride)))
    first_B = row_B * stride * tgt_len
    last_B = np.minimum(last, first_B + length * tgt_len)
    return RowStream(ids, first_B, last_B, np.where(row_B > 0, n_warmup, 0), tgt_len, ext_len)


def equal_streams(ids: np.ndarray, *, batch_size: int, tgt_len: int, ext_len: int = 0, n_warmup: int = 0) -> RowStream:
    """The text cut into batch_size streams of equal length, as other code evaluates. The remainder of the text and the
    first token of each stream never count.

    With `n_warmup` this is NVIDIA's way (DeepLearningExamples, Transformer-XL, data_utils.py): each stream first reads
    that many segments of the stream before it, which do not count; the first stream reads those of the last. Raises
    `DataError` if the text is too short for so many streams, or the streams are too short for the warmup.
    """
    n_step = len(require_streams(ids, batch_size)[0])
    if n_warmup * tgt_len > n_step:
        short = f"streams of {n_step} tokens are too short to warm up on {n_warmup * tgt_len} tokens of the one before"
        raise DataError(f"--batch_size {batch_size}: {short}; use fewer streams or a smaller --mem_len")
    row_B = np.arange(batch_size)
    first_B, last_B = row_B * n_step - n_warmup * tgt_len, (row_B + 1) * n_step - 1
    return RowStream(ids[: batch_size * n_step], first_B, last_B, np.full(batch_size, n_warmup), tgt_len, ext_len)


def document_streams(
    ids: np.ndarray, starts: np.ndarray, *, batch_size: int, tgt_len: int, ext_len: int = 0
) -> list[RowStream]:
    """The documents of a text, batch_size of them side by side, each stream to be read with an empty memory.

    Every token but the text's first counts once. The first of a document is predicted from the token before it, the
    `<eos>` that ends the document before, and from nothing else. Documents of similar length are read together.

    Args:
        starts: indices into `ids` where documents begin. The text before the first of them is a document too.
    Raises:
        DataError: if there is no token to predict.
    """
    _require_a_target(ids)
    begin_D = np.unique(np.append(starts[starts > 0], 1))  # of the tokens that are predicted
    end_D = np.append(begin_D[1:], len(ids))
    longest_first_D = np.argsort(begin_D - end_D, kind="stable")
    first_D, last_D = (index_D[longest_first_D] - 1 for index_D in (begin_D, end_D))
    return _in_groups(ids, first_D, last_D, batch_size=batch_size, tgt_len=tgt_len, ext_len=ext_len)


def window_streams(
    ids: np.ndarray, *, length: int, every: int, batch_size: int, tgt_len: int, ext_len: int = 0
) -> list[RowStream]:
    """Windows of `length` tokens, one beginning at every `every`-th token, batch_size of them side by side, each group
    to be read with an empty memory."""
    last = len(ids) - 1
    first_W = np.arange(0, last, every)
    last_W = np.minimum(first_W + length, last)
    return _in_groups(ids, first_W, last_W, batch_size=batch_size, tgt_len=tgt_len, ext_len=ext_len)


def _in_groups(
    ids: np.ndarray, first_R: np.ndarray, last_R: np.ndarray, *, batch_size: int, tgt_len: int, ext_len: int
) -> list[RowStream]:
    """Rows whose targets all count, batch_size of them side by side, in their order."""
    rows = (slice(i, i + batch_size) for i in range(0, len(first_R), batch_size))
    return [RowStream(ids, first_R[row], last_R[row], np.zeros_like(first_R[row]), tgt_len, ext_len) for row in rows]


def _require_a_target(ids: np.ndarray) -> None:
    if len(ids) < 2:
        raise DataError(f"a split of {len(ids)} token(s): nothing to predict; it needs at least two tokens")
