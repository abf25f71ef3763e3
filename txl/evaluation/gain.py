"""What memory is worth on a text: in all, and by seeing further; whether it helps, as far as one
short training can tell.

The first tokens of a segment see almost nothing without a memory, in any text. So a memory in place
of none mends the borders of segments, besides showing text from further back. Read with borders
aside, each token stands late in its segment with every memory, and what a memory still saves is had
by seeing further.

Intervals are of differences between two readings of one text, by a paired bootstrap over its
documents or stretches.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from txl.config import Context
from txl.evaluation.rows import Row

N_DRAW = 4000
LEAST_BLOCKS = 20
"""Blocks of a text below which nothing is said of it: their spread is not known well enough."""
MOST_BLOCKS = 1000
"""Of more, neighbours are drawn together, which changes intervals little and bounds the time and
memory of a draw.
"""
LARGEST_SHARE = 1 / 8
"""Of a text in one document, above which documents are not drawn: few of them decide the figure."""


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval.

    Attributes:
        mean, low, high: per unit.
    """

    mean: float
    low: float
    high: float

    @property
    def is_shown(self) -> bool:
        """False where the interval holds 0."""
        return self.low > 0 or self.high < 0

    @property
    def is_printed(self) -> bool:
        """False also where its mean rounds to 0.0 %, of nats to 0.000."""
        return self.is_shown and round(self.mean, 3) != 0

    def negated(self) -> "Interval":
        """Of the difference the other way round."""
        return Interval(-self.mean, -self.high, -self.low)

    def ends(self, digits: int, *, factor: int = 1) -> str:
        """From where to where it reaches, so many times as large."""
        low = round(factor * self.low, digits) + 0.0  # without the sign of -0.0
        high = round(factor * self.high, digits) + 0.0
        return f"{low:.{digits}f} to {high:.{digits}f}"

    def as_share(self) -> "Interval":
        """Of nats that are saved per unit: by what share the perplexity of a unit is lower.

        Negative: it is higher.
        """
        return Interval(-math.expm1(-self.mean), -math.expm1(-self.low), -math.expm1(-self.high))


@dataclass(frozen=True)
class Blocks:
    """Parts of a text that are drawn as a whole: tokens of one part are alike.

    Attributes:
        block_N: the number of each token's block, from 0.
        n_block: their number.
        what: in words, such as "30 documents".
    """

    block_N: np.ndarray
    n_block: int
    what: str

    @property
    def are_enough(self) -> bool:
        return self.n_block >= LEAST_BLOCKS


