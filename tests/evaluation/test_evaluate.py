"""Evaluation: a split's nats are one number, whatever it is cut into, and those of a plain loop."""

import math

import numpy as np
import pytest
import torch

from tests.laws.conftest import LAYERS, SHAPES, build
from txl import Context, TransformerXL
from txl.data_utils.segments import document_streams, scoring_stream
from txl.evaluation.reading import evaluation_context, warmup_segments, within
from txl.evaluation.score import Score, evaluate, score_text

IDS = np.random.default_rng(0).integers(0, 50, 151)
STARTS = np.array([1, 9, 10, 11, 40, 97, 149, 150])
"""Of documents: two of one token, side by side, and one at the very end."""
CONTEXT = Context(tgt_len=4, mem_len=6)


@pytest.fixture(scope="module")
def adaptive() -> TransformerXL:
    torch.manual_seed(0)
    return build("pre_lnorm_adaptive", n_layer=2)


def score(model: TransformerXL, context: Context, batch_size: int, ids: np.ndarray = IDS) -> Score:
    lengths = {"batch_size": batch_size, "tgt_len": context.tgt_len, "ext_len": context.ext_len}
    n_warmup = warmup_segments(model.config.n_layer, context)
    return evaluate(model, scoring_stream(ids, **lengths, n_warmup=n_warmup), context)


def by_loop(model: TransformerXL, ids: np.ndarray, context: Context) -> list[float]:
    """Nats of each token but the first, segment after segment."""
    memory, nats = None, []
    for begin in range(0, len(ids) - 1, context.tgt_len):
        end = min(begin + context.tgt_len, len(ids) - 1)
        input_1T = torch.from_numpy(ids[max(0, begin - context.ext_len) : end])[None]
        hidden_1TD, memory = model(input_1T, memory, context)
        logprob_TV = model.log_prob(hidden_1TD[0, begin - end :]).detach()
        nats += [
            -float(logprob_V[token])
            for logprob_V, token in zip(logprob_TV, ids[begin + 1 : end + 1], strict=True)
        ]
    return nats


