"""A text in one piece equals a text in two with a memory between, for every memory and encoding, wherever it is cut."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import N_TOKEN, build, for_models
from tests.laws.test_open_segment import MODELS as OPEN
from tests.laws.test_open_segment import contexts as contexts_of_open
from tests.laws.test_reading import WRITTEN, contexts, whole
from txl import Context, TransformerXL
from txl.evaluation.score import score_text
from txl.generation.rule import Rule
from txl.generation.sampling import Rows, beam_search, generate
from txl.inference.cuda_graph import CudaGraphModel, frozen
from txl.inference.kept import Begun, beginning, misfit, n_whole, read_on
from txl.inference.reader import Reader, reading_context
from txl.model.streams import of_named

N_READ = 19
CUTS = (4, 5, 11)
"""Tokens before the cut: before the end of a segment of five, at it and after the next one's."""


@pytest.fixture
def text(seeded: None) -> list[int]:
    drawn = torch.randint(0, N_TOKEN, (N_READ,), generator=torch.Generator().manual_seed(4))
    return drawn.tolist()


def read_to(model: TransformerXL, context: Context, ids: list[int]) -> Begun:
    return read_on(model, beginning(model, context, ids[0]), ids[1:])


@torch.no_grad()
def require_exact(model: TransformerXL, context: Context, text: list[int]) -> None:
    """For a reader of two rows, segments that are scored, and a text that is read in three pieces."""
    expected = whole(model, torch.tensor([text]), context)
    nats = score_text(model, text, context)
    for cut in CUTS:
        begun = read_to(model, context, text[:cut])
        assert 1 <= len(begun.since) <= context.tgt_len
        assert misfit(model, begun, torch.float32) == ""
        in_parts = read_on(
            model, read_to(model, context, text[: cut // 2 + 1]), text[cut // 2 + 1 : cut]
        )
        assert in_parts._replace(memory=begun.memory) == begun
        torch.testing.assert_close(in_parts.memory.named(), begun.memory.named(), rtol=0, atol=0)
        n_before = cut - len(begun.since)
        rest_2T = torch.tensor([text[n_before:]] * 2)
        reader = Reader(model, begun.context_for(N_READ - cut), 2, begun)
        read = [reader.read(part) for part in rest_2T.split(1 + 8 * (cut % 2), dim=1)]
        torch.testing.assert_close(
            torch.cat(read, dim=1), expected[:, n_before:].expand(2, -1, -1), rtol=0, atol=1e-9
        )
        ids = [*begun.ids, *text[cut:]]
        found = score_text(
            model,
            ids,
            begun.context_for(N_READ - cut),
            first=len(begun.ids),
            predictor=frozen(model, begun.memory),
            n_again=len(begun.again),
        )
        torch.testing.assert_close(found, nats[cut - 1 :], rtol=0, atol=1e-9)


@for_models()
def test_a_text_in_two_pieces_is_read_as_in_one(
    name: str, model: TransformerXL, text: list[int]
) -> None:
    for context in contexts(name).values():
        require_exact(model, context, text)


@pytest.mark.parametrize("name", OPEN)
def test_it_is_for_every_memory_with_other_encodings(name: str, text: list[int]) -> None:
    model = build("plain", **OPEN[name])
    for context in contexts_of_open(model):
        if model.config.recurrence == "below" or not context.ext_len:
            require_exact(model, context, text)


def test_a_memory_that_is_longer_than_the_text_that_goes_on_is_not_cut(text: list[int]) -> None:
    """`context_for` counts what was read, not only what is new."""
    model = build("plain")
    context = Context(tgt_len=4, mem_len=100)
    begun = read_to(model, context, text[:17])
    assert begun.memory.length == 16
    assert begun.context_for(2).mem_len == N_READ
    require_exact(model, context, text)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_after_it_is_what_is_written_after_the_text(
    name: str, text: list[int]
) -> None:
    """Greedily, in rows with prompts of two lengths, and by beams."""
    model = build(name, n_position=60)
    context = reading_context(
        model.config,
        Context(tgt_len=4, mem_len=0 if name in ("no_memory", "recurrent_tokens") else 6),
    )
    begun = read_to(model, context, text[:11])
    prompts = [text[11:14], text[11:17]]
    rows = Rows(model, context, rule=Rule(temperature=0), seeds=[None, None], begun=begun)
    for row, prompt in enumerate(prompts):
        rows.add(row, [begun.since[-1], *prompt])
    found: list[list[int]] = [[], []]
    for _ in range(12):
        for row, token in enumerate(rows.step()):
            if token is not None:
                found[row].append(token)
    for row, prompt in enumerate(prompts):
        expected = list(generate(model, text[:11] + prompt, context, length=8, temperature=0))
        assert found[row][:8] == expected
    how: dict[str, Any] = {"num_beams": 3, "length": 6}
    one = beam_search(model, text[:14], context, **how)
    two = beam_search(model, [begun.since[-1], *text[11:14]], context, begun=begun, **how)
    assert [found.ids for found in one] == [found.ids for found in two]
    assert [found.score for found in two] == pytest.approx([found.score for found in one], abs=1e-9)


def test_a_recording_begins_with_it(text: list[int]) -> None:
    """As a CUDA graph does, over a memory that is full from the first segment on."""
    model = build("plain")
    context = Context(tgt_len=3, mem_len=6)
    begun = read_to(model, context, text[:10])
    expected = score_text(model, text, context)
    graph = CudaGraphModel(model, begun.memory, record=lambda work: work)
    for _ in range(2):
        found = score_text(model, [*begun.since, *text[10:]], context, predictor=graph)
        torch.testing.assert_close(found[-9:], expected[-9:], rtol=0, atol=1e-9)
    assert not graph.failed


def test_only_whole_segments_are_read(text: list[int]) -> None:
    model = build("plain")
    begun = beginning(model, Context(tgt_len=4, mem_len=3), text[0])
    ticks: list[int] = []
    assert [n_whole(begun, n) for n in (1, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]
    after = read_on(model, begun, text[1:9], after_segment=lambda: ticks.append(1))
    assert (len(ticks), after.since, after.n_token) == (2, (text[8],), 9)


@pytest.mark.parametrize(
    "name", ["plain", "compressive", "expire_span", "infini", "knn", "recurrent_tokens"]
)
def test_tensors_that_are_not_of_the_model_and_its_context_are_seen(
    name: str, text: list[int]
) -> None:
    model = build(name)
    mem_len = 0 if name == "recurrent_tokens" else 6
    context = Context(tgt_len=4, mem_len=mem_len, lookup_len=7, compressed_len=3)
    begun = read_to(model, context, text)
    named = begun.memory.named()

    def why(**changes: Tensor) -> str:
        changed = of_named(named | {key.strip("_"): x for key, x in changes.items()})
        return misfit(model, begun._replace(memory=changed), torch.float32)

    assert why() == ""
    for key, tensor in named.items():
        assert "does not fit" in why(**{key: tensor[..., None]})
        assert "does not fit" in why(
            **{key: tensor.to(torch.float32 if tensor.is_floating_point() else torch.float64)}
        )
        if tensor.ndim > 1:
            assert why(**{key: torch.cat([tensor, tensor], dim=-1)}) != ""
        for axis in range(1, tensor.ndim):
            if tensor.shape[axis] > 1:
                assert why(**{key: tensor.narrow(axis, 0, tensor.shape[axis] - 1)}) != ""
    assert why(**{"0.other": named["0"]}) != ""
    longer = dataclasses.replace(
        context, mem_len=max(0, mem_len - 4), compressed_len=0, lookup_len=1
    )
    if name not in ("recurrent_tokens", "expire_span"):
        assert misfit(model, begun._replace(context=longer), torch.float32) != ""
    for change in (
        {"since": (*begun.since, 1)},
        {"again": (1,)},
        {"n_token": begun.n_token + 1},
        {"since": (N_TOKEN, *begun.since[1:])},
        {"since": (-1, *begun.since[1:])},
        {"context": dataclasses.replace(context, tgt_len=100)},
    ):
        assert misfit(model, begun._replace(**change), torch.float32) != ""
