"""Tokens are drawn by the rule from what the model says, for each row as if it were alone."""

from typing import Any

import pytest
import torch

from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.config import UsageError
from txl.generation.rule import Rule
from txl.generation.sampling import Rows, generate, side_by_side

LOGPROB = torch.tensor([0.1, 0.4, 0.2, 0.3]).double().log()
CONTEXT = Context(tgt_len=5, mem_len=100)


def test_without_restrictions_the_distribution_is_the_models() -> None:
    torch.testing.assert_close(Rule().probabilities(LOGPROB), LOGPROB.exp())


def test_temperature_sharpens() -> None:
    expected = torch.tensor([0.01, 0.16, 0.04, 0.09]).double()
    torch.testing.assert_close(Rule(temperature=0.5).probabilities(LOGPROB), expected / expected.sum())


def test_temperature_zero_takes_the_likeliest() -> None:
    assert Rule(temperature=0).probabilities(LOGPROB).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("top_k", "kept"), [(1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3])]
)
def test_top_k_keeps_the_likeliest(top_k: int, kept: list[int]) -> None:
    prob = Rule(top_k=top_k).probabilities(LOGPROB)
    assert prob.nonzero().flatten().tolist() == kept
    torch.testing.assert_close(prob[kept], LOGPROB.exp()[kept] / LOGPROB.exp()[kept].sum())


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.01, [1]), (0.39, [1]), (0.41, [1, 3]), (0.71, [1, 2, 3]), (0.95, [0, 1, 2, 3])]
)
def test_top_p_keeps_the_fewest_that_hold_so_much(top_p: float, kept: list[int]) -> None:
    prob = Rule(top_p=top_p).probabilities(LOGPROB)
    assert prob.nonzero().flatten().tolist() == kept
    torch.testing.assert_close(prob.sum(), torch.tensor(1.0).double())


@pytest.mark.parametrize(("min_p", "kept"), [(0.2, [0, 1, 2, 3]), (0.5, [1, 2, 3]), (0.6, [1, 3]), (1.0, [1])])
def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest(min_p: float, kept: list[int]) -> None:
    prob = Rule(min_p=min_p).probabilities(LOGPROB)
    assert prob.nonzero().flatten().tolist() == kept
    torch.testing.assert_close(prob[kept], LOGPROB.exp()[kept] / LOGPROB.exp()[kept].sum())


@pytest.mark.parametrize(("typical_p", "kept"), [(0.2, [3]), (0.4, [2, 3]), (0.6, [1, 2, 3]), (0.95, [0, 1, 2, 3])])
def test_typical_p_keeps_what_is_as_surprising_as_expected(typical_p: float, kept: list[int]) -> None:
    """The entropy is 1.280; the surprise of 0.3 is 1.204, of 0.2 is 1.609, of 0.4 is 0.916, of 0.1 is 2.303."""
    prob = Rule(typical_p=typical_p).probabilities(LOGPROB)
    assert prob.nonzero().flatten().tolist() == kept
    torch.testing.assert_close(prob[kept], LOGPROB.exp()[kept] / LOGPROB.exp()[kept].sum())


def test_the_penalty_is_for_words_that_have_occurred() -> None:
    seen = torch.tensor([False, True, False, False])
    prob = Rule(repetition_penalty=2).probabilities(LOGPROB, seen)
    expected = torch.tensor([0.1, 0.16, 0.2, 0.3]).double()
    torch.testing.assert_close(prob, expected / expected.sum())
    assert Rule(repetition_penalty=2, temperature=0).probabilities(LOGPROB, seen).tolist() == [0, 0, 0, 1]


def test_filters_apply_one_after_the_other() -> None:
    rule = Rule(temperature=0.5, top_k=3, top_p=0.9, min_p=0.3)  # 4 9 16 / 29: 16 and 9 hold 0.86, 4 < 0.3 x 16
    torch.testing.assert_close(rule.probabilities(LOGPROB), torch.tensor([0.0, 0.64, 0.0, 0.36]).double())


SETTINGS = {
    "greedy": {"temperature": 0},
    "plain": {},
    "nucleus": {"temperature": 0.8, "top_p": 0.9},
    "filtered": {"top_k": 20, "min_p": 0.01, "typical_p": 0.95, "repetition_penalty": 1.3},
}
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [7], [2, 7, 1, 8, 2], [1] * 30, [9, 9], [2] * 30, [3] * 25]


