"""A text that is read token by token has the states, and so the probabilities, of a text that is read in segments."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import N_TOKEN, build, config_of, context_of, for_models
from txl import Context, TransformerXL
from txl.attention_rules.softmax import SoftmaxAttention
from txl.config import UsageError
from txl.evaluation.score import score_text
from txl.generation.sampling import beam_search, generate
from txl.inference.frozen import Frozen, Part
from txl.inference.reader import Reader, reading_context

N_READ = 18
"""Tokens of a text: several segments, whose last one is not full."""


def whole(model: TransformerXL, token_BT: Tensor, context: Context) -> Tensor:
    """The hidden states of a text in segments as the definition has them, (B, T, D)."""
    memory, parts, begin = None, [], 0
    for segment_BT in token_BT.split(context.tgt_len, dim=1):
        n_again = min(context.ext_len, begin)
        input_BL = token_BT[:, begin - n_again : begin + segment_BT.shape[1]]
        hidden_BLD, memory = model(input_BL, memory, context)
        parts.append(hidden_BLD[:, n_again:])
        begin += segment_BT.shape[1]
    return torch.cat(parts, dim=1)


def contexts(name: str) -> dict[str, Context]:
    config, own = config_of(name), context_of(name, tgt_len=5)
    found = {"own": own}
    if config.memory == "fifo":
        found = {
            "cut": dataclasses.replace(own, mem_len=7),
            "window": dataclasses.replace(own, mem_len=7, same_length=True),
            "again": dataclasses.replace(own, mem_len=7, ext_len=2),
        }
    if config.memory in ("fifo", "none"):
        found["nothing remembered"] = reading_context(config, dataclasses.replace(own, mem_len=0))
    if config.recurrence == "same":
        found.pop("again", None)
    return found


@pytest.fixture
def text_BT(seeded: None) -> Tensor:
    return torch.randint(0, N_TOKEN, (2, N_READ), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
@for_models()
def test_tokens_one_by_one_are_read_as_whole_segments(
    name: str, model: TransformerXL, text_BT: Tensor
) -> None:
    """Also many at a time, over several segments' ends."""
    for context in contexts(name).values():
        expected = whole(model, text_BT, context)
        for sizes in ([1] * N_READ, [11, 1, 6]):
            reader = Reader(model, context, len(text_BT))
            found = torch.cat([reader.read(part) for part in text_BT.split(sizes, dim=1)], dim=1)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("name", ["plain", "recurrent_tokens"])
