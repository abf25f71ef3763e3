"""Generation draws from what the model says."""

import pytest
import torch

from tests.laws.conftest import build
from txl import Context
from txl.generation.sampling import generate, next_probabilities

LOGPROB = torch.tensor([0.1, 0.4, 0.2, 0.3]).double().log()
CONTEXT = Context(tgt_len=5, mem_len=100)


def test_without_restrictions_the_distribution_is_the_models() -> None:
    torch.testing.assert_close(next_probabilities(LOGPROB), LOGPROB.exp())


def test_temperature_sharpens() -> None:
    expected = torch.tensor([0.01, 0.16, 0.04, 0.09]).double()
    torch.testing.assert_close(next_probabilities(LOGPROB, temperature=0.5), expected / expected.sum())


def test_temperature_zero_takes_the_likeliest() -> None:
    assert next_probabilities(LOGPROB, temperature=0).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("top_k", "kept"), [(1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3])]
)
def test_top_k_keeps_the_likeliest(top_k: int, kept: list[int]) -> None:
    prob = next_probabilities(LOGPROB, top_k=top_k)
    assert prob.nonzero().flatten().tolist() == kept
    torch.testing.assert_close(prob[kept], LOGPROB.exp()[kept] / LOGPROB.exp()[kept].sum())


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.01, [1]), (0.39, [1]), (0.41, [1, 3]), (0.71, [1, 2, 3]), (0.95, [0, 1, 2, 3])]
)
def test_top_p_keeps_the_fewest_that_hold_so_much(top_p: float, kept: list[int]) -> None:
    prob = next_probabilities(LOGPROB, top_p=top_p)
    assert prob.nonzero().flatten().tolist() == kept
    torch.testing.assert_close(prob.sum(), torch.tensor(1.0).double())


def test_greedy_tokens_are_those_of_one_pass_over_the_text() -> None:
    model = build("adaptive")
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    tokens = list(generate(model, prompt, CONTEXT, length=12, temperature=0))
    hidden, _ = model(torch.tensor([prompt + tokens]), None, CONTEXT)
    assert model.log_prob(hidden[0]).argmax(-1)[len(prompt) - 1 : -1].tolist() == tokens


def test_draws_follow_the_distribution() -> None:
    model = build("plain", n_token=4)
    hidden, _ = model(torch.tensor([[2]]), None, CONTEXT)
    expected = model.log_prob(hidden[0, -1]).exp()
    draws = torch.tensor([next(generate(model, [2], CONTEXT, length=1, seed=seed)) for seed in range(600)])
    frequency = torch.bincount(draws, minlength=4) / 600
    assert (frequency - expected).abs().max() < 0.07


def test_one_seed_gives_one_text() -> None:
    model = build("plain")
    one, two, other = (list(generate(model, [1, 2], CONTEXT, length=20, seed=seed)) for seed in (5, 5, 6))
    assert one == two != other


def test_banned_tokens_are_never_drawn() -> None:
    model = build("plain", n_token=4)
    assert set(generate(model, [2], CONTEXT, length=50, banned=[1, 3], seed=0)) <= {0, 2}


def test_memory_reaches_beyond_what_it_holds_for_thousands_of_tokens() -> None:
    model = build("plain", n_layer=1)
    tokens = list(generate(model, [1], Context(tgt_len=5, mem_len=4), length=2000, seed=0))
    assert len(tokens) == 2000


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        next(generate(build("plain"), [], CONTEXT, length=1))
