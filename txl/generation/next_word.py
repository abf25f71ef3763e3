"""The next word, drawn with no more clusters of the adaptive softmax computed than it depends on.

Only the needed parts of the next word's distribution are computed: the head, and the tail clusters
that the sampled word or the top_p decision depends on.

Why sampling is exact. P_c is the probability of cluster c, p_w <= P_c that of its words, a is
1 / temperature. A closed cluster, whose words have not been computed, of n words has a total
weight of at least P_c^a min(1, n^(1-a)) and at most U_c = P_c^a max(1, n^(1-a)): one word has all
the probability, or all have the same. Sample among the computed words, by p_w^a, and the closed
clusters, by U_c. A computed word is the result. A closed cluster is computed: word w is the result
with probability p_w^a / U_c, and with the rest one starts again, with the cluster open. So in each
round every word is the result with probability p_w^a over the sum of the weights, computed or not.
There are at most as many extra rounds as clusters. A banned word has weight 0, and a closed cluster
with banned words the lower bound 0.

With top_p a sampled word is the result only if it is in the nucleus. It is, if the likelier
computed words and the U_c of clusters with P_c >= p_w weigh less than top_p of the lower bound of
the total. If that does not decide, the likeliest closed cluster is computed. At temperature 0 a
closed cluster with P_c below the likeliest computed word holds no likelier one.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from txl.generation.rule import Rule
from txl.inference.words import WordProbabilities


@dataclass(frozen=True)
class Closed:
    """A cluster that has not been computed: the log-probability of all its words together, and how
    many of them may be sampled.
    """

    logprob: float
    n_word: int
    has_banned: bool

    def least(self, temperature: float) -> float:
        """A lower bound of log(sum p^(1/temperature)) - logprob / temperature over the words that
        may be sampled.
        """
        if self.has_banned:
            return -math.inf
        return min(0.0, self._if_even(temperature))

    def most(self, temperature: float) -> float:
        """An upper bound of the same."""
        if self.n_word:
            return max(0.0, self._if_even(temperature))
        return -math.inf

    def _if_even(self, temperature: float) -> float:
        """The value if all words are equally likely; it is 0 if one word has
        all the probability.
        """
        return (1 - 1 / temperature) * math.log(max(1, self.n_word))


class NextWord:
    """The distribution of the next word, as far as it has been computed: the shortlist, then
    cluster by cluster.

    Args:
        words: of the model.
        hidden_D: the model's last hidden state.
        banned: ids that are never sampled.
        head: `words.head(hidden_D)`, if it is known.
    """

    def __init__(
        self,
        words: WordProbabilities,
        hidden_D: Tensor,
        banned: Sequence[int] = (),
        *,
        head: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self._words = words
        self._hidden_D = hidden_D
        self._firsts = [0, *accumulate(words.sizes)]
        self._banned = []
        for first, size in zip(self._firsts, words.sizes, strict=False):
            within = set()
            for word in banned:
                if first <= word < first + size:
                    within.add(word - first)
            self._banned.append(sorted(within))
        shortlist, cluster_C = words.head(hidden_D) if head is None else head
        self._computed = {0: self._allowed(shortlist, 0)}
        self.closed: dict[int, Closed] = {}
        """Tail clusters that have not been computed, numbered from 1."""
        for c, logprob in enumerate(cluster_C.tolist(), start=1):
            n_banned = len(self._banned[c])
            self.closed[c] = Closed(logprob, words.sizes[c] - n_banned, n_banned > 0)

    @property
    def logprob_U(self) -> Tensor:
        """Log-probabilities of the computed words, in the order of their ids."""
        return torch.cat([self._computed[c] for c in sorted(self._computed)])

    def draw(self, rule: Rule, pick: Callable[[Tensor], int]) -> int:
        """The id of a word sampled from `rule.probabilities` of all words. The rule must be
        `serves_lazily`.

        Args:
            pick: samples an index with probability proportional to the given weights.
        """
        if rule.temperature == 0:
            return self._most_likely()
        while self.closed:
            may_U, must_U = self._kept(rule)
            place = pick(self._proposal(rule, may_U))
            if place < len(may_U) and must_U[place]:
                return self._word(place)
            if place < len(may_U):
                word = self._word(place)
            else:
                word = self._sample_inside(place - len(may_U), rule, pick)
            if word is not None and self._is_kept(word, rule):
                return word
        return self._word(pick(rule.probabilities(self.logprob_U)))

    def _most_likely(self) -> int:
        while self.closed and self.closed[c := self._most_likely_closed()].logprob >= float(
            self.logprob_U.max()
        ):
            self._open(c)
        return self._word(int(self.logprob_U.argmax()))

    def _proposal(self, rule: Rule, may_U: Tensor) -> Tensor:
        """Weights of the computed words that may be kept, and upper bounds for
        the closed clusters.
        """
        logprob_U = self.logprob_U
        closed = self.closed.values()
        # no word is more likely than its cluster: clusters below the last kept word have no kept
        # words
        if bool(may_U.all()):
            floor = -math.inf
        else:
            floor = float(logprob_U[may_U].min())
        most = []
        for c in closed:
            most.append(-math.inf if c.logprob < floor else c.most(rule.temperature))
        logprob = torch.cat([logprob_U.masked_fill(~may_U, -torch.inf), self._logprob_C()])
        logprob = (logprob - logprob.max()) / rule.temperature  # at most 0: cannot overflow
        logprob[len(may_U) :] += logprob.new_tensor(most)
        return logprob.softmax(-1)

    def _sample_inside(self, place: int, rule: Rule, pick: Callable[[Tensor], int]) -> int | None:
        """Compute a closed cluster and sample one of its words; None with the remaining weight of
        its proposal.
        """
        c, cluster = list(self.closed.items())[place]
        logprob_U = self._open(c) - cluster.logprob
        weight_U = (logprob_U / rule.temperature - cluster.most(rule.temperature)).exp()
        place = pick(torch.cat([weight_U, (1 - weight_U.sum(0, keepdim=True)).clamp(min=0)]))
        if place < len(weight_U):
            return self._firsts[c] + place
        return None

    def _is_kept(self, word: int, rule: Rule) -> bool:
        """Whether top_p keeps a computed word; computes more clusters if the answer needs them."""
        while True:
            place = self._place(word)
            may_U, must_U = self._kept(rule)
            if must_U[place] or not may_U[place] or not self.closed:
                return bool(may_U[place])
            self._open(self._most_likely_closed())

    def _kept(self, rule: Rule) -> tuple[Tensor, Tensor]:
        """Which computed words top_p may keep, and which it keeps whatever is in the closed
        clusters.
        """
        if rule.top_p == 1:
            all_U = torch.ones_like(self.logprob_U, dtype=torch.bool)
            return all_U, all_U
        logprob_U = self.logprob_U
        logprob_C = self._logprob_C()
        top = torch.cat([logprob_U, logprob_C]).max()
        weight_U = ((logprob_U - top) / rule.temperature).exp()
        cap_C = ((logprob_C - top) / rule.temperature).exp()
        most_C = (
            cap_C * cap_C.new_tensor([c.most(rule.temperature) for c in self.closed.values()]).exp()
        )
        least_C = (
            cap_C
            * cap_C.new_tensor([c.least(rule.temperature) for c in self.closed.values()]).exp()
        )
        most = weight_U.sum() + most_C.sum()
        least = weight_U.sum() + least_C.sum()
        order_U = logprob_U.sort(descending=True, stable=True).indices
        sorted_U = weight_U[order_U]
        before_U = torch.empty_like(weight_U).index_copy_(0, order_U, sorted_U.cumsum(0) - sorted_U)
        hidden_U = ((logprob_U[:, None] <= logprob_C) * most_C).sum(1)
        return before_U < rule.top_p * most, before_U + hidden_U < rule.top_p * least

    def _logprob_C(self) -> Tensor:
        return self._computed[0].new_tensor([c.logprob for c in self.closed.values()])

    def _most_likely_closed(self) -> int:
        return max(self.closed, key=lambda c: self.closed[c].logprob)

    def _open(self, c: int) -> Tensor:
        """Compute a cluster: the log-probabilities of its words."""
        inside = self._words.tail(self._hidden_D, c - 1)
        self._computed[c] = self._allowed(self.closed.pop(c).logprob + inside, c)
        return self._computed[c]

    def _allowed(self, logprob_U: Tensor, c: int) -> Tensor:
        banned = torch.tensor(self._banned[c], dtype=torch.int64, device=logprob_U.device)
        if len(banned):
            return logprob_U.index_fill(0, banned, -torch.inf)
        return logprob_U

    def _word(self, place: int) -> int:
        """The id of one of the computed words."""
        for c in sorted(self._computed):
            if place < len(self._computed[c]):
                return self._firsts[c] + place
            place -= len(self._computed[c])
        raise IndexError("no such word has been computed")

    def _place(self, word: int) -> int:
        """The inverse of `_word`."""
        own = bisect_right(self._firsts, word) - 1
        return (
            sum(len(self._computed[c]) for c in self._computed if c < own)
            + word
            - self._firsts[own]
        )
