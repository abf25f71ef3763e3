"""What memory is worth on a text: in all, and by seeing further.

The first tokens of a segment see almost nothing without a memory, in any text. So a memory in place
of none mends the borders of segments, besides showing text from further back. Read with borders
aside, each token stands late in its segment with every memory, and what a memory still saves is had
by seeing further.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from txl.config import Context
from txl.evaluation.bootstrap import LEAST_BLOCKS, Interval, blocks_of, paired_bootstrap
from txl.evaluation.rows import Row

MOST_TOKENS_PER_WORD = 3
"""Above, as with characters and where words have no spaces between them, figures are per token."""
MENDS = "mends the borders of segments"


@dataclass(frozen=True)
class Gain:
    """By what share perplexity is lower with one memory than with another, on one split.

    Attributes:
        split, tgt_len, added: of the rows that are compared.
        shorter, longer: the two memories, in tokens.
        trained: the memory of the training.
        unit: of the perplexity: word (and line end), or token.
        blocks: what the intervals are drawn over.
        in_all, by_seeing_further: shares, as read and with borders aside; None where the blocks are
        too few.
    """

    split: str
    tgt_len: int
    added: str
    shorter: int
    longer: int
    trained: int
    unit: str
    blocks: str
    in_all: Interval | None
    by_seeing_further: Interval | None

    def sentence(self) -> str:
        """The gain in one sentence."""
        where = ", ".join(filter(None, [self.split, f"segments of {self.tgt_len}", self.added]))
        return f"{where}: {self.claim()}"

    def claim(self) -> str:
        """The gain in one sentence, without saying where it was measured."""
        what = f"memory {self.longer} in place of {self.shorter or 'none'}"
        if self.in_all is None or self.by_seeing_further is None:
            return f"{what}: {self.in_all_in_words()}"
        parts = [self.in_all_in_words(), self.seeing_further_in_words()]
        if self.longer > self.trained:
            parts.append(f"{self.longer} is more than the {self.trained} of the training")
        return f"{what}: {'; '.join(parts)}"

    def in_all_in_words(self) -> str:
        """What is gained in all, or that the text is too short to tell."""
        if self.in_all is None:
            return f"too short to tell, {self.blocks}; {LEAST_BLOCKS} are needed"
        return change_in_words(self.in_all, self.unit)

    def seeing_further_in_words(self) -> str:
        """What is gained by seeing further; empty if the text is too short to tell."""
        if self.in_all is None or self.by_seeing_further is None:
            return ""
        return _by_seeing_further(self.in_all, self.by_seeing_further)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; shares, not per cent."""
        return {**asdict(self), "sentence": self.sentence()}


def change_in_words(share: Interval, unit: str) -> str:
    """By what share the perplexity of a unit is lower or higher, with its interval, or that none is
    shown.

    Args:
        share: negative: it is higher.
        unit: word or token.
    """
    if not share.is_printed:
        return f"lower perplexity a {unit} not shown ({_percent(share)} %)"
    if share.mean < 0:
        share = Interval(-share.mean, -share.high, -share.low)
        return f"{100 * share.mean:.1f} % higher perplexity a {unit} ({_percent(share)})"
    return f"{100 * share.mean:.1f} % lower perplexity a {unit} ({_percent(share)})"


def _by_seeing_further(in_all: Interval, share: Interval) -> str:
    gains = in_all.is_printed and in_all.mean > 0
    if not share.is_printed:
        return f"by seeing further not shown ({_percent(share)} %)" + f", the gain {MENDS}" * gains
    if share.mean < 0:
        share = Interval(-share.mean, -share.high, -share.low)
        return (
            f"{100 * share.mean:.1f} % higher ({_percent(share)}) by seeing further"
            + f", the gain {MENDS}" * gains
        )
    has_rest = gains and round(in_all.mean, 3) > round(share.mean, 3)  # as it is printed
    return (
        f"{100 * share.mean:.1f} % ({_percent(share)}) by seeing further"
        + f", the rest {MENDS}" * has_rest
    )


def _percent(share: Interval) -> str:
    low = round(100 * share.low, 1) + 0.0  # without the sign of -0.0
    high = round(100 * share.high, 1) + 0.0
    return f"{low:.1f} to {high:.1f}"


def gains_of(
    rows: Sequence[Row],
    sizes: Mapping[str, np.ndarray],
    *,
    starts: np.ndarray | None,
    trained: Context,
    reset: str,
) -> list[Gain]:
    """What the longest memory gains over the shortest, for each segment length and test-time method
    of one split.

    Args:
        rows: of one split, with their `tokens`, read both ways at the same lengths.
        sizes: words and lines of each token of the split.
        starts: where its documents begin; None: it has none.
        trained: how far the model looked back in its training.
        reset: document: each was read with an empty memory.
    """
    if "words" in sizes and "lines" in sizes:
        words_N = sizes["words"] + sizes["lines"]
    else:
        words_N = None
    is_of_words = words_N is not None and len(words_N) <= MOST_TOKENS_PER_WORD * words_N.sum()
    unit, size_N = ("word", words_N) if is_of_words else ("token", None)
    gains = []
    for tgt_len, added in dict.fromkeys((row.context.tgt_len, row.added) for row in rows):
        read = {}
        for row in rows:
            if (row.context.tgt_len, row.added) == (tgt_len, added):
                read[(row.borders, row.context.mem_len)] = row
        lengths = sorted({mem_len for _, mem_len in read})
        if len(lengths) < 2:
            continue
        shorter = lengths[0]
        longer = lengths[-1]
        split = rows[0].split
        n_token = len(_nats(rows[0]))
        blocks = blocks_of(n_token, longer, starts=starts, are_read_alone=reset == "document")
        shares: dict[str, Interval | None] = {}
        for borders in ("cut", "aside"):
            saved_N = _nats(read[borders, shorter]) - _nats(read[borders, longer])
            interval = paired_bootstrap(saved_N, blocks, size_N=size_N).as_share()
            shares[borders] = interval if blocks.are_enough else None
        compared = (split, tgt_len, added, shorter, longer, trained.mem_len, unit, blocks.what)
        gains.append(Gain(*compared, in_all=shares["cut"], by_seeing_further=shares["aside"]))
    return gains


def _nats(row: Row) -> np.ndarray:
    assert row.tokens is not None
    return row.tokens.nats_N.astype(np.float64)
