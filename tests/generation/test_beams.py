"""Beam search finds what an exhaustive search finds, and prunes as defined."""

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch

from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.generation.sampling import Hypothesis, beam_search, generate

CONTEXT = Context(tgt_len=3, mem_len=20)
PROMPT = [2, 0, 3, 1, 2, 2, 1]  # longer than a segment


def sharp(**settings: object) -> TransformerXL:
    """A model whose next words depend strongly on the text."""
    model = build("plain", n_token=4, n_position=40, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 3
    return model


def enumerated(
    model: TransformerXL,
    length: int,
    length_penalty: float,
    has_ended: Callable[[Sequence[int]], bool],
) -> list[Hypothesis]:
    """Every continuation, scored by one pass over prompt and continuation."""
    ids_CL = torch.tensor(list(itertools.product(range(4), repeat=length)))
    hidden_CTD, _ = model(
        torch.cat([torch.tensor([PROMPT]).expand(len(ids_CL), -1), ids_CL], dim=1), None, CONTEXT
    )
    logprob_CLV = model.log_prob(hidden_CTD[:, len(PROMPT) - 1 : -1])
    total_CL = logprob_CLV.gather(2, ids_CL[..., None])[..., 0].cumsum(1)
    found = {}
    for ids, totals in zip(ids_CL.tolist(), total_CL.tolist(), strict=True):
        n_token = next((n for n in range(1, length) if has_ended(ids[:n])), length)
        found[tuple(ids[:n_token])] = totals[n_token - 1] / n_token**length_penalty
    return sorted((Hypothesis(*one) for one in found.items()), key=lambda one: -one.score)


@pytest.mark.parametrize(
    ("end", "length_penalty"), [((9,), 0.0), ((3,), 1.0), ((3,), -0.5), ((1, 2), 1.0)], ids=str
)
def test_a_search_as_wide_as_all_continuations_finds_the_best(
    end: tuple[int, ...], length_penalty: float
) -> None:
    def has_ended(ids: Sequence[int]) -> bool:
        return tuple(ids[-len(end) :]) == end

    model = sharp()
    settings = {"length": 4, "length_penalty": length_penalty, "has_ended": has_ended}
    found = beam_search(model, PROMPT, CONTEXT, num_beams=4**4, **settings)
    expected = enumerated(model, **settings)
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], rel=1e-9)


@pytest.mark.parametrize("position", ["rel_sinusoid", "learned_absolute"])
def test_beams_are_the_best_extensions_of_the_beams_before(position: str) -> None:
    """By definition, with either kind of memory."""
    model = sharp(position=position)
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for _ in range(6):
        extended = []
        for logprob, ids in beams:
            hidden, _ = model(torch.tensor([[*PROMPT, *ids]]), None, CONTEXT)
            extended += [
                (logprob + new, (*ids, token))
                for token, new in enumerate(model.log_prob(hidden[0, -1]).tolist())
            ]
        beams = sorted(extended, reverse=True)[:3]
    found = beam_search(model, PROMPT, CONTEXT, num_beams=3, length=6, length_penalty=0)
    assert [one.ids for one in found] == [ids for _, ids in beams]


@pytest.mark.parametrize("ngram", [0, 2])
def test_one_beam_is_greedy_and_what_is_banned_never_occurs(ngram: int) -> None:
    model = sharp()
    text = list(PROMPT)
    for _ in range(7):
        hidden, _ = model(torch.tensor([text]), None, CONTEXT)
        repeats = {b for a, b in itertools.pairwise(text) if ngram and a == text[-1]}
        banned = [1] if len(repeats | {1}) == 4 else list(repeats | {1})
        text.append(
            int(
                model.log_prob(hidden[0, -1])
                .index_fill(0, torch.tensor(banned), -torch.inf)
                .argmax()
            )
        )
    settings = {"length": 7, "banned": [1], "no_repeat_ngram_size": ngram}
    (found,) = beam_search(model, PROMPT, CONTEXT, num_beams=1, **settings)
    assert [*PROMPT, *found.ids] == text
    assert list(generate(model, PROMPT, CONTEXT, temperature=0, **settings)) == list(found.ids)
