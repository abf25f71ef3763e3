"""Attention by distance: the probabilities are those of the model, and every one falls in one bin."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.laws.conftest import SHAPES, build
from txl import Context, TransformerXL
from txl.data_utils.segments import scoring_stream
from txl.evaluation.conventions import reading_of
from txl.evaluation.measures.attention import (
    AttentionByDistance,
    attention_by_distance,
    probabilities,
)
from txl.memory import Span
from txl.model.memory import last_tokens
from txl.model.streams import of_hidden

IDS = np.random.default_rng(0).integers(0, 50, 61)
CONTEXTS = [
    Context(tgt_len=4, mem_len=7),
    Context(tgt_len=9, mem_len=0),
    Context(tgt_len=5, mem_len=4, ext_len=3),
    Context(tgt_len=3, mem_len=6, same_length=True),
    Context(tgt_len=4, mem_len=9, clamp_len=3),
]


@pytest.fixture(params=sorted(SHAPES))
def model(request: pytest.FixtureRequest, seeded: None) -> TransformerXL:
    return build(request.param)


def measured(model: TransformerXL, context: Context, batch_size: int = 2) -> AttentionByDistance:
    stream = scoring_stream(
        IDS, batch_size=batch_size, tgt_len=context.tgt_len, ext_len=context.ext_len, n_warmup=2
    )
    return attention_by_distance(model, [stream], context)


def test_probabilities_are_those_the_layer_attends_with(model: TransformerXL) -> None:
    """For every position encoding."""
    attention = model.layers[1].attn
    x_BTD, mem_BMD = torch.randn(2, 5, 16).double(), torch.randn(2, 7, 16).double()
    v_net = attention.v_net(torch.cat([mem_BMD, x_BTD], dim=1))
    v_BNSH = v_net.unflatten(-1, (attention.n_head, -1)).transpose(1, 2)
    for window in (-1, 4):
        span = Span(7, 5, clamp_len=6 if attention.pos.clamps else -1, window=window)
        feats = attention.pos.prepare(span, like=x_BTD)
        prob_BNTS = probabilities(attention, x_BTD, mem_BMD, feats, span)
        out_BNTH = prob_BNTS @ v_BNSH
        if (term := attention.pos.value(prob_BNTS, attention.pos.project(feats), span)) is not None:
            out_BNTH = out_BNTH + term
        out_BTD = attention.o_net(out_BNTH.transpose(1, 2).flatten(2))
        torch.testing.assert_close(
            out_BTD, attention(x_BTD, mem_BMD, feats, span), rtol=1e-9, atol=1e-11
        )


def by_the_book(model: TransformerXL, context: Context) -> tuple[dict[int, Tensor], dict[int, int]]:
    """Summed probability (L, N), and number of pairs, of each single distance, the text read in one row."""
    mass: dict[int, Tensor] = {}
    pairs: dict[int, int] = {}
    memory = model.empty_memory(1)
    for begin in range(0, len(IDS) - 1, context.tgt_len):
        first = max(0, begin - context.ext_len)
        piece = torch.from_numpy(IDS[first : min(begin + context.tgt_len, len(IDS) - 1)])
        span = Span.of(context, n_mem=memory.length, n_new=len(piece))
        feats = model.layers[0].attn.pos.prepare(span, like=memory.layers[0])
        h = model.word_emb(piece[None])
        inputs, probs = [], []
        for layer, mem in zip(model.layers, memory.layers, strict=True):
            inputs.append(h)
            norm = layer.attn_norm if layer.pre_lnorm else torch.nn.Identity()
            probs.append(probabilities(layer.attn, norm(h), norm(mem), feats, span)[0])
            h = layer.attend(h, mem, feats, span)
        pairs_of_layers = zip(memory.layers, inputs, strict=True)
        memory = of_hidden([last_tokens(old, new, context) for old, new in pairs_of_layers])
        for t in range(begin - first, len(piece)):
            for s in range(span.n_mem + t + 1):
                distance = span.n_mem + t - s
                if context.same_length and distance >= context.mem_len:
                    continue
                mass[distance] = mass.get(distance, 0) + torch.stack(
                    [prob[:, t, s] for prob in probs]
                )
                pairs[distance] = pairs.get(distance, 0) + 1
    return mass, pairs


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
def test_each_bin_is_a_sum_over_a_plain_loop(context: Context) -> None:
    model = build("pre_lnorm")
    with torch.no_grad():
        mass, pairs = by_the_book(model, context)
    result = measured(model, context, batch_size=3)
    assert result.n_query == len(IDS) - 1
    torch.testing.assert_close(
        result.share_LNK.sum(-1), torch.ones(3, 2).double(), rtol=1e-12, atol=0
    )
    result = measured(model, context, batch_size=1)
    for k, (begin, end) in enumerate(zip(result.edges, result.edges[1:], strict=False)):
        inside = [distance for distance in pairs if begin <= distance < end]
        assert result.pairs_K[k] == sum(pairs[distance] for distance in inside)
        expected = sum((mass[distance] for distance in inside), torch.zeros(3, 2).double())
        torch.testing.assert_close(result.mass_LNK[:, :, k], expected, rtol=1e-9, atol=1e-12)


def test_a_head_that_sees_only_itself_looks_nowhere_else_and_empty_bins_are_left_out() -> None:
    result = measured(build("plain"), Context(tgt_len=4, mem_len=1, same_length=True))
    assert result.share_LNK[..., 0].eq(1).all()
    assert result.mean_distance_LN.eq(0).all()
    shown = measured(build("plain"), Context(tgt_len=4, mem_len=1000)).as_dict()
    assert shown["bins"][-1]["from"] < len(IDS)
    assert np.isfinite(shown["per_key"]).all()
    assert len(shown["share"][0][0]) == len(shown["bins"])


def test_shares_of_a_text_add_up() -> None:
    model, context = build("plain"), Context(tgt_len=4)
    halves = [scoring_stream(IDS, batch_size=4, tgt_len=4).share(rank, 2) for rank in (0, 1)]
    first, second = (attention_by_distance(model, [half], context) for half in halves)
    both, whole = first + second, measured(model, context, 1)
    assert both.n_query == whole.n_query
    torch.testing.assert_close(both.mass_LNK, whole.mass_LNK, rtol=1e-9, atol=1e-12)


def test_nothing_is_left_on_the_model() -> None:
    model = build("plain").train()
    measured(model, CONTEXTS[0])
    assert model.training
    assert not any(layer.attn._forward_hooks for layer in model.layers)


def test_the_reading_of_others_is_what_is_measured() -> None:
    """Hugging Face's memory of zeros is attended to from the first token on; ours has none there."""
    model, context = build("plain"), Context(tgt_len=4, mem_len=6)
    predictor = reading_of("huggingface", model, context, n_token=5).predictor
    stream = scoring_stream(IDS[:5], batch_size=1, tgt_len=4)
    ours, theirs = (
        attention_by_distance(model, [stream], context, predictor=p) for p in (None, predictor)
    )
    assert ours.pairs_K.sum() == 4 * 5 // 2
    assert theirs.pairs_K.sum() == 4 * 5 // 2 + 4 * 6
    assert theirs.share_LNK.sum(-1).flatten().tolist() == pytest.approx(
        [1] * theirs.share_LNK[..., 0].numel()
    )
    original = reading_of(
        "original", model, Context(tgt_len=4, mem_len=3, ext_len=2), n_token=5
    ).predictor
    measured_again = attention_by_distance(model, [stream], context, predictor=original)
    torch.testing.assert_close(measured_again.mass_LNK, ours.mass_LNK)