def alone(model: TransformerXL, row: int, context: Context, rule: dict[str, Any]) -> list[int]:
    return list(generate(model, PROMPTS[row], context, length=9, seed=row, **rule))


@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        ("plain", "greedy"),
        ("plain", "filtered"),
        ("pre_lnorm_adaptive", "nucleus"),
        ("pre_lnorm_adaptive", "filtered"),
        ("learned_absolute", "plain"),
    ],
)
def test_each_row_is_what_it_would_be_alone(shape: str, rule: str) -> None:
    """With prompts shorter and longer than a segment and than the memory."""
    model, context = build(shape), Context(tgt_len=4, mem_len=12)
    groups = side_by_side(model, [*map(len, PROMPTS)], context.mem_len, batch_size=3)
    assert sorted(row for group in groups for row in group) == [*range(7)]
    assert max(map(len, groups)) == 3
    for group in groups:
        rows, texts = Rows(model, context, rule=Rule(**SETTINGS[rule]), seeds=group), [[] for _ in group]
        for i, row in enumerate(group):
            rows.add(i, PROMPTS[row])
        while not all(rows.is_finished):
            for i, token in enumerate(rows.step()):
                texts[i] += [] if token is None else [token]
                rows.is_finished[i] = len(texts[i]) == 9
        assert texts == [alone(model, row, context, SETTINGS[rule]) for row in group]


def test_where_segments_matter_only_prompts_of_the_same_length_are_together() -> None:
    same, below = build("plain", recurrence="same"), build("plain")
    assert side_by_side(same, [3, 2, 3, 2], 9, batch_size=9) == [[1, 3], [0, 2]]
    assert side_by_side(below, [3, 2, 3, 12, 12, 13], 9, batch_size=9) == [[1, 0, 2], [3, 4], [5]]
    assert side_by_side(below, [3, 2, 3], 0, batch_size=9) == [[1], [0, 2]]


def test_a_text_that_is_continued_in_turns_is_one_text() -> None:
    """Nothing is read again: the tokens of all turns read in one pass have the same most likely next words."""
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


def test_an_impossible_rule_is_refused() -> None:
    for settings in ({"top_p": 0.0}, {"temperature": -1.0}, {"min_p": 2.0}, {"typical_p": 0.0}, {"top_k": -1}):
        with pytest.raises(UsageError, match=f"--{next(iter(settings))}"):
            Rule(**settings)


def test_greedy_tokens_are_those_of_one_pass_over_the_text() -> None:
    model = build("pre_lnorm_adaptive")
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    tokens = list(generate(model, prompt, CONTEXT, length=12, temperature=0))
    hidden, _ = model(torch.tensor([prompt + tokens]), None, CONTEXT)
    assert model.log_prob(hidden[0]).argmax(-1)[len(prompt) - 1 : -1].tolist() == tokens


def test_draws_follow_the_distribution() -> None:
    model = build("plain", n_token=4)
    hidden, _ = model(torch.tensor([[2]]), None, CONTEXT)
    expected = model.log_prob(hidden[0, -1]).exp()
    draws = torch.tensor([next(generate(model, [2], CONTEXT, length=1, seed=seed)) for seed in range(400)])
    frequency = torch.bincount(draws, minlength=4) / 400
    assert (frequency - expected).abs().max() < 0.09


def test_one_seed_gives_one_text() -> None:
    model = build("plain")
    one, two, other = (list(generate(model, [1, 2], CONTEXT, length=20, seed=seed)) for seed in (5, 5, 6))
    assert one == two != other


def test_banned_tokens_are_never_drawn() -> None:
    model = build("plain", n_token=4)
    for rule in ({}, {"top_k": 3}, {"temperature": 0}, {"repetition_penalty": 0.5}):
        assert set(generate(model, [2], CONTEXT, length=50, banned=[1, 3], seed=0, **rule)) <= {0, 2}


def test_memory_reaches_beyond_what_it_holds_for_hundreds_of_tokens() -> None:
    model = build("plain", n_layer=1)
    tokens = list(generate(model, [1], Context(tgt_len=5, mem_len=4), length=600, seed=0))
    assert len(tokens) == 600


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        next(generate(build("plain"), [], CONTEXT, length=1))