@pytest.mark.parametrize("at_once", [1, 5, 40])
def test_losses_of_several_segments_are_computed_together(
    at_once: int, adaptive: TransformerXL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the segments, and only of targets that are scored."""
    monkeypatch.setattr("txl.evaluation.score.AT_ONCE", at_once)
    seen: list[torch.Tensor] = []
    count, nll = [], adaptive.softmax.nll
    monkeypatch.setattr(
        adaptive.softmax, "nll", lambda *args: count.append(len(args[1])) or nll(*args)
    )
    found = evaluate(
        adaptive,
        scoring_stream(IDS, batch_size=1, tgt_len=4, ext_len=0),
        CONTEXT,
        observe=seen.append,
    )
    nats = by_loop(adaptive, IDS, CONTEXT)
    assert torch.cat(seen).tolist() == pytest.approx(nats, rel=1e-9)
    assert [*map(len, seen)] == [4] * 37 + [2]
    assert found.nats == pytest.approx(sum(nats), rel=1e-9)
    assert sum(count) == len(nats)
    assert len(count) == -(-38 // -(-at_once // 4))


@pytest.mark.parametrize("name", [*SHAPES, *LAYERS, "performer_none"])
def test_segments_are_read_as_one_where_their_ends_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every token sees as many states, by distance; elsewhere one by one."""
    monkeypatch.setattr("txl.evaluation.score.READ_TOGETHER", 19)
    model, seen, widths = build(name, n_layer=2), list[torch.Tensor](), list[int]()
    model.word_emb.register_forward_hook(lambda module, args, out: widths.append(args[0].shape[1]))
    clamp_len = 5 if model.layers[0].attn.pos.clamps else -1
    context = Context(tgt_len=4, mem_len=6, same_length=True, clamp_len=clamp_len)
    evaluate(
        model, scoring_stream(IDS, batch_size=1, tgt_len=4, ext_len=0), context, observe=seen.append
    )
    plain = (model.config.recurrence, model.config.attention) == ("below", "softmax")
    together = plain and model.config.position in ("rel_sinusoid", "relative_keys")
    assert widths == ([16] * 9 + [6] if together else [4] * 37 + [2])
    assert [*map(len, seen)] == [4] * 37 + [2]
    monkeypatch.undo()
    assert torch.cat(seen).tolist() == pytest.approx(by_loop(model, IDS, context), rel=1e-9)


def test_shards_are_read_segment_by_segment(
    adaptive: TransformerXL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks gather weights for as many segments, whatever rows they have."""
    monkeypatch.setattr(adaptive, "is_sharded", True)
    widths = list[int]()
    handle = adaptive.word_emb.register_forward_hook(
        lambda module, args, out: widths.append(args[0].shape[1])
    )
    evaluate(
        adaptive,
        scoring_stream(IDS, batch_size=1, tgt_len=4),
        Context(tgt_len=4, mem_len=6, same_length=True),
    )
    handle.remove()
    assert widths == [4] * 37 + [2]


@pytest.mark.parametrize(
    "context", [Context(tgt_len=7, mem_len=9), Context(tgt_len=4, mem_len=6, ext_len=3)], ids=str
)
def test_nats_are_those_of_a_plain_loop(context: Context, adaptive: TransformerXL) -> None:
    """Their sum, and token by token, as many as are asked for; the model stays in the mode it was in."""
    nats = by_loop(adaptive, IDS, context)
    assert score(adaptive, context, 4).nats == pytest.approx(sum(nats), rel=1e-9)
    for first in (1, 2, 30, 150):
        ours = score_text(adaptive.train(), IDS, context, first=first)
        torch.testing.assert_close(ours, torch.tensor(nats[first - 1 :], dtype=torch.float64))
    assert adaptive.training
    assert not any(p.grad is not None for p in adaptive.parameters())


DOCUMENTS = [
    Context(tgt_len=4, mem_len=0),
    Context(tgt_len=5, mem_len=5, same_length=True, clamp_len=3),
    Context(tgt_len=4, mem_len=6, ext_len=3),
    Context(tgt_len=200, mem_len=6),
]


@pytest.mark.parametrize("context", DOCUMENTS, ids=str)
def test_documents_are_scored_as_if_each_were_alone(
    context: Context, adaptive: TransformerXL
) -> None:
    """With the token before each, which predicts its first, and nothing before that."""
    pieces = [
        IDS[start - 1 : end] for start, end in zip(STARTS, [*STARTS[1:], len(IDS)], strict=True)
    ]
    nats = sum(sum(by_loop(adaptive.eval(), piece, context)) for piece in pieces)
    for batch_size in (1, 2, 16):
        lengths = {"batch_size": batch_size, "tgt_len": context.tgt_len, "ext_len": context.ext_len}
        streams = document_streams(IDS, STARTS, **lengths)
        ours = Score.total(evaluate(adaptive, stream, context) for stream in streams)
        assert ours.tokens == len(IDS) - 1
        assert ours.nats == pytest.approx(nats, rel=1e-9)


@pytest.mark.parametrize("starts", [[], [0], [1], [0, 1], [0, 150]])
def test_every_token_but_the_first_counts_once_in_documents(starts: list[int]) -> None:
    """Also where nothing stands before the first heading, and where a document has no token of its own to predict."""
    for batch_size in (1, 3):
        streams = document_streams(
            IDS, np.array(starts, dtype=np.int64), batch_size=batch_size, tgt_len=4
        )
        segments = [segment for stream in streams for segment in stream]
        targets = torch.cat([segment.target_BT[segment.counted_BT] for segment in segments])
        assert sorted(targets.tolist()) == sorted(IDS[1:].tolist())
        assert sum(map(len, streams)) == len(segments)


def test_documents_of_like_length_are_read_together() -> None:
    streams = document_streams(IDS, STARTS, batch_size=2, tgt_len=4)
    assert [(stream.last_B - stream.first_B).tolist() for stream in streams] == [
        [57, 52],
        [29, 8],
        [1, 1],
        [1, 1],
    ]


def test_rates_are_read_off_the_counts() -> None:
    assert Score(nats=6.0, tokens=3).perplexity == pytest.approx(math.e**2)
    assert Score(nats=1e9, tokens=1).perplexity == math.inf
    score = Score(nats=6 * math.log(2), tokens=5, words=2, lines=1, characters=12, bytes=24)
    assert score.bits_per_character == pytest.approx(0.5)
    assert score.bits_per_byte == pytest.approx(0.25)
    assert score.word_perplexity == pytest.approx(4)
    assert Score(nats=1.0, tokens=1, lines=1).bits_per_byte is None


def test_no_length_beyond_the_text_makes_a_difference() -> None:
    model = build("plain", n_layer=2)
    far = Context(tgt_len=10**9, mem_len=10**9, ext_len=10**9, clamp_len=10**9, same_length=True)
    whole = score(model, Context(tgt_len=200, mem_len=900), 1)
    limited = within(model.config, far, len(IDS))
    assert score(model, limited, 4).nats == pytest.approx(whole.nats, rel=1e-12)
    near = Context(tgt_len=4, mem_len=6, lookup_len=9, ext_len=2, clamp_len=3)
    assert within(model.config, near, len(IDS)) == near


@pytest.mark.parametrize("name", ["learned_absolute", "learned_per_layer"])
def test_a_short_text_has_the_places_of_a_whole_segment(name: str) -> None:
    """Where a segment is longer than the table, its first tokens share a row, whatever follows."""
    model = build(name, n_layer=2, n_position=6)
    context = Context(tgt_len=9, mem_len=4, ext_len=2)
    expected = by_loop(model, IDS[:5], context)
    found = score(model, within(model.config, context, 5), 1, IDS[:5])
    assert found.nats == pytest.approx(sum(expected), rel=1e-9)


def test_distances_to_the_vectors_of_a_memory_are_clamped_as_in_any_text() -> None:
    """Between those that a segment begins and ends with there are more than a short text has."""
    model = build("recurrent_tokens", n_layer=2)
    context = Context(tgt_len=2, mem_len=0, clamp_len=5)
    expected = by_loop(model, IDS[:4], context)
    found = score(model, within(model.config, context, 4), 1, IDS[:4])
    assert found.nats == pytest.approx(sum(expected), rel=1e-9)


def test_a_text_may_be_shorter_than_the_segment_and_the_memory() -> None:
    model, context = build("plain"), Context(tgt_len=64, mem_len=64)
    nats = score_text(model, [3, 1, 4], context)
    assert nats.shape == (2,)
    torch.testing.assert_close(score_text(model, torch.tensor([3, 1]), context), nats[:1])
    for ids, first in (([], 1), ([3], 1), ([3, 1], 0), ([3, 1], 2)):
        with pytest.raises(ValueError, match="1 <= first < length"):
            score_text(model, ids, context, first=first)


def test_evaluation_in_training_gives_to_memory_what_the_segment_gives_up() -> None:
    """It reads again where there is no memory."""
    assert evaluation_context(Context(tgt_len=150, mem_len=150), 64) == Context(
        tgt_len=64, mem_len=236
    )
    assert evaluation_context(Context(tgt_len=150), 64) == Context(tgt_len=64, ext_len=86)
