"""What memory gains, with intervals by a paired bootstrap."""

import math

import numpy as np
import pytest

from txl import Context
from txl.evaluation.gain import (
    LEAST_BLOCKS,
    MOST_BLOCKS,
    Blocks,
    Gain,
    Interval,
    blocks_of,
    gains_of,
    paired_bootstrap,
)
from txl.evaluation.measures.token_losses import TokenLosses
from txl.evaluation.rows import Row
from txl.evaluation.score import Score

DICE = np.random.default_rng(0)


def test_blocks_are_documents_where_these_are_many_and_long_else_stretches_of_twice_the_memory() -> (
    None
):
    n, alike = 6000, np.arange(0, 6000, 200)
    uneven = np.array([0, *range(1000, 6000, 100)])
    found = {
        "documents": blocks_of(n, 100, starts=alike, are_read_alone=False),
        "shorter than what is seen": blocks_of(n, 150, starts=alike, are_read_alone=False),
        "the same, read alone": blocks_of(n, 150, starts=alike, are_read_alone=True),
        "few": blocks_of(n, 100, starts=alike[:10], are_read_alone=True),
        "one is large": blocks_of(n, 20, starts=uneven, are_read_alone=True),
        "none": blocks_of(n, 500, starts=None, are_read_alone=False),
    }
    assert {name: blocks.what for name, blocks in found.items()} == {
        "documents": "30 documents",
        "shorter than what is seen": "20 stretches of 300 tokens",
        "the same, read alone": "30 documents",
        "few": "30 stretches of 200 tokens",
        "one is large": "30 stretches of 200 tokens",
        "none": "6 stretches of 1,000 tokens",
    }
    for blocks in found.values():
        assert (np.diff(blocks.block_N) >= 0).all()
        assert np.unique(blocks.block_N).tolist() == list(range(blocks.n_block))
    assert (np.bincount(found["documents"].block_N) == 200).all()
    assert not found["none"].are_enough


def test_no_more_blocks_are_drawn_than_a_draw_can_hold() -> None:
    lines = blocks_of(10**5, 0, starts=np.arange(0, 10**5, 10), are_read_alone=True)
    assert (lines.n_block, lines.what) == (MOST_BLOCKS, "10,000 documents, 10 at a time")
    assert blocks_of(10**6, 0, starts=None, are_read_alone=False).n_block == MOST_BLOCKS


def test_the_interval_is_that_of_a_mean_of_blocks() -> None:
    """Tokens of a block are alike here, so that its width is that of a hundred values, not of ten thousand."""
    blocks = blocks_of(20_000, 100, starts=None, are_read_alone=False)
    value_N = DICE.normal(1, 1, blocks.n_block)[blocks.block_N]
    found = paired_bootstrap(value_N, blocks)
    assert found.mean == pytest.approx(value_N.mean())
    assert found.high - found.low == pytest.approx(
        2 * 1.96 * value_N.std() / math.sqrt(blocks.n_block), rel=0.1
    )
    assert found == paired_bootstrap(value_N, blocks)
    assert found != paired_bootstrap(value_N, blocks, seed=1)


def test_what_was_not_scored_is_left_out_and_units_are_counted() -> None:
    blocks = Blocks(np.repeat(np.arange(20), 5), 20, "")
    saved_N = np.where(np.arange(100) == 0, np.nan, 1.0)
    assert paired_bootstrap(saved_N, blocks) == Interval(1.0, 1.0, 1.0)
    size_N = np.full(100, 0.5)
    assert paired_bootstrap(saved_N, blocks, size_N=size_N) == Interval(2.0, 2.0, 2.0)
    assert Interval(2.0, 1.0, 3.0).as_share().mean == pytest.approx(1 - math.exp(-2))


