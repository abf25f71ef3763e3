"""Dynamic evaluation against the papers' equations, and what it may never do."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import N_TOKEN, build, context_of
from txl import Context, TransformerXL
from txl.config import UsageError
from txl.evaluation.config import CacheConfig, DynamicConfig
from txl.evaluation.reading import Segments
from txl.evaluation.score import evaluate
from txl.evaluation.test_time import (
    ContinuousCache,
    DynamicEvaluation,
    Mixture,
    gradient_statistics,
)

CONTEXT = Context(tgt_len=5, mem_len=7)
SGD = DynamicConfig(dynamic="sgd", dynamic_lr=0.05, dynamic_decay=0.1)
RMS = DynamicConfig(dynamic="rms", dynamic_lr=0.01, dynamic_decay=0.2, dynamic_epsilon=0.003)


def cut(text_BL: Tensor) -> Segments:
    """The text in segments of tgt_len; the last is shorter."""
    ends = range(0, text_BL.shape[1] - 1, CONTEXT.tgt_len)
    pieces = [text_BL[:, begin : begin + CONTEXT.tgt_len + 1] for begin in ends]
    return [(piece[:, :-1], piece[:, 1:], None) for piece in pieces]


def text(batch_size: int, seed: int = 3) -> Tensor:
    return torch.randint(
        0, N_TOKEN, (batch_size, 23), generator=torch.Generator().manual_seed(seed)
    )


def nats_of(model: TransformerXL, config: DynamicConfig, text_BL: Tensor) -> list[Tensor]:
    """Nats of each segment, (B, T)."""
    predictor = DynamicEvaluation(
        model, config, gradient_statistics(model, cut(text(1, seed=9)), CONTEXT)
    )
    memory, nats = predictor.fresh_memory(len(text_BL)), []
    for input_BT, target_BT, _ in cut(text_BL):
        nll_BT, memory = predictor.nll(input_BT, target_BT, memory, CONTEXT)
        memory = predictor.learn(memory, None)
        nats.append(nll_BT)
    return nats


def gradients_by_hand(
    model: TransformerXL, segment: tuple, memory: object
) -> tuple[dict[str, Tensor], Tensor, object]:
    """The gradient of the mean loss, by backward() through the model itself."""
    model.zero_grad()
    nll_BT, memory = model.nll(segment[0], segment[1], memory, CONTEXT)
    nll_BT.mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}, nll_BT.detach(), memory


KINDS: dict[str, dict[str, Any]] = {
    "adaptive": {},
    "adaptive_one_table": {},
    "untied": {},
    "learned_relative": {},
    "learned_absolute": {"attention": "lsh"},
    "none": {"attention": "performer"},
    "pre_lnorm": {"reversible": True},
}
"""Models of the list in tests/laws, with what differs here."""


def model_of(kind: str) -> TransformerXL:
    return build(kind, n_layer=2, **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_statistics_are_the_mean_of_squares_over_segments(kind: str) -> None:
    model, segments = model_of(kind), cut(text(2))
    squares, memory = [], None
    for segment in segments:
        gradients, _, memory = gradients_by_hand(model, segment, memory)
        squares.append({name: g**2 for name, g in gradients.items()})
    statistics = gradient_statistics(model, segments, CONTEXT)
    assert statistics.keys() == squares[0].keys()
    for name, mean in statistics.items():
        torch.testing.assert_close(
            mean, sum(s[name] for s in squares) / len(squares), rtol=1e-10, atol=1e-14
        )


@pytest.mark.parametrize(
    ("kind", "batch_size", "config"),
    [
        ("adaptive", 3, SGD),
        ("adaptive_one_table", 3, RMS),
        ("untied", 1, SGD),
        ("untied", 3, RMS),
        ("pre_lnorm", 3, RMS),
        ("learned_absolute", 1, RMS),
    ],
)
def test_updates_are_the_formula(config: DynamicConfig, kind: str, batch_size: int) -> None:
    """The update rules of Krause et al. 2018 on a second model that is really changed."""
    model, other, text_BL = model_of(kind), model_of(kind), text(batch_size)
    other.load_state_dict(model.state_dict())
    square = gradient_statistics(model, cut(text(1, seed=9)), CONTEXT)
    rms = {name: s.sqrt() for name, s in square.items()}
    mean_rms = sum(float(r.sum()) for r in rms.values()) / sum(r.numel() for r in rms.values())
    trained = {name: p.detach().clone() for name, p in other.named_parameters()}
    memory, expected = None, []
    clipped = 0
    for segment in cut(text_BL):
        gradients, nll_BT, memory = gradients_by_hand(other, segment, memory)
        expected.append(nll_BT)
        for name, p in other.named_parameters():
            step, pull = gradients[name], torch.full_like(p, config.dynamic_decay)
            if config.dynamic == "rms":
                step = step / (rms[name] + config.dynamic_epsilon)
                pull = (config.dynamic_decay * rms[name] / mean_rms).clamp(max=1)
                clipped += int((pull == 1).sum())
            p.data += -config.lr * step + pull * (trained[name] - p.data)
    assert clipped or config.dynamic == "sgd"
    for ours, theirs in zip(nats_of(model, config, text_BL), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_a_cache_is_mixed_with_the_adapted_model_which_learns_as_without_it() -> None:
    model = build("pre_lnorm_adaptive", n_layer=2)
    cache = ContinuousCache(model, CacheConfig(cache_size=9, cache_theta=0.05, cache_lambda=0.3))
    alone, together = DynamicEvaluation(model, SGD), Mixture(DynamicEvaluation(model, SGD), [cache])
    memory, mixed_memory, state = (
        alone.fresh_memory(2),
        together.fresh_memory(2),
        cache.fresh_state(2),
    )
    for input_BT, target_BT, _ in cut(text(2)):
        hidden_BTD, _ = memory.learner(input_BT, memory.memory, CONTEXT)
        plain_BT = memory.learner.softmax.nll(hidden_BTD, target_BT)
        expected_BT, state = cache.mixed(plain_BT, hidden_BTD, target_BT, state)
        mixed_BT, mixed_memory = together.nll(input_BT, target_BT, mixed_memory, CONTEXT)
        torch.testing.assert_close(mixed_BT, expected_BT)
        memory = alone.learn(alone.nll(input_BT, target_BT, memory, CONTEXT)[1], None)
        mixed_memory = together.learn(mixed_memory, None)
    assert not torch.allclose(mixed_BT, plain_BT)


def test_the_model_is_left_as_it_was() -> None:
    """Also by a text that breaks off."""
    model = build("pre_lnorm_adaptive", n_layer=2).train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    objects = dict(model.named_parameters())

    def broken() -> Segments:
        yield from cut(text(2))[:3]
        raise KeyboardInterrupt

    predictor = DynamicEvaluation(model, SGD)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, broken(), CONTEXT, predictor=predictor)
    evaluate(model.train(), cut(text(2)), CONTEXT, predictor=predictor)
    assert model.training
    gradient_statistics(model, cut(text(2)), CONTEXT)
    for name, p in model.named_parameters():
        assert p is objects[name]
        assert p.requires_grad
        assert p.grad is None
        assert torch.equal(p, before[name])


def test_what_does_not_count_is_not_learnt_from() -> None:
    """A stream beside others that is over, or only warms up, leaves the weights as the others make them."""
    model, text_BL = build("pre_lnorm_adaptive", n_layer=2), text(2)

    def segments(filled: Tensor) -> Segments:
        counts_B1 = torch.tensor([[True], [False]])
        for input_BT, target_BT, _ in cut(torch.cat([text_BL[:1], filled])):
            yield input_BT, target_BT, counts_B1.expand_as(target_BT)

    predictor = DynamicEvaluation(
        model, RMS, gradient_statistics(model, segments(text_BL[1:]), CONTEXT)
    )
    one = evaluate(model, segments(text_BL[1:]), CONTEXT, predictor=predictor)
    other = evaluate(model, segments(torch.zeros_like(text_BL[1:])), CONTEXT, predictor=predictor)
    # each text from the trained weights
    alone = evaluate(model, cut(text_BL[:1]), CONTEXT, predictor=predictor)
    assert one.tokens == alone.tokens
    assert other.nats == pytest.approx(one.nats, rel=1e-12)
    assert alone.nats == pytest.approx(one.nats, rel=1e-12)


def test_layers_may_be_computed_a_second_time() -> None:
    """The backward pass then reads weights once more: the adapted ones."""
    model, text_BL = build("pre_lnorm_adaptive", n_layer=2), text(1)[:, :12]
    expected = torch.cat(nats_of(model, RMS, text_BL), 1)
    for layer in model.layers:
        layer.recompute = True
    torch.testing.assert_close(torch.cat(nats_of(model, RMS, text_BL), 1), expected)


def test_what_it_cannot_do_is_said() -> None:
    model = build("plain")
    predictor = DynamicEvaluation(
        model, DynamicConfig(dynamic="sgd", dynamic_lr=1e200, dynamic_decay=0)
    )
    with pytest.raises(
        UsageError, match=r"^--dynamic_lr 1e\+200: the weights diverged.*use a smaller one$"
    ):
        evaluate(model, cut(text(1)), CONTEXT, predictor=predictor)
    with pytest.raises(ValueError, match="mean squares"):
        DynamicEvaluation(model, RMS)
    with pytest.raises(ValueError, match="no segment was scored"):
        predictor.learn(predictor.fresh_memory(1), None)


@pytest.mark.parametrize("name", ["infini", "neural", "recurrent_tokens"])
@pytest.mark.parametrize("config", [SGD, RMS], ids=["sgd", "rms"])
def test_memories_with_a_gradient_are_detached_between_segments(
    name: str, config: DynamicConfig, seeded: None
) -> None:
    """Each segment has a backward pass of its own, and the first is scored as without learning."""
    model, context = build(name), context_of(name, tgt_len=5)
    text_BL = text(1)
    statistics = gradient_statistics(model, cut(text_BL), context)
    predictor = DynamicEvaluation(model, config, statistics)
    memory, nats = predictor.fresh_memory(1), []
    for input_BT, target_BT, _ in cut(text_BL):
        nll_BT, memory = predictor.nll(input_BT, target_BT, memory, context)
        memory = predictor.learn(memory, None)
        nats.append(nll_BT)
    plain, remembered = [], None
    with torch.no_grad():
        for input_BT, target_BT, _ in cut(text_BL):
            nll_BT, remembered = model.nll(input_BT, target_BT, remembered, context)
            plain.append(nll_BT)
    torch.testing.assert_close(nats[0], plain[0])
    assert all(
        not torch.allclose(one, other) for one, other in zip(nats[1:], plain[1:], strict=True)
    )