@pytest.mark.parametrize("position", ["learned_absolute", "learned_per_layer"])
def test_a_table_that_is_shorter_than_what_stands_together_is_read_alike(
    position: str, name: str, text_BT: Tensor
) -> None:
    model = build(name, position=position, n_position=6)
    context = Context(tgt_len=5, mem_len=4 * (name == "plain"))
    expected = whole(model, text_BT, context)
    reader = Reader(model, context, len(text_BT))
    found = torch.cat([reader.read(token_B1) for token_B1 in text_BT.split(1, dim=1)], dim=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("position", ["learned_absolute", "learned_per_layer"])
def test_memory_tokens_have_places_of_their_own_in_each_segment(
    position: str, text_BT: Tensor
) -> None:
    """A table of as many places as a segment and its memory tokens gives what a longer one does."""
    longer = build("recurrent_tokens", position=position, n_position=40)
    n_token = longer.config.own["n_memory_token"]
    context = Context(tgt_len=5, mem_len=0)
    exact = build("recurrent_tokens", position=position, n_position=5 + 2 * n_token)
    state = longer.state_dict()
    for name, weight in exact.state_dict().items():
        state[name] = state[name][: len(weight)] if weight.ndim else state[name]
    exact.load_state_dict(state)
    expected = whole(longer, text_BT, context)
    torch.testing.assert_close(whole(exact, text_BT, context), expected, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["plain", "learned_absolute", "sinks", "compressive", "same", "no_memory"]
)
def test_rows_may_change_within_a_segment_and_at_its_end(name: str, text_BT: Tensor) -> None:
    model = build(name)
    context = reading_context(
        model.config, context_of(name, tgt_len=4, mem_len=3 * (name != "no_memory"))
    )
    reader, rows, found = Reader(model, context, 2), torch.tensor([1, 1]), []
    for place, token_B1 in enumerate(text_BT[:, :11].split(1, dim=1)):
        if place in (6, 8):
            reader.take_rows(rows)
        found.append(reader.read(token_B1[rows] if place > 5 else token_B1))
    expected = whole(model, text_BT[rows, :11], context)
    torch.testing.assert_close(torch.cat(found[6:], dim=1), expected[:, 6:], rtol=0, atol=1e-9)


@torch.no_grad()
def test_an_encoding_that_counts_back_reads_a_token_as_the_last_of_its_text(
    text_BT: Tensor,
) -> None:
    model, context = build("sinusoid_input", count_back=True), Context(tgt_len=4, mem_len=5)
    reader = Reader(model, context, len(text_BT))
    for n_token, token_B1 in enumerate(text_BT[:, :7].split(1, dim=1), start=1):
        expected = whole(model, text_BT[:, :n_token], context)
        torch.testing.assert_close(reader.read(token_B1), expected[:, -1:], rtol=0, atol=1e-9)


def test_what_remembers_nothing_reads_half_of_a_segment_again() -> None:
    of = {name: config_of(name) for name in ("plain", "no_memory", "infini", "recurrent_tokens")}
    nothing = Context(tgt_len=9, mem_len=0)
    again = Context(tgt_len=5, mem_len=0, ext_len=4)
    assert [reading_context(of[name], nothing) for name in of] == [again, again, nothing, nothing]
    assert reading_context(of["plain"], Context(tgt_len=9, mem_len=3, ext_len=2)) == Context(
        tgt_len=9, mem_len=3
    )
    assert reading_context(of["plain"], Context(tgt_len=1, mem_len=0)) == Context(
        tgt_len=1, mem_len=0
    )


WRITTEN = [
    "plain",
    "sinusoid_input",
    "learned_absolute",
    "lsh_rotary",
    "same",
    "no_memory",
    "compressive",
]
WRITTEN += ["sinks", "expire_span", "infini_delta", "knn", "neural", "recurrent_tokens"]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_has_the_probabilities_that_are_scored(name: str) -> None:
    """By greedy sampling, over many segments, and by beams, whose scores are those of the text."""
    model, prompt = build(name, n_position=40), [3, 1, 4, 1, 5, 9, 2]
    for own in (context_of(name, tgt_len=4), Context(tgt_len=5, mem_len=0)):
        context = reading_context(model.config, own)
        text = [*prompt, *generate(model, prompt, context, length=17, temperature=0)]
        with torch.no_grad():
            likeliest = model.log_prob(whole(model, torch.tensor([text]), context)).max(-1)
        assert text[len(prompt) :] == likeliest.indices[0, len(prompt) - 1 : -1].tolist()
        nats_N = score_text(model, text, context, first=len(prompt))
        torch.testing.assert_close(
            -nats_N, likeliest.values[0, len(prompt) - 1 : -1], rtol=0, atol=1e-9
        )
        for found in beam_search(model, prompt, context, num_beams=3, length=6, length_penalty=0.0):
            nats_N = score_text(model, [*prompt, *found.ids], context, first=len(prompt))
            assert found.score == pytest.approx(-float(nats_N.sum()), abs=1e-9)


@pytest.mark.parametrize("part", [None, Part(n_kept=3, n_full=3)])
def test_a_sharded_model_refuses_what_it_does_not_support_in_parts_too(part: Part | None) -> None:
    model = build("rotary")
    model.is_sharded = True
    with pytest.raises(UsageError, match=r"^--clamp_len 3: "):
        Frozen(model)(
            torch.zeros(1, 2, dtype=torch.long),
            model.empty_memory(1),
            Context(clamp_len=3),
            part=part,
        )


class Halved(SoftmaxAttention):
    """A rule of its own, which a reader must ask."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return 0.5 * super().forward(*args, **kwargs)


@torch.no_grad()
def test_turned_keys_leave_another_rule_or_a_hook_to_the_layers(text_BT: Tensor) -> None:
    context = Context(tgt_len=5, mem_len=7)
    model = build("rotary")
    plain = Reader(model, context, 2).read(text_BT)
    asked: list[object] = []
    handle = model.layers[0].attn.rule.register_forward_hook(lambda *_: asked.append(None))
    torch.testing.assert_close(Reader(model, context, 2).read(text_BT), plain, rtol=0, atol=1e-9)
    assert asked
    handle.remove()
    for layer in model.layers:
        layer.attn.rule = Halved(model.config).eval()
    expected = whole(model, text_BT, context)
    assert not torch.allclose(expected, plain)
    torch.testing.assert_close(Reader(model, context, 2).read(text_BT), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("changes", [{"clamp_len": 5}, {"same_length": True}])
def test_turned_keys_refuse_a_context_that_the_model_does_not_support(
    changes: dict[str, Any],
) -> None:
    model = build("rotary")
    model.remember("sinks")
    with pytest.raises(UsageError):
        Reader(model, Context(tgt_len=5, mem_len=7, **changes), 1)
