"""From the model's probabilities to those that the next token is sampled from; texts in which no
n-gram occurs twice.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from txl.config import TINY, Checked, option, require

if TYPE_CHECKING:
    from torch import Tensor  # which takes seconds, and whoever reads flags needs none


@dataclass(frozen=True, kw_only=True)
class Rule(Checked):
    """How the next token is sampled. The settings apply in the order: penalty, temperature, top_k,
    top_p, min_p, typical_p.
    """

    temperature: float = option(
        1.0,
        "divisor of the log-probabilities; 0: greedy, the most likely token",
        section="sampling",
        minimum=0,
    )
    top_k: int = option(
        0,
        "sample from the k most likely tokens only, ties with the k-th included (0: off)",
        minimum=0,
    )
    top_p: float = option(
        1.0,
        "sample from the most likely tokens with this total probability (nucleus, Holtzman et al."
        " 2020)",
        minimum=TINY,
        maximum=1,
    )
    min_p: float = option(
        0.0,
        "sample from tokens at least this many times as likely as the most likely one",
        minimum=0,
        maximum=1,
    )
    typical_p: float = option(
        1.0,
        "sample from the tokens whose surprise is nearest to the expected one, with this total"
        " probability (Meister et al. 2022)",
        minimum=TINY,
        maximum=1,
    )
    repetition_penalty: float = option(
        1.0,
        "multiplies the log-probabilities of tokens that occur in the prompt or the text so far"
        " (Keskar et al. 2019); above 1: less repetition",
        minimum=TINY,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.temperature == 0 or self.temperature >= TINY,
            f"--temperature {self.temperature}: must be 0 or at least {TINY:g}",
        )

    @property
    def serves_lazily(self) -> bool:
        """True if `NextWord` can draw by this rule."""
        is_plain = self.top_k == 0 and self.min_p == 0 and self.typical_p == 1
        return self.repetition_penalty == 1 and (is_plain or self.temperature == 0)

    def probabilities(self, logprob: "Tensor", seen: "Tensor | None" = None) -> "Tensor":
        """The probabilities that a token is sampled with, (..., V).

        Args:
            logprob: of all tokens, (..., V).
            seen: True for the tokens that occur in the text so far, (..., V).
        """
        import torch

        if seen is not None:
            logprob = torch.where(seen, logprob * self.repetition_penalty, logprob)
        if self.temperature == 0:
            return torch.zeros_like(logprob).scatter(-1, logprob.argmax(-1, keepdim=True), 1.0)
        # at most 0: cannot overflow
        logprob = (logprob - logprob.amax(-1, keepdim=True)) / self.temperature
        if 0 < self.top_k < logprob.shape[-1]:
            logprob = logprob.masked_fill(logprob < logprob.topk(self.top_k).values[..., -1:], -inf)
        prob = logprob.softmax(-1)
        if self.top_p < 1:
            prob = _first_with(
                self.top_p, prob, logprob.sort(dim=-1, descending=True, stable=True).indices
            )
        if self.min_p > 0:
            prob = _normalised(
                prob.masked_fill(prob < self.min_p * prob.amax(-1, keepdim=True), 0.0)
            )
        if self.typical_p < 1:
            entropy = torch.special.entr(prob).sum(-1, keepdim=True)
            order = (-prob.log() - entropy).abs().sort(dim=-1, stable=True).indices
            prob = _first_with(self.typical_p, prob, order)
        return prob


def _first_with(total: float, prob: "Tensor", order: "Tensor") -> "Tensor":
    """The probabilities of the first tokens in `order` that together reach `total`; 0 for the
    others.
    """
    ordered = prob.gather(-1, order)
    is_late = ordered.cumsum(-1) - ordered >= total  # those before it have it already
    return _normalised(prob.masked_fill(is_late.gather(-1, order.argsort(-1)), 0.0))


def _normalised(prob: "Tensor") -> "Tensor":
    return prob / prob.sum(-1, keepdim=True)


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


def ban(logprob_RV: "Tensor", banned: Sequence[int], ngrams: Iterable[NGrams]) -> None:
    """Set the log-probabilities of what must not follow in each row to -inf: of those banned in
    all, and, of its text, `NGrams.without_repeats`.
    """
    logprob_RV[:, list(banned)] = -inf
    for logprob_V, of_row in zip(logprob_RV, ngrams, strict=True):
        if of_row.repeating:
            logprob_V[of_row.without_repeats(banned, len(logprob_V))] = -inf
