"""Beam search: the most likely continuations, by a search of bounded width."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from txl.config import Context
from txl.generation.ngrams import NGrams, ban
from txl.inference.reader import Reader
from txl.inference.words import WordProbabilities
from txl.model.autocast import require_in_range
from txl.model.transformer import TransformerXL
from txl.runtime.resources import require_room


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
    Raises:
        ValueError: if the prompt is empty or contains an id outside the vocabulary.
        UsageError: see `require_in_range`; if so many beams do not fit into the memory.
    """
    if not prompt:
        raise ValueError("the prompt is empty: the model needs at least one token to continue")
    n_kept = min(context.mem_len + context.tgt_len, len(prompt) + length)
    of_keys = 2 * model.config.n_layer * n_kept * model.config.n_head * model.config.d_head
    of_words = 3 * model.config.n_token  # log-probabilities, their sums, and what is sorted
    require_room(2 * num_beams * (of_keys + of_words), model.device, f"--num_beams {num_beams}")
    beams = _Beams(model, context, prompt, no_repeat_ngram_size)
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
    ) -> None:
        self._model, self._reader = model, Reader(model, context, 1)
        self._words = WordProbabilities.of(model)
        self._prompt = prompt
        self._ngram_size = no_repeat_ngram_size
        self.ids: list[tuple[int, ...]] = [()]
        self._logprobs: tuple[float, ...] = (0.0,)
        self._read(torch.tensor([list(prompt)]))

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
            [NGrams(self._ngram_size, chain(self._prompt, ids)) for ids in self.ids],
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
