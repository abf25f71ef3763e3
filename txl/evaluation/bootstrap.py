"""Intervals of differences between two readings of one text, by a paired bootstrap over its
documents or stretches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
        """Of a share: False also where its mean rounds to 0.0 %."""
        return self.is_shown and round(self.mean, 3) != 0

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
