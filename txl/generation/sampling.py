"""Continuations of a text: sampled token by token, for one row or several, or the most likely ones, by
a search of bounded width (beams).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from txl.config import Context
from txl.generation.next_word import NextWord
from txl.generation.rule import NGrams, Rule, ban
from txl.inference.kept import Begun
from txl.inference.reader import Reader
from txl.inference.words import WordProbabilities
from txl.model.autocast import require_in_range
from txl.model.transformer import TransformerXL
from txl.runtime.resources import require_room


class Rows:
    """Rows of text that a model continues side by side, each as it would be alone.

    A row reads its prompt and continues it token by token. All rows read the same number of tokens
    at a time, from an empty memory on, or all from one that was kept, so a row with a shorter prompt
    continues it while others still read theirs. The memory stays: tokens that are added later are
    read after all others. Where segments end is counted in tokens of the text, so it is the same
    side by side and alone; see `Reader`.

    Args:
        banned: ids that are never sampled.
        no_repeat_ngram_size: so many tokens in a row occur only once in a text, its prompt
            included; see `NGrams`.
        seeds: one for each row, so that its result does not depend on the others; None: drawn from
            PyTorch's global generator.
        begun: a text that each row goes on with, whose last token is to be added first, and is not
            to be counted. What stands before it is read and counts for no penalty.
    """

    def __init__(
        self,
        model: TransformerXL,
        context: Context,
        *,
        rule: Rule,
        banned: Sequence[int] = (),
        no_repeat_ngram_size: int = 0,
        seeds: Sequence[int | None],
        begun: Begun | None = None,
    ) -> None:
        self._model, self._rule, self._banned = model, rule, list(banned)
        self._words = WordProbabilities.of(model)
        self._generators = []
        for seed in seeds:
            if seed is None:
                self._generators.append(None)
            else:
                self._generators.append(torch.Generator(model.device).manual_seed(seed))
        self._unread: list[list[int]] = [unread_before(begun) for _ in seeds]
        self._ngrams = [NGrams(no_repeat_ngram_size) for _ in seeds]
        self._reader = Reader(model, context, len(seeds), begun)
        self._at_once = context.tgt_len
        self._seen_BV: Tensor | None = None
        if rule.repetition_penalty != 1:
            self._seen_BV = torch.zeros(
                len(seeds), model.config.n_token, dtype=torch.bool, device=model.device
            )
        self.is_finished = [False] * len(seeds)
        """Rows that are not continued any more."""

    def add(self, row: int, tokens: Sequence[int], *, counts: bool = True) -> None:
        """Add tokens to the end of a row; `counts`: for the penalties."""
        self._unread[row] += tokens
        if not counts:
            return
        self._ngrams[row].add(tokens)
        if self._seen_BV is not None:
            self._seen_BV[row, list(tokens)] = True

    @torch.inference_mode()
    def step(self) -> list[int | None]:
        """Read a segment, and sample a token for each row that has been read to its end; None for
        the others.

        Raises:
            ValueError: if a row has no token to read, or an id outside the vocabulary.
            UsageError: see `require_in_range`.
        """
        going = []
        for row, is_finished in enumerate(self.is_finished):
            if not is_finished:
                going.append(row)
        n_new = min(self._at_once, *(len(self._unread[row]) for row in going))
        if not n_new:
            raise ValueError("the prompt is empty: the model needs at least one token to continue")
        segments = []
        for row, done in enumerate(self.is_finished):
            segments.append([0] * n_new if done else self._unread[row][:n_new])
        for row in going:
            del self._unread[row][:n_new]
        hidden_BTD = self._reader.read(torch.tensor(segments))
        drawing = [row for row in going if not self._unread[row]]
        sampled: list[int | None] = [None] * len(segments)
        for row, token in zip(drawing, self._draw(hidden_BTD[:, -1], drawing), strict=True):
            self.add(row, [token])
            sampled[row] = token
        return sampled

    def _draw(self, hidden_BD: Tensor, rows: list[int]) -> Iterator[int]:
        """The next token of each of these rows."""
        if not rows:
            return
        if len(rows) == len(hidden_BD):
            hidden_RD = hidden_BD
        else:
            hidden_RD = hidden_BD[rows]
        require_in_range(hidden_RD, self._model.device)
        if self._rule.serves_lazily:
            for row, hidden_D, head, cluster in zip(
                rows, hidden_RD, *self._words.head(hidden_RD), strict=True
            ):
                banned = self._ngrams[row].without_repeats(self._banned, self._model.config.n_token)
                word = NextWord(self._words, hidden_D, banned, head=(head, cluster))
                yield word.draw(self._rule, self._pick(row))
        else:
            logprob_RV = self._words.all(hidden_RD)
            ban(logprob_RV, self._banned, [self._ngrams[row] for row in rows])
            prob_RV = self._rule.probabilities(
                logprob_RV, None if self._seen_BV is None else self._seen_BV[rows]
            )
            for row, prob_V in zip(rows, prob_RV, strict=True):
                yield self._pick(row)(prob_V)

    def _pick(self, row: int) -> Callable[[Tensor], int]:
        """Samples an index with probability proportional to the weights, for this row."""
        return lambda weight_U: drawn(weight_U, self._generators[row])


def unread_before(begun: Begun | None) -> list[int]:
    """What is read before the last token of a text that has begun."""
    if begun is None:
        return []
    return list(begun.since[:-1])


def drawn(weight_U: Tensor, generator: torch.Generator | None) -> int:
    """An index, with probability proportional to the weights: the first whose sum with those before
    it exceeds a random share of all. On a CPU `torch.multinomial` draws a number for each word, 0.5
    ms for 20,000.
    """
    if weight_U.device.type != "cpu":
        return int(torch.multinomial(weight_U, 1, generator=generator))
    sum_U = weight_U.cumsum(0, dtype=torch.float64)
    share = torch.rand((), dtype=torch.float64, generator=generator) * sum_U[-1]
    # for a share that is rounded up
    return min(int(torch.searchsorted(sum_U, share, right=True)), len(sum_U) - 1)


def generate(
    model: TransformerXL,
    prompt: Sequence[int],
    context: Context,
    *,
    length: int,
    banned: Sequence[int] = (),
    no_repeat_ngram_size: int = 0,
    seed: int | None = None,
    **settings: Any,
) -> Iterator[int]:
    """Yield `length` token ids that continue `prompt`, each as soon as it is sampled.

    Args:
        banned: ids that are never sampled.
        no_repeat_ngram_size: see `Rows`.
        seed: for a reproducible result; None: PyTorch's global generator.
        settings: see `Rule`.
    Raises:
        ValueError: if the prompt is empty or contains an id outside the vocabulary.
        UsageError: see `require_in_range`.
    """
    rows = Rows(
        model,
        context,
        rule=Rule(**settings),
        banned=banned,
        no_repeat_ngram_size=no_repeat_ngram_size,
        seeds=[seed],
    )
    rows.add(0, prompt)
    yield from islice(
        (token for token in iter(lambda: rows.step()[0], ...) if token is not None), length
    )


def side_by_side(lengths: Sequence[int], *, batch_size: int) -> list[list[int]]:
    """Which prompts of these lengths are continued side by side, as lists of indices: those of
    similar length.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [order[begin : begin + batch_size] for begin in range(0, len(order), batch_size)]


