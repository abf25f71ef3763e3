"""Evaluation: a split's nats are one number, whatever it is cut into (law 9)."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.config import UsageError
from txl.data_utils.rows import scoring_stream
from txl.evaluation.reading import evaluation_context, warmup_segments, within
from txl.evaluation.score import Score, evaluate, score_text

IDS = np.random.default_rng(0).integers(0, 50, 151)


def score(model: TransformerXL, context: Context, batch_size: int, world: int = 1) -> Score:
    """With the shares of all ranks one after another."""
    lengths = {"batch_size": batch_size, "tgt_len": context.tgt_len, "ext_len": context.ext_len}
    n_warmup = warmup_segments(model.config.n_layer, context)
    streams = [scoring_stream(IDS, **lengths, n_warmup=n_warmup).share(rank, world) for rank in range(world)]
    return Score.total(evaluate(model, stream, context) for stream in streams)


@pytest.mark.parametrize(
    "shape", ["learned_relative_short", "rotary", "t5", "shaw", "relative_keys_short", "deberta", "alibi", "none"]
)
def test_with_every_encoding_of_distances_nats_do_not_depend_on_the_batch_size(shape: str) -> None:
    model, context = build(shape, n_layer=2), Context(tgt_len=4, mem_len=6)
    one = score(model, context, 1)
    for batch_size in (2, 7):
        assert score(model, context, batch_size).nats == pytest.approx(one.nats, rel=1e-9)


def test_nats_are_the_sum_over_a_plain_loop() -> None:
    model, context = build("plain"), Context(tgt_len=7, mem_len=9)
    ids, memory, nats = torch.from_numpy(IDS), None, 0.0
    for begin in range(0, len(IDS) - 1, 7):
        piece = ids[begin : begin + 8]
        hidden, memory = model(piece[None, :-1], memory, context)
        logprob = model.log_prob(hidden[0]).detach()
        nats -= sum(float(logprob[i, token]) for i, token in enumerate(piece[1:]))
    assert score(model, context, 4).nats == pytest.approx(nats, rel=1e-9)


def test_the_model_is_left_in_the_mode_it_was_in() -> None:
    model = build("plain").train()
    score(model, Context(tgt_len=50), 1)
    assert model.training
    assert not any(p.grad is not None for p in model.parameters())


def test_perplexity_is_the_exponential_of_nats_per_token() -> None:
    assert Score(nats=6.0, tokens=3).perplexity == pytest.approx(math.e**2)
    assert Score(nats=1e9, tokens=1).perplexity == math.inf


def test_counts_are_summed_over_the_targets_that_count() -> None:
    sizes = {"words": IDS, "unknown": IDS == 3}
    for batch_size, world in ((1, 1), (7, 1), (7, 2)):
        streams = [
            scoring_stream(IDS, batch_size=batch_size, tgt_len=7, n_warmup=4).share(rank, world)
            for rank in range(world)
        ]
        total = sum((stream.sums(sizes) for stream in streams), Counter())
        assert total == {"words": IDS[1:].sum(), "unknown": (IDS[1:] == 3).sum()}


def test_rates_are_read_off_the_counts() -> None:
    score = Score(nats=6 * math.log(2), tokens=5, words=2, lines=1, characters=12, bytes=24)
    assert score.bits_per_character == pytest.approx(0.5)
    assert score.bits_per_byte == pytest.approx(0.25)
    assert score.word_perplexity == pytest.approx(4)
    assert Score(nats=1.0, tokens=1, lines=1).bits_per_byte is None


def test_no_length_beyond_the_text_makes_a_difference() -> None:
    model = build("plain", n_layer=2)
    far = Context(tgt_len=10**9, mem_len=10**9, ext_len=10**9, clamp_len=10**9, same_length=True)
    seen = within(far, len(IDS))
    assert score(model, seen, 4).nats == pytest.approx(
        score(model, Context(tgt_len=200, mem_len=900), 1).nats, rel=1e-12
    )
    near = Context(tgt_len=4, mem_len=6, ext_len=2, clamp_len=3)
    assert within(near, len(IDS)) == near
    assert within(Context(), 2).clamp_len == -1


@pytest.mark.parametrize("first", [1, 2, 30, 150])
@pytest.mark.parametrize("context", [Context(tgt_len=7, mem_len=9), Context(tgt_len=4, mem_len=6, ext_len=3)], ids=str)
def test_the_nats_of_a_text_come_token_by_token(context: Context, first: int) -> None:
    """As many as tokens are asked for, those of a plain loop, which share out what `evaluate` sums."""
    model = build("pre_lnorm_adaptive", n_layer=2)
    memory, nats = None, []
    for begin in range(0, len(IDS) - 1, context.tgt_len):
        end = min(begin + context.tgt_len, len(IDS) - 1)
        input_1T = torch.from_numpy(IDS[max(0, begin - context.ext_len) : end])[None]
        nll_1T, memory = model.nll(input_1T, torch.from_numpy(IDS[begin + 1 : end + 1])[None], memory, context)
        nats += nll_1T[0].tolist()
    ours = score_text(model, IDS, context, first=first)
    torch.testing.assert_close(ours, torch.tensor(nats[first - 1 :], dtype=torch.float64))
    if first == 1:
        assert float(ours.sum()) == pytest.approx(score(model, context, 4).nats, rel=1e-9)


def test_a_text_may_be_shorter_than_the_segment_and_the_memory() -> None:
    model, context = build("plain").train(), Context(tgt_len=64, mem_len=64)
    nats = score_text(model, [3, 1, 4], context)
    assert nats.shape == (2,)
    torch.testing.assert_close(score_text(model, torch.tensor([3, 1]), context), nats[:1])
    assert model.training


@pytest.mark.parametrize(("ids", "first"), [([], 1), ([3], 1), ([3, 1], 0), ([3, 1], 2)])
def test_a_text_with_nothing_to_score_is_refused(ids: list[int], first: int) -> None:
    with pytest.raises(ValueError, match="1 <= first < length"):
        score_text(build("plain"), ids, Context(), first=first)


def test_evaluation_in_training_gives_to_memory_what_the_segment_gives_up() -> None:
    trained = Context(tgt_len=150, mem_len=150)
    assert evaluation_context(trained, 64) == Context(tgt_len=64, mem_len=236)


def test_evaluation_in_training_re_reads_where_there_is_no_memory() -> None:
    trained = Context(tgt_len=150, mem_len=0)
    assert evaluation_context(trained, 64) == Context(tgt_len=64, mem_len=0, ext_len=86)


def test_same_length_without_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="--same_length needs --mem_len > 0"):
        Context(same_length=True, mem_len=0)