SENTENCES = [
    (
        (0.262, 0.246, 0.279),
        (0.027, 0.021, 0.033),
        "26.2 % lower perplexity a word (24.6 to 27.9); "
        "2.7 % (2.1 to 3.3) by seeing further, the rest mends the borders of segments",
    ),
    (
        (0.035, 0.028, 0.041),
        (-0.0004, -0.001, 0.002),
        "3.5 % lower perplexity a word (2.8 to 4.1); "
        "by seeing further not shown (-0.1 to 0.2 %), the gain mends the borders of segments",
    ),
    (
        (0.035, 0.028, 0.041),
        (-0.002, -0.003, -0.001),
        "3.5 % lower perplexity a word (2.8 to 4.1); "
        "0.2 % higher (0.1 to 0.3) by seeing further, the gain mends the borders of segments",
    ),
    (
        (-0.01, -0.02, -0.005),
        (-0.02, -0.03, -0.01),
        "1.0 % higher perplexity a word (0.5 to 2.0); 2.0 % higher (1.0 to 3.0) by seeing further",
    ),
    (
        (0.01, -0.01, 0.02),
        (0.01, -0.01, 0.02),
        "lower perplexity a word not shown (-1.0 to 2.0 %); by seeing further not shown (-1.0 to 2.0 %)",
    ),
    (
        (0.051, 0.04, 0.06),
        (0.0511, 0.04, 0.06),
        "5.1 % lower perplexity a word (4.0 to 6.0); 5.1 % (4.0 to 6.0) by seeing further",
    ),
    (
        (-0.0004, -0.0009, -0.0001),
        (0.0002, 0.0001, 0.0004),
        "lower perplexity a word not shown (-0.1 to 0.0 %); by seeing further not shown (0.0 to 0.0 %)",
    ),
]


@pytest.mark.parametrize(("in_all", "further", "expected"), SENTENCES)
def test_the_sentence_claims_what_is_shown(
    in_all: tuple[float, ...], further: tuple[float, ...], expected: str
) -> None:
    whole, beyond = Interval(*in_all), Interval(*further)
    gain = Gain(
        "test", 32, "", 0, 128, 128, "word", "68 stretches", in_all=whole, by_seeing_further=beyond
    )
    assert gain.sentence() == f"test, segments of 32: memory 128 in place of none: {expected}"


def test_a_short_text_is_too_short_and_a_long_memory_beyond_the_training() -> None:
    gain = Gain("test", 32, "cache", 8, 64, 64, "token", "7 stretches of 200 tokens", None, None)
    assert gain.sentence().endswith(
        "memory 64 in place of 8: too short to tell, 7 stretches of 200 tokens; 20 are needed"
    )
    shown = Interval(0.2, 0.1, 0.3)
    gain = Gain("test", 32, "", 0, 64, 32, "token", "", in_all=shown, by_seeing_further=shown)
    assert gain.sentence().endswith("; 64 is more than the 32 of the training")


def row(mem_len: int, borders: str, nats: float, n: int = 200 * LEAST_BLOCKS) -> Row:
    """In which every token has these nats, on average, and the first none."""
    nats_N = (nats + DICE.normal(0, 0.001, n)).astype(np.float32)
    nats_N[0] = np.nan
    context = Context(tgt_len=8, mem_len=mem_len)
    tokens = TokenLosses(
        "test", vars(context), "", np.zeros(n), nats_N, np.ones(n), borders=borders
    )
    return Row("test", context, Score(n * nats, n), 1.0, tokens=tokens, borders=borders)


def test_the_longest_memory_is_compared_with_the_shortest_in_both_readings_per_word() -> None:
    nats = {
        (9, "cut"): 2.0,
        (0, "cut"): 3.0,
        (4, "cut"): 9.0,
        (0, "aside"): 2.1,
        (4, "aside"): 9.0,
        (9, "aside"): 2.0,
    }
    rows = [row(*key, value) for key, value in nats.items()]
    n = 200 * LEAST_BLOCKS
    sizes = {"words": np.full(n, 0.25), "lines": np.full(n, 0.25)}
    for unit, per_token in (("word", 2), ("token", 1)):
        (gain,) = gains_of(rows, sizes, starts=None, trained=Context(mem_len=4), reset="never")
        assert (gain.shorter, gain.longer, gain.trained, gain.unit) == (0, 9, 4, unit)
        assert gain.blocks == f"{LEAST_BLOCKS} stretches of 200 tokens"
        assert gain.in_all is not None
        assert gain.by_seeing_further is not None
        assert gain.in_all.mean == pytest.approx(1 - math.exp(-per_token), abs=0.001)
        assert gain.by_seeing_further.mean == pytest.approx(
            1 - math.exp(-0.1 * per_token), abs=0.001
        )
        assert gain.as_dict()["in_all"]["low"] < gain.in_all.mean
        sizes = {"words": np.full(n, 0.1), "lines": np.zeros(n)}  # of characters
    assert gains_of(rows[:1], sizes, starts=None, trained=Context(), reset="never") == []
