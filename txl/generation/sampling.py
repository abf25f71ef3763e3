"""Text from a model: one token after another, the memory carrying what came before.

Of the next word's distribution only as much is read as the draw depends on: the head, and those tail clusters that the
word, or the question whether it is kept, turns out to need. docs/sampling.md shows that the draw is exact.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from txl.config import Context
from txl.model.adaptive import AdaptiveSoftmax
from txl.model.autocast import require_in_range
from txl.model.cuda_graph import CudaGraphModel
from txl.model.transformer import TransformerXL


def generate(
    model: TransformerXL,
    prompt: Sequence[int],
    context: Context,
    *,
    length: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    banned: Sequence[int] = (),
    seed: int | None = None,
) -> Iterator[int]:
    """Yield `length` token ids that go on from `prompt`, each as soon as it is drawn.

    The prompt is read in segments of `context.tgt_len`, then each token alone.

    Args:
        temperature, top_k, top_p: see `next_probabilities`.
        banned: ids that are never drawn.
        seed: makes the result repeatable; None: PyTorch's own generator.
    Raises:
        ValueError: if the prompt is empty or holds an id outside the vocabulary.
        UsageError: see `require_in_range`.
    """
    if not len(prompt):
        raise ValueError("the prompt is empty: the model needs at least one token to go on from")
    device = next(model.parameters()).device
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    rule = Rule(temperature=temperature, top_k=top_k, top_p=top_p)
    segments = torch.tensor([list(prompt)]).split(context.tgt_len, dim=1)
    reader = CudaGraphModel(model) if device.type == "cuda" else model
    memory = reader.fresh_memory(1)
    for _ in range(length):
        with torch.inference_mode():
            for segment_BT in segments:
                hidden_BTD, memory = reader(segment_BT, memory, context)
            require_in_range(hidden_BTD[0, -1], device)
            words = NextWord(model.softmax, hidden_BTD[0, -1], banned)
            token = words.draw(rule, lambda weight_U: int(torch.multinomial(weight_U, 1, generator=generator)))
        segments = (torch.tensor([[token]]),)
        yield token


def next_probabilities(logprob_V: Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """What the next token is drawn from.

    Args:
        temperature: log-probabilities are divided by it; 0 leaves the likeliest token alone.
        top_k: only the k likeliest tokens are kept; 0: all. Tokens as likely as the k-th are kept too.
        top_p: then only the likeliest tokens that together hold this probability (Holtzman et al. 2020).
    Returns:
        Probabilities (V,) that sum to 1.
    """
    if temperature == 0:
        return torch.zeros_like(logprob_V).index_fill(0, logprob_V.argmax(), 1.0)
    logprob_V = (logprob_V - logprob_V.max()) / temperature  # from 0 downward: no temperature makes them overflow
    if 0 < top_k < len(logprob_V):
        logprob_V = logprob_V.masked_fill(logprob_V < logprob_V.topk(top_k).values[-1], -torch.inf)
    prob_V = logprob_V.softmax(-1)
    if top_p < 1:
        sorted_V, order_V = prob_V.sort(descending=True, stable=True)
        before_V = sorted_V.cumsum(0) - sorted_V  # a token stays while those before it hold less than top_p
        prob_V = prob_V.index_fill(0, order_V[before_V >= top_p], 0.0)
        prob_V = prob_V / prob_V.sum()
    return prob_V


@dataclass(frozen=True)
class Rule:
    """How the next word is drawn; see `next_probabilities`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def probabilities(self, logprob_V: Tensor) -> Tensor:
        """See `next_probabilities`."""
        return next_probabilities(logprob_V, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)


@dataclass(frozen=True)
class Closed:
    """What is known of a cluster that has not been read: the log-probability of all its words together, and how many
    of them may be drawn."""

    logprob: float
    n_word: int
    has_banned: bool

    def least(self, temperature: float) -> float:
        """A lower bound of log(sum p^(1/temperature)) - logprob / temperature over the words that may be drawn."""
        return -math.inf if self.has_banned else min(0.0, self._if_even(temperature))

    def most(self, temperature: float) -> float:
        """An upper bound of the same."""
        return max(0.0, self._if_even(temperature)) if self.n_word else -math.inf

    def _if_even(self, temperature: float) -> float:
        """It is 0 if one word has all the probability, and this if all words have the same."""
        return (1 - 1 / temperature) * math.log(max(1, self.n_word))