def blocks_of(
    n_token: int, longest: int, *, starts: Sequence[int] | np.ndarray | None, are_read_alone: bool
) -> Blocks:
    """The documents of a text, where there are enough of them, none is large, and none is much
    shorter than what a memory sees of the text; else stretches of twice the longest memory.

    Args:
        longest: tokens of the longest memory that is compared.
        starts: where documents begin; text before the first is one too. None: there are none.
        are_read_alone: each document is read with an empty memory, so that its length does not
            matter.
    """
    if starts is not None:
        begins = np.union1d(np.asarray(starts, dtype=np.int64), [0])
        sizes = np.diff(begins, append=n_token)
        are_long = are_read_alone or n_token / len(begins) >= 2 * longest
        if len(begins) >= LEAST_BLOCKS and sizes.max() <= LARGEST_SHARE * n_token and are_long:
            together = -(-len(begins) // MOST_BLOCKS)
            block_N = np.repeat(np.arange(len(begins)) // together, sizes)
            if together > 1:
                at_a_time = f", {together:,} at a time"
            else:
                at_a_time = ""
            return Blocks(
                block_N, -(-len(begins) // together), f"{len(begins):,} documents{at_a_time}"
            )
    length = max(200, 2 * longest, -(-n_token // MOST_BLOCKS))
    n_block = max(1, n_token // length)  # the rest belongs to the last
    block_N = np.minimum(np.arange(n_token) // length, n_block - 1)
    return Blocks(
        block_N, n_block, f"{n_block:,} stretch{'es' if n_block > 1 else ''} of {length:,} tokens"
    )


def paired_bootstrap(
    saved_N: np.ndarray,
    blocks: Blocks,
    *,
    size_N: np.ndarray | None = None,
    n_draw: int = N_DRAW,
    seed: int = 0,
) -> Interval:
    """The mean of what is saved per unit, and its 95 % interval: the percentiles of the means of as
    many blocks, drawn with replacement. The same blocks are drawn for every measure of one text, so
    that they can be compared.

    Args:
        saved_N: nats of each token in one reading, less those in the other; NaN of those that were
            not scored.
        size_N: units that each token stands for, such as words; None: each token is one.
    """
    scored_N = ~np.isnan(saved_N)
    if size_N is None:
        size_N = np.ones(len(saved_N))
    block_S = blocks.block_N[scored_N]
    saved_K = np.bincount(block_S, weights=saved_N[scored_N], minlength=blocks.n_block)
    size_K = np.bincount(block_S, weights=size_N[scored_N], minlength=blocks.n_block)
    equal_K = np.full(blocks.n_block, 1 / blocks.n_block)
    drawn_RK = (
        np.random.default_rng(seed)
        .multinomial(blocks.n_block, equal_K, size=n_draw)
        .astype(np.float64)
    )
    mean_R = (drawn_RK @ saved_K) / np.maximum(drawn_RK @ size_K, np.finfo(np.float64).tiny)
    low, high = np.quantile(mean_R, [0.025, 0.975])
    return Interval(float(saved_K.sum() / size_K.sum()), float(low), float(high))


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
            return too_short(self.blocks)
        return change_in_words(self.in_all, self.unit)

    def seeing_further_in_words(self) -> str:
        """What is gained by seeing further; empty if the text is too short to tell."""
        if self.in_all is None or self.by_seeing_further is None:
            return ""
        return _by_seeing_further(self.in_all, self.by_seeing_further)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; shares, not per cent."""
        return {**asdict(self), "sentence": self.sentence()}


def too_short(blocks: str) -> str:
    """That a text has too few blocks for an interval, which are given in words."""
    return f"too short to tell, {blocks}; {LEAST_BLOCKS} are needed"


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
        share = share.negated()
        return f"{100 * share.mean:.1f} % higher perplexity a {unit} ({_percent(share)})"
    return f"{100 * share.mean:.1f} % lower perplexity a {unit} ({_percent(share)})"


def _by_seeing_further(in_all: Interval, share: Interval) -> str:
    gains = in_all.is_printed and in_all.mean > 0
    if not share.is_printed:
        return f"by seeing further not shown ({_percent(share)} %)" + f", the gain {MENDS}" * gains
    if share.mean < 0:
        share = share.negated()
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
    return share.ends(1, factor=100)


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


Word = Literal["helps", "not shown", "too early to tell", "too short to tell"]
SMALLEST_GAIN = 0.005
"""Nats a token by seeing further, below which a gain is none: seeds of a short training differ by
nearly as much.
"""
LEAST_TOKENS = 30_000
"""Of a training text: a shorter one is learnt by heart in seconds, and then a memory is worse than
none.
"""
LEAST_LEARNT = 1.0
"""Nats a token below those of a model that knows only how frequent each token is."""
_SAID = {
    "helps": "memory helps",
    "not shown": "not shown that memory helps",
    "too early to tell": "too early to tell (the model has learnt little; give it more --minutes)",
    "too short to tell": "too short to tell (give more text)",
}


@dataclass(frozen=True)
class Verdict:
    """What a memory is worth to one model on one text.

    Attributes:
        word: whether it helps by seeing further.
        gain: of the memory of the training in place of none.
        beyond: of a memory that is longer than that; None: none was read.
        further: nats a token saved by seeing further, with its interval.
        learnt: nats a token that the model is below one that knows only how frequent each token is.
    """

    word: Word
    gain: Gain
    beyond: Gain | None
    further: Interval
    learnt: float

    def sentence(self) -> str:
        """The verdict and its figures in one sentence."""
        if self.gain.in_all is None:
            return f"{_SAID[self.word]}: {self.gain.blocks}"
        return f"{_SAID[self.word]}: {self.gain.claim()}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        own = {"word": self.word, "sentence": self.sentence(), "learnt_nats": self.learnt}
        if self.beyond is None:
            beyond = None
        else:
            beyond = self.beyond.as_dict()
        return {
            **own,
            "further_nats": asdict(self.further),
            "gain": self.gain.as_dict(),
            "beyond": beyond,
        }


def judge(
    rows: Sequence[Row],
    sizes: Mapping[str, np.ndarray],
    *,
    starts: np.ndarray | None,
    trained: Context,
    reset: str,
    train_ids: np.ndarray,
) -> Verdict:
    """What the memory of the training is worth, and one beyond it.

    Args:
        rows: of one split, with their `tokens`; read both ways without a memory, with that of the
            training, and with a longer one, if any.
        sizes, starts, trained, reset: as in `gains_of`.
        train_ids: the training text.
    """
    given: dict[str, Any] = {"starts": starts, "trained": trained, "reset": reset}
    read = {(row.borders, row.context.mem_len): row for row in rows}
    both = sorted(mem_len for borders, mem_len in read if borders == "aside")
    longer = [mem_len for mem_len in both if mem_len > trained.mem_len]

    def gain(shorter: int, longer: int) -> Gain:
        compared = []
        for borders in ("cut", "aside"):
            for mem_len in (shorter, longer):
                compared.append(read[borders, mem_len])
        (found,) = gains_of(compared, sizes, **given)
        return found

    with_memory = read["aside", trained.mem_len]
    further = saved_between(
        read["aside", 0], with_memory, trained.mem_len, starts=starts, reset=reset
    )
    learnt = _nats_by_frequency(train_ids, _tokens(with_memory)) - with_memory.score.nats_per_token
    of_training = gain(0, trained.mem_len)
    beyond = None
    if longer:
        beyond = gain(trained.mem_len, longer[-1])
    is_short = len(train_ids) < LEAST_TOKENS or of_training.in_all is None
    word = _word(further, learnt, is_short=is_short)
    return Verdict(word, of_training, beyond, further, learnt)


def saved_between(
    one: Row, other: Row, mem_len: int, *, starts: np.ndarray | None, reset: str = "never"
) -> Interval:
    """Nats a token that the second reading of a split saves over the first, which may be of another
    model.

    Args:
        mem_len: tokens of the longest memory of the two.
        starts, reset: as in `gains_of`.
    """
    return saved_and_blocks(one, other, mem_len, starts=starts, reset=reset)[0]


def saved_and_blocks(
    one: Row, other: Row, mem_len: int, *, starts: np.ndarray | None, reset: str
) -> tuple[Interval, Blocks]:
    """`saved_between`, and what its interval is drawn over."""
    saved_N = _nats(one) - _nats(other)
    blocks = blocks_of(len(saved_N), mem_len, starts=starts, are_read_alone=reset == "document")
    return paired_bootstrap(saved_N, blocks), blocks


def _word(further: Interval, learnt: float, *, is_short: bool) -> Word:
    if is_short:
        return "too short to tell"
    if further.low > 0 and further.mean > SMALLEST_GAIN:
        return "helps"
    if learnt < LEAST_LEARNT:
        return "too early to tell"
    return "not shown"


def _nats_by_frequency(train_ids: np.ndarray, ids_N: np.ndarray) -> float:
    """Nats a token of a model that predicts each token as often as it stands in
    the training text.
    """
    n_token = 1 + max(int(train_ids.max()), int(ids_N.max()))
    count_V = np.bincount(train_ids.astype(np.int64), minlength=n_token) + 0.5
    return math.log(count_V.sum()) - float(np.log(count_V[ids_N[1:]]).mean())


def _tokens(row: Row) -> np.ndarray:
    assert row.tokens is not None
    return row.tokens.ids_N