@dataclass(frozen=True)
class Hypothesis:
    """A continuation and its log-probability, divided by length^length_penalty."""

    ids: tuple[int, ...]
    score: float


def beam_search(
    model: TransformerXL,
    prompt: Sequence[int],
    context: Context,
    *,
    num_beams: int,
    length: int,
    length_penalty: float = 1.0,
    banned: Sequence[int] = (),
    no_repeat_ngram_size: int = 0,
    has_ended: Callable[[Sequence[int]], bool] = lambda ids: False,
    begun: Begun | None = None,
) -> list[Hypothesis]:
    """The best finished continuations that beam search finds, at most `num_beams`, best first.

    A continuation ends after `length` tokens, or where `has_ended` says so. At each step the
    `num_beams` most likely unfinished ones are extended. The search stops early once the most
    likely unfinished one scores below all of `num_beams` finished ones, each divided by its own
    length^length_penalty, as transformers does by default (`early_stopping=False`).

    Args:
        prompt: at least one id.
        length_penalty: above 0 longer continuations gain, below 0 they lose; 0: compare
            log-probabilities.
        banned: ids that never occur.
        no_repeat_ngram_size: so many tokens in a row occur only once, the prompt included; see
            `NGrams`.
        begun: as in `Rows`; the prompt begins with its last token.
    Raises:
        ValueError: if the prompt is empty or contains an id outside the vocabulary.
        UsageError: see `require_in_range`; if so many beams do not fit into the memory.
    """
    if not prompt:
        raise ValueError("the prompt is empty: the model needs at least one token to continue")
    n_before = 0
    if begun is not None:
        n_before = begun.n_token - 1
    n_kept = min(context.mem_len + context.tgt_len, n_before + len(prompt) + length)
    of_keys = 2 * model.config.n_layer * n_kept * model.config.n_key_head * model.config.d_head
    of_words = 3 * model.config.n_token  # log-probabilities, their sums, and what is sorted
    require_room(2 * num_beams * (of_keys + of_words), model.device, f"--num_beams {num_beams}")
    beams = _Beams(model, context, prompt, no_repeat_ngram_size, begun)
    finished: list[Hypothesis] = []
    for n_token in range(1, length + 1):
        going: list[tuple[int, int, float]] = []
        for rank, (row, token, logprob) in enumerate(beams.extensions(2 * num_beams, banned)):
            ids = (*beams.ids[row], token)
            if n_token < length and not has_ended(ids):
                going.append((row, token, logprob))
            elif rank < num_beams:
                finished.append(Hypothesis(ids, logprob / n_token**length_penalty))
        finished = sorted(finished, key=lambda one: -one.score)[:num_beams]
        going = going[:num_beams]
        is_beaten = (
            going
            and len(finished) == num_beams
            and going[0][2] / n_token**length_penalty <= finished[-1].score
        )
        if is_beaten or not going:
            break
        beams.extend(going)
    return finished


