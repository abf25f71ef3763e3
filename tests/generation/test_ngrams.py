"""Tokens that would repeat an n-gram are found, by any n, in any text."""

import random

import pytest

from txl.config import UsageError
from txl.generation.rule import NGrams


def repeating(text: list[int], n: int, n_token: int) -> set[int]:
    """By definition."""
    grams = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)} if n else set()
    return {
        token
        for token in range(n_token)
        if len(text) >= n - 1 and (*text[len(text) - n + 1 :], token) in grams
    }


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_what_would_repeat_an_n_gram_is_banned_unless_that_is_all(n: int) -> None:
    draw = random.Random(n)
    for n_token in (2, 3, 7):
        text: list[int] = []
        ngrams = NGrams(n)
        for _ in range(40):
            banned = repeating(text, n, n_token) | {0}
            assert set(ngrams.without_repeats([0], n_token)) == (
                banned if len(banned) < n_token else {0}
            )
            new = [draw.randrange(n_token) for _ in range(draw.randrange(4))]
            ngrams.add(new)
            text += new
        assert set(NGrams(n, text).without_repeats([], 99)) == repeating(text, n, 99)
    with pytest.raises(UsageError, match="no_repeat_ngram_size -2"):
        NGrams(-2)
