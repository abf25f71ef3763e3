"""Tokens are drawn by the rule from what the model says, for each row as if it were alone."""

import itertools
from typing import Any

import pytest
import torch

from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.config import UsageError
from txl.generation.rule import Rule
from txl.generation.sampling import Rows, drawn, generate, side_by_side
from txl.inference.reader import reading_context

LOGPROB = torch.tensor([0.1, 0.4, 0.2, 0.3]).double().log()
CONTEXT = Context(tgt_len=5, mem_len=100)


SEEN = torch.tensor([False, True, False, False])
# and what is left of the probabilities, in proportion
RULES: list[tuple[dict[str, Any], list[float]]] = [
    ({}, [1, 4, 2, 3]),
    ({"temperature": 0.5}, [1, 16, 4, 9]),
    ({"temperature": 0}, [0, 1, 0, 0]),
    ({"top_k": 1}, [0, 4, 0, 0]),
    ({"top_k": 3}, [0, 4, 2, 3]),
    ({"top_k": 9}, [1, 4, 2, 3]),
    ({"top_p": 0.01}, [0, 4, 0, 0]),
    ({"top_p": 0.39}, [0, 4, 0, 0]),
    ({"top_p": 0.41}, [0, 4, 0, 3]),
    ({"top_p": 0.71}, [0, 4, 2, 3]),
    ({"top_p": 0.95}, [1, 4, 2, 3]),
    ({"min_p": 0.2}, [1, 4, 2, 3]),  # beside the likeliest
    ({"min_p": 0.5}, [0, 4, 2, 3]),
    ({"min_p": 0.6}, [0, 4, 0, 3]),
    ({"min_p": 1.0}, [0, 4, 0, 0]),
    # the entropy is 1.280; the surprise of 0.3 is 1.204, of 0.2 is 1.609, of 0.4 is 0.916, of 0.1 is 2.303
    ({"typical_p": 0.2}, [0, 0, 0, 3]),
    ({"typical_p": 0.4}, [0, 0, 2, 3]),
    ({"typical_p": 0.6}, [0, 4, 2, 3]),
    ({"typical_p": 0.95}, [1, 4, 2, 3]),
    ({"repetition_penalty": 2}, [1, 1.6, 2, 3]),  # for words that have occurred
    ({"repetition_penalty": 2, "temperature": 0}, [0, 0, 0, 1]),
    # filters apply one after the other: 4 9 16 / 29: 16 and 9 hold 0.86, 4 < 0.3 x 16
    ({"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.3}, [0, 16, 0, 9]),
]


def test_a_rule_keeps_of_the_distribution_what_it_says() -> None:
    for settings, left in RULES:
        found = Rule(**settings).probabilities(
            LOGPROB, SEEN if "repetition_penalty" in settings else None
        )
        expected = torch.tensor(left).double() / sum(left)
        torch.testing.assert_close(
            found, expected, msg=lambda m, settings=settings: f"{settings}: {m}"
        )
    for settings in (
        {"top_p": 0.0},
        {"temperature": -1.0},
        {"min_p": 2.0},
        {"typical_p": 0.0},
        {"top_k": -1},
    ):
        with pytest.raises(UsageError, match=f"--{next(iter(settings))}"):
            Rule(**settings)


def test_an_index_is_drawn_as_often_as_its_weight_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """By every share of the sum, 0 included; one that is rounded up to it, too."""
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 4.0, 0.0])
    for step, index in enumerate([1, 1, 1, 3, 4, 4, 4, 4]):
        monkeypatch.setattr(
            torch, "rand", lambda *_, step=step, **__: torch.tensor(step / 8).double()
        )
        assert drawn(weights, None) == index
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(1.0).double())
    assert drawn(weights[:5], None) == 4


SETTINGS = {
    "greedy": {"temperature": 0},
    "plain": {},
    "nucleus": {"temperature": 0.8, "top_p": 0.9},
    "filtered": {"top_k": 20, "min_p": 0.01, "typical_p": 0.95, "repetition_penalty": 1.3},
}
PROMPTS = [
    [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5],
    [7],
    [2, 7, 1, 8, 2],
    [1] * 30,
    [9, 9],
    [2] * 30,
    [3] * 25,
]


def alone(model: TransformerXL, row: int, context: Context, rule: dict[str, Any]) -> list[int]:
    return list(generate(model, PROMPTS[row], context, length=9, seed=row, **rule))


