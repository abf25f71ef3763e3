"""Texts in which no n-gram occurs twice."""

from collections.abc import Iterable, Sequence, Set

import torch
from torch import Tensor

from txl.config import require


class NGrams:
    """The n-grams of a growing text. Source: Paulus et al. 2018, section 2.5.

    Args:
        n: tokens of an n-gram; 1: no token occurs twice, 0: all may.
    Raises:
        UsageError: if n is below 0.
    """

    def __init__(self, n: int, text: Iterable[int] = ()) -> None:
        require(n >= 0, f"no_repeat_ngram_size {n}: must be 0, for none, or a number of tokens")
        self._n = n
        self._last: tuple[int, ...] = ()
        self._followers: dict[tuple[int, ...], set[int]] = {}
        self.add(text)

    def add(self, tokens: Iterable[int]) -> None:
        """Add tokens to the end of the text."""
        for token in tokens if self._n else ():
            longest = (*self._last, token)
            if len(longest) == self._n:
                self._followers.setdefault(self._last, set()).add(token)
                longest = longest[1:]
            self._last = longest

    @property
    def repeating(self) -> Set[int]:
        """Ids that would repeat an n-gram."""
        return self._followers.get(self._last, frozenset())

    def without_repeats(self, banned: Iterable[int], n_token: int) -> list[int]:
        """Ids that must not follow: those banned anyhow and `repeating`, unless that is all of
        n_token ids.
        """
        together = {*self.repeating, *banned}
        return list(together if len(together) < n_token else banned)


def ban(logprob_RV: Tensor, banned: Sequence[int], ngrams: Iterable[NGrams]) -> None:
    """Set the log-probabilities of what must not follow in each row to -inf: of those banned in
    all, and, of its text, `NGrams.without_repeats`.
    """
    logprob_RV[:, list(banned)] = -torch.inf
    for logprob_V, of_row in zip(logprob_RV, ngrams, strict=True):
        if of_row.repeating:
            logprob_V[of_row.without_repeats(banned, len(logprob_V))] = -torch.inf
