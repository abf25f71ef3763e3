"""Evaluation: a split's nats are one number, whatever it is cut into (law 9)."""

import math

import numpy as np
import pytest
import torch

from data_utils.stream import ScoringStream
from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.config import UsageError
from txl.evaluate import Score, evaluate, evaluation_context, warmup_segments

IDS = np.random.default_rng(0).integers(0, 50, 151)


def score(model: TransformerXL, context: Context, batch_size: int) -> Score:
    stream = ScoringStream(
        IDS,
        batch_size=batch_size,
        tgt_len=context.tgt_len,
        ext_len=context.ext_len,
        n_warmup=warmup_segments(model.config.n_layer, context),
    )
    return evaluate(model, stream, context)


@pytest.mark.parametrize(
    "context",
    [
        Context(tgt_len=4, mem_len=0),
        Context(tgt_len=4, mem_len=6),
        Context(tgt_len=3, mem_len=2, clamp_len=2),
        Context(tgt_len=5, mem_len=5, same_length=True),
        Context(tgt_len=4, mem_len=0, ext_len=5),
        Context(tgt_len=4, mem_len=6, ext_len=3),
        Context(tgt_len=200, mem_len=6),
    ],
    ids=str,
)
def test_nats_do_not_depend_on_the_batch_size(context: Context) -> None:
    model = build("adaptive", n_layer=2)
    one = score(model, context, 1)
    assert one.tokens == len(IDS) - 1
    for batch_size in (2, 7, 16):
        other = score(model, context, batch_size)
        assert other.tokens == one.tokens
        assert other.nats == pytest.approx(one.nats, rel=1e-9)


@pytest.mark.parametrize("mem_len", [1, 6])
def test_with_same_length_nats_do_not_depend_on_tgt_len(mem_len: int) -> None:
    model = build("plain", n_layer=2)
    one = score(model, Context(tgt_len=1, mem_len=mem_len, same_length=True), 3)
    for tgt_len in (8, 64):
        other = score(model, Context(tgt_len=tgt_len, mem_len=mem_len, same_length=True), 3)
        assert other.nats == pytest.approx(one.nats, rel=1e-9)


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


def test_evaluation_in_training_gives_to_memory_what_the_segment_gives_up() -> None:
    trained = Context(tgt_len=150, mem_len=150)
    assert evaluation_context(trained, 64) == Context(tgt_len=64, mem_len=236)


def test_evaluation_in_training_re_reads_where_there_is_no_memory() -> None:
    trained = Context(tgt_len=150, mem_len=0)
    assert evaluation_context(trained, 64) == Context(tgt_len=64, mem_len=0, ext_len=86)


def test_same_length_without_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="--same_length needs --mem_len > 0"):
        Context(same_length=True, mem_len=0)