class NextWord:
    """The distribution of one next word, as far as it has been read: the shortlist, then cluster by cluster.

    Args:
        hidden_D: what the model says.
        banned: ids that are never drawn.
    """

    def __init__(self, softmax: AdaptiveSoftmax, hidden_D: Tensor, banned: Sequence[int] = ()) -> None:
        self._softmax, self._hidden_D = softmax, hidden_D
        self._firsts = [0, *accumulate(softmax.sizes)]
        self._banned = [
            sorted({word - first for word in banned if first <= word < first + size})
            for first, size in zip(self._firsts, softmax.sizes, strict=False)
        ]
        shortlist, cluster_C = softmax.head_log_prob(hidden_D)
        self._read = {0: self._allowed(shortlist, 0)}
        self.closed: dict[int, Closed] = {}
        """Tail clusters not read yet, the first being 1."""
        for c, logprob in enumerate(cluster_C.tolist(), start=1):
            n_banned = len(self._banned[c])
            self.closed[c] = Closed(logprob, softmax.sizes[c] - n_banned, n_banned > 0)

    @property
    def logprob_U(self) -> Tensor:
        """Log-probabilities of the words that have been read, in the order of their ids."""
        return torch.cat([self._read[c] for c in sorted(self._read)])

    def draw(self, rule: Rule, pick: Callable[[Tensor], int]) -> int:
        """The id of a word drawn from `rule.probabilities` of all words.

        Args:
            pick: draws an index with probabilities in proportion to the weights that it is given.
        """
        if rule.temperature == 0:
            return self._likeliest()
        while self.closed:
            may_U, must_U = self._kept(rule)
            place = pick(self._proposal(rule, may_U))
            if place < len(may_U) and must_U[place]:
                return self._word(place)
            word = self._word(place) if place < len(may_U) else self._drawn_inside(place - len(may_U), rule, pick)
            if word is not None and self._is_kept(word, rule):
                return word
        return self._word(pick(rule.probabilities(self.logprob_U)))

    def _likeliest(self) -> int:
        while self.closed and self.closed[c := self._likeliest_closed()].logprob >= float(self.logprob_U.max()):
            self._open(c)
        return self._word(int(self.logprob_U.argmax()))

    def _proposal(self, rule: Rule, may_U: Tensor) -> Tensor:
        """Weights of the words read that may be kept, and upper bounds for the closed clusters."""
        logprob_U, closed = self.logprob_U, self.closed.values()
        # no word of a cluster is likelier than the cluster: one below the last word kept has none that is kept
        floor = -math.inf if bool(may_U.all()) else float(logprob_U[may_U].min())
        most = [-math.inf if c.logprob < floor else c.most(rule.temperature) for c in closed]
        logprob = torch.cat([logprob_U.masked_fill(~may_U, -torch.inf), self._logprob_C()])
        logprob = (logprob - logprob.max()) / rule.temperature  # from 0 downward: no temperature makes them overflow
        logprob[len(may_U) :] += logprob.new_tensor(most)
        return logprob.softmax(-1)

    def _drawn_inside(self, place: int, rule: Rule, pick: Callable[[Tensor], int]) -> int | None:
        """Read a closed cluster and draw one of its words, or None with what is left of its weight in the proposal."""
        c, cluster = list(self.closed.items())[place]
        logprob_U = self._open(c) - cluster.logprob
        weight_U = (logprob_U / rule.temperature - cluster.most(rule.temperature)).exp()
        place = pick(torch.cat([weight_U, (1 - weight_U.sum(0, keepdim=True)).clamp(min=0)]))
        return self._firsts[c] + place if place < len(weight_U) else None

    def _is_kept(self, word: int, rule: Rule) -> bool:
        """Whether top_k and top_p keep a word that has been read; reads as many clusters more as that takes."""
        while True:
            place = self._place(word)
            may_U, must_U = self._kept(rule)
            if must_U[place] or not may_U[place] or not self.closed:
                return bool(may_U[place])
            self._open(self._likeliest_closed())

    def _kept(self, rule: Rule) -> tuple[Tensor, Tensor]:
        """Which of the words read top_k and top_p may keep, and which they keep whatever the closed clusters hold."""
        logprob_U = self.logprob_U
        may_U = must_U = torch.ones_like(logprob_U, dtype=torch.bool)
        if rule.top_k:
            sorted_U = logprob_U.sort().values
            n_before_U = len(sorted_U) - torch.searchsorted(sorted_U, logprob_U, right=True)
            # n words of a cluster that are each likelier than p are together likelier than n p
            n_word_C = logprob_U.new_tensor([c.n_word for c in self.closed.values()])
            n_hidden_UC = (self._logprob_C() - logprob_U[:, None]).exp().floor().minimum(n_word_C)
            may_U, must_U = n_before_U < rule.top_k, n_before_U + n_hidden_UC.sum(1) < rule.top_k
        if rule.top_p < 1:
            may_U, must_U = self._in_nucleus(rule, may_U, must_U)
        return may_U, must_U

    def _in_nucleus(self, rule: Rule, may_U: Tensor, must_U: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the words that are, and must be, among the likeliest that together hold top_p."""
        logprob_U, logprob_C = self.logprob_U, self._logprob_C()
        top = torch.cat([logprob_U, logprob_C]).max()
        weight_U, cap_C = (((logprob - top) / rule.temperature).exp() for logprob in (logprob_U, logprob_C))
        most_C = cap_C * cap_C.new_tensor([c.most(rule.temperature) for c in self.closed.values()]).exp()
        least_C = cap_C * cap_C.new_tensor([c.least(rule.temperature) for c in self.closed.values()]).exp()
        most = weight_U[may_U].sum() + most_C.sum()
        if rule.top_k:  # the k best of all words weigh no less than those of the words read
            k_best = weight_U.topk(min(rule.top_k, len(weight_U))).values.sum()
            least = torch.maximum(k_best, weight_U[must_U].sum())
        else:
            least = weight_U.sum() + least_C.sum()
        order_U = logprob_U.sort(descending=True, stable=True).indices
        sorted_U = weight_U[order_U]
        before_U = torch.empty_like(weight_U).index_copy_(0, order_U, sorted_U.cumsum(0) - sorted_U)
        hidden_U = ((logprob_U[:, None] <= logprob_C) * most_C).sum(1)
        return may_U & (before_U < rule.top_p * most), must_U & (before_U + hidden_U < rule.top_p * least)

    def _logprob_C(self) -> Tensor:
        return self._read[0].new_tensor([c.logprob for c in self.closed.values()])

    def _likeliest_closed(self) -> int:
        return max(self.closed, key=lambda c: self.closed[c].logprob)

    def _open(self, c: int) -> Tensor:
        """Read a cluster; the log-probabilities of its words."""
        inside = self._softmax.tail_log_prob(self._hidden_D, c - 1)
        self._read[c] = self._allowed(self.closed.pop(c).logprob + inside, c)
        return self._read[c]

    def _allowed(self, logprob_U: Tensor, c: int) -> Tensor:
        banned = torch.tensor(self._banned[c], dtype=torch.int64, device=logprob_U.device)
        return logprob_U.index_fill(0, banned, -torch.inf) if len(banned) else logprob_U

    def _word(self, place: int) -> int:
        """The id of one of the words that have been read."""
        for c in sorted(self._read):
            if place < len(self._read[c]):
                break
            place -= len(self._read[c])
        return self._firsts[c] + place

    def _place(self, word: int) -> int:
        """The inverse of `_word`."""
        own = bisect_right(self._firsts, word) - 1
        return sum(len(self._read[c]) for c in self._read if c < own) + word - self._firsts[own]
