"""What is drawn while most of the vocabulary stays unread is drawn from the full distribution."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from tests.laws.test_adaptive_laws import CUTS, softmax_of
from txl.generation.next_word import NextWord
from txl.generation.rule import Rule
from txl.inference.words import WordProbabilities
from txl.model.adaptive import AdaptiveSoftmax

BANNED = {"none": [], "some": [0, 4, 11], "a_cluster": [3, 4, 5, 6]}
RULES = [
    Rule(temperature=temperature, top_p=top_p)
    for temperature in (0.4, 1.6)
    for top_p in (0.1, 0.9, 1.0)
]


class Picks:
    """Follows every path through the draws of a function once, with the probability of each."""

    def __init__(self) -> None:
        self.path: list[tuple[int, list[int]]] = []

    def outcomes(
        self, draw: Callable[[Callable[[Tensor], int]], int]
    ) -> Iterator[tuple[int, float]]:
        """(result, probability) for each path."""
        while True:
            self.depth, self.probability = 0, 1.0
            result = draw(self._pick)
            yield result, self.probability
            while self.path and not self.path[-1][1]:
                self.path.pop()
            if not self.path:
                return
            _, others = self.path[-1]
            self.path[-1] = (others[0], others[1:])

    def _pick(self, weight_U: Tensor) -> int:
        if self.depth == len(self.path):
            # what rounding leaves, after the words of a cluster whose weight is known, is no path of its own
            first, *others = (weight_U > 1e-13 * weight_U.sum()).nonzero().flatten().tolist()
            self.path.append((first, others))
        choice, _ = self.path[self.depth]
        self.depth += 1
        self.probability *= float(weight_U[choice] / weight_U.sum())
        return choice


def distribution(
    softmax: AdaptiveSoftmax, hidden_D: Tensor, rule: Rule, banned: list[int]
) -> Tensor:
    """What `NextWord.draw` draws from: its paths added up."""
    prob_V = torch.zeros(softmax.n_token).double()
    for word, probability in Picks().outcomes(
        lambda pick: NextWord(WordProbabilities(softmax), hidden_D, banned).draw(rule, pick)
    ):
        prob_V[word] += probability
    return prob_V


def exact(softmax: AdaptiveSoftmax, hidden_D: Tensor, rule: Rule, banned: list[int]) -> Tensor:
    logprob_V = softmax.log_prob(hidden_D)
    logprob_V[banned] = -torch.inf
    return rule.probabilities(logprob_V)


def assert_same_law(
    softmax: AdaptiveSoftmax, hidden_D: Tensor, rule: Rule, banned: list[int]
) -> None:
    found, expected = (law(softmax, hidden_D, rule, banned) for law in (distribution, exact))
    torch.testing.assert_close(found, expected, msg=lambda message: f"{rule}: {message}")


def levelled(softmax: AdaptiveSoftmax) -> AdaptiveSoftmax:
    """Without biases: with hidden states of zeros all entries of each softmax are equally likely."""
    for bias in (*softmax.biases, softmax.cluster_bias):
        bias.zero_()
    return softmax


@torch.no_grad()
@pytest.mark.parametrize(
    ("cut", "banned"),
    [("narrowing", "none"), ("one_word_clusters", "some"), ("narrowing", "a_cluster")],
)
def test_every_way_to_a_word_together_has_the_words_probability(cut: str, banned: str) -> None:
    softmax, hidden_D = softmax_of(**CUTS[cut]), torch.randn(6).double()
    for rule in RULES:
        assert_same_law(softmax, hidden_D, rule, BANNED[banned])


@torch.no_grad()
def test_what_is_equally_likely_or_beyond_measure_is_drawn_as_from_the_full_distribution() -> None:
    softmax = softmax_of(cutoffs=(2, 3, 11))
    for temperature in (1e-30, 1e30):
        assert_same_law(
            softmax, torch.randn(6).double(), Rule(temperature=temperature, top_p=0.7), []
        )
    for rule in (Rule(), Rule(top_p=0.31), Rule(temperature=1.5, top_p=0.8)):
        assert_same_law(levelled(softmax), torch.zeros(6).double(), rule, [])


@torch.no_grad()
@pytest.mark.parametrize("banned", sorted(BANNED))
def test_temperature_zero_takes_the_first_of_the_likeliest(banned: str) -> None:
    for trial in range(8):
        softmax, hidden_D = softmax_of(cutoffs=(2, 3, 11)), torch.randn(6).double()
        if trial % 2:  # the head's entries are equally likely, and so are words 0, 1, 2 and 11
            softmax, hidden_D = levelled(softmax), hidden_D.zero_()
        logprob_V = softmax.log_prob(hidden_D)
        logprob_V[BANNED[banned]] = -torch.inf
        assert (
            NextWord(WordProbabilities(softmax), hidden_D, BANNED[banned]).draw(
                Rule(temperature=0), no_pick
            )
            == logprob_V.argmax()
        )


def no_pick(weight_U: Tensor) -> int:
    raise AssertionError("nothing is drawn")


@torch.no_grad()
@pytest.mark.parametrize(
    ("rule", "at_most"),
    [(Rule(), 0.08), (Rule(temperature=0.7), 0.08), (Rule(top_p=0.9), 0.25)],
    ids=str,
)
def test_most_words_are_drawn_from_the_head_alone(rule: Rule, at_most: float) -> None:
    """With as much probability in the tail as a model of WikiText-103 has there, some 5 percent."""
    softmax = softmax_of(n_token=3000, cutoffs=(400, 1000))
    generator, n_read, n = torch.Generator().manual_seed(1), 0, 150
    for _ in range(n):
        hidden_D = torch.randn(6, generator=generator).double()
        shortlist, cluster_C = WordProbabilities(softmax).head(hidden_D)
        softmax.cluster_bias += shortlist.logsumexp(0) - cluster_C + math.log(0.025 / 0.95)
        words = NextWord(WordProbabilities(softmax), hidden_D)
        words.draw(rule, lambda weight_U: int(torch.multinomial(weight_U, 1, generator=generator)))
        n_read += 2 - len(words.closed)
    assert 0 < n_read / n < at_most