class _Beams:
    """Unfinished continuations of one prompt: their ids, log-probabilities and memories, a row
    each.
    """

    def __init__(
        self,
        model: TransformerXL,
        context: Context,
        prompt: Sequence[int],
        no_repeat_ngram_size: int,
        begun: Begun | None,
    ) -> None:
        self._model = model
        self._reader = Reader(model, context, 1, begun)
        self._words = WordProbabilities.of(model)
        if begun is None:
            self._counted = prompt
        else:
            self._counted = prompt[1:]
        self._ngram_size = no_repeat_ngram_size
        self.ids: list[tuple[int, ...]] = [()]
        self._logprobs: tuple[float, ...] = (0.0,)
        self._read(torch.tensor([unread_before(begun) + list(prompt)]))

    def _read(self, token_KT: Tensor) -> None:
        self._hidden_KD = self._reader.read(token_KT)[:, -1]

    @torch.inference_mode()
    def extensions(self, n_best: int, banned: Sequence[int]) -> list[tuple[int, int, float]]:
        """The most likely continuations that are a token longer: row, token and log-probability,
        best first.
        """
        require_in_range(self._hidden_KD, self._model.device)
        logprob_KV = self._words.all(self._hidden_KD)
        ban(
            logprob_KV,
            banned,
            [NGrams(self._ngram_size, chain(self._counted, ids)) for ids in self.ids],
        )
        logprob_KV += logprob_KV.new_tensor(self._logprobs)[:, None]
        best = logprob_KV.flatten().topk(min(n_best, logprob_KV.numel()))
        n_token = logprob_KV.shape[1]
        places = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        candidates = []
        for place, logprob in places:
            if logprob > -torch.inf:
                candidates.append((place // n_token, place % n_token, logprob))
        return candidates

    def extend(self, chosen: Sequence[tuple[int, int, float]]) -> None:
        """Go on with these of `extensions`."""
        rows, tokens, self._logprobs = zip(*chosen, strict=True)
        if rows != tuple(range(len(self.ids))):
            self._reader.take_rows(torch.tensor(rows, device=self._model.device))
        self.ids = [(*self.ids[row], token) for row, token in zip(rows, tokens, strict=True)]
        self._read(torch.tensor(tokens)[:, None])