@pytest.mark.parametrize(
    ("shape", "rule", "mem_len"),
    [
        ("plain", "greedy", 12),
        ("plain", "greedy", 0),
        ("pre_lnorm_adaptive", "nucleus", 12),
        ("pre_lnorm_adaptive", "filtered", 12),
        ("learned_absolute", "plain", 12),
        ("same", "greedy", 12),
    ],
)
def test_each_row_is_what_it_would_be_alone(shape: str, rule: str, mem_len: int) -> None:
    """With prompts shorter and longer than a segment and than the memory."""
    model = build(shape, n_layer=2)
    context = reading_context(model.config, Context(tgt_len=4, mem_len=mem_len))
    groups = side_by_side([*map(len, PROMPTS)], batch_size=3)
    assert sorted(row for group in groups for row in group) == [*range(7)]
    assert max(map(len, groups)) == 3
    for group in groups:
        rows, texts = (
            Rows(model, context, rule=Rule(**SETTINGS[rule]), seeds=group),
            [[] for _ in group],
        )
        for i, row in enumerate(group):
            rows.add(i, PROMPTS[row])
        while not all(rows.is_finished):
            for i, token in enumerate(rows.step()):
                texts[i] += [] if token is None else [token]
                rows.is_finished[i] = len(texts[i]) == 9
        assert texts == [alone(model, row, context, SETTINGS[rule]) for row in group]


def test_prompts_of_similar_length_are_together() -> None:
    assert side_by_side([3, 2, 30, 12, 3], batch_size=2) == [[1, 0], [4, 3], [2]]


def test_a_text_that_is_continued_in_turns_is_one_text() -> None:
    """Greedy tokens are those of one pass over all turns; nothing is read again."""
    model = build("pre_lnorm_adaptive")
    rows = Rows(model, CONTEXT, rule=Rule(temperature=0), seeds=[0])
    text: list[int] = []
    places: list[int] = []
    for turn in ([3, 1, 4], [1, 5, 9, 2, 6, 5, 3], []):
        rows.add(0, turn)
        text += turn
        n_drawn = 0
        while n_drawn < 4:
            (token,) = rows.step()
            if token is not None:
                places.append(len(text))
                text.append(token)
                n_drawn += 1
    hidden, _ = model(torch.tensor([text]), None, CONTEXT)
    likeliest = model.log_prob(hidden[0]).argmax(-1)
    assert [likeliest[place - 1].item() for place in places] == [text[place] for place in places]


def test_draws_follow_the_distribution_and_the_seed() -> None:
    """Banned tokens are never drawn, by any rule."""
    model = build("plain", n_token=4)
    expected = model.log_prob(model(torch.tensor([[2]]), None, CONTEXT).hidden_BTD[0, -1]).exp()
    draws = torch.tensor(
        [next(generate(model, [2], CONTEXT, length=1, seed=seed)) for seed in range(200)]
    )
    assert (torch.bincount(draws, minlength=4) / 200 - expected).abs().max() < 0.13
    one, two, other = (
        list(generate(model, [1, 2], CONTEXT, length=20, seed=seed)) for seed in (5, 5, 6)
    )
    assert one == two != other
    for rule in ({}, {"top_k": 3}, {"temperature": 0}, {"repetition_penalty": 0.5}):
        assert set(generate(model, [2], CONTEXT, length=20, banned=[1, 3], seed=0, **rule)) <= {
            0,
            2,
        }


def test_no_n_gram_occurs_twice_in_any_row() -> None:
    """Not those of the prompt either; drawn from some clusters of the softmax or from all words."""
    model = build("pre_lnorm_adaptive")
    for rule in (Rule(temperature=0.3), Rule(temperature=0.3, top_k=9)):
        rows = Rows(model, CONTEXT, rule=rule, no_repeat_ngram_size=2, seeds=[0, 1])
        texts = [[3, 1, 4, 3], [1, 4]]
        for row, text in enumerate(texts):
            rows.add(row, text)
        while len(texts[1]) < 60:
            for text, token in zip(texts, rows.step(), strict=True):
                text += [] if token is None else [token]
        assert all(len(set(pairs := [*itertools.pairwise(text)])) == len(pairs) for text in texts)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        next(generate(build("plain", n_layer=1), [], CONTEXT, length=1))
