"""Scoring: the loss of a predictor on a text."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from txl.config import Context, ModelConfig, require
from txl.evaluation.reading import (
    Predictor,
    Segments,
    hidden_segments,
    of_counted,
    predicted_segments,
)
from txl.inference.cuda_graph import frozen
from txl.inference.frozen import Frozen
from txl.memory import is_bounded
from txl.model.adaptive import AdaptiveSoftmax
from txl.model.parts import attends_by_softmax
from txl.model.transformer import TransformerXL
from txl.ops.numbers import float64_sum
from txl.positions import POSITION_ENCODINGS
from txl.runtime.distributed import Ranks
from txl.runtime.log import perplexity


@dataclass(frozen=True)
class Score:
    """Summed loss and counts, from which all other figures follow.

    Attributes:
        nats: sum over the scored targets.
        tokens: scored targets.
        words, lines, characters, bytes: those of the targets in the text; 0 if unknown.
        unknown: targets that are `<unk>`.
    """

    nats: float
    tokens: int
    words: int = 0
    lines: int = 0
    characters: int = 0
    bytes: int = 0
    unknown: int = 0

    @staticmethod
    def total(shares: Iterable["Score"]) -> "Score":
        """The score of several parts of a text together."""
        shares = list(shares)
        counts = {}
        for f in dataclasses.fields(Score)[1:]:
            counts[f.name] = sum(getattr(share, f.name) for share in shares)
        return Score(math.fsum(share.nats for share in shares), **counts)

    def over(self, ranks: Ranks) -> "Score":
        """The score of all ranks together."""
        return Score.total(ranks.gathered(self))

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        return perplexity(self.nats_per_token)

    @property
    def word_perplexity(self) -> float | None:
        """Perplexity per word and line end: comparable between vocabularies. None if the targets
        have neither.
        """
        if not self.words + self.lines:
            return None
        return perplexity(self.nats / (self.words + self.lines))

    @property
    def bits_per_character(self) -> float | None:
        """None if the targets have no characters, like the end of a last line
        without a line break.
        """
        if self.characters:
            return self.nats / math.log(2) / self.characters
        return None

    @property
    def bits_per_byte(self) -> float | None:
        """None if the targets have no bytes."""
        if self.bytes:
            return self.nats / math.log(2) / self.bytes
        return None


def evaluate(
    model: TransformerXL,
    segments: Segments,
    context: Context,
    *,
    predictor: Predictor | None = None,
    observe: Callable[[Tensor], None] | None = None,
) -> Score:
    """Score a text segment by segment, carrying the memory along. Sums are in float64.

    Args:
        predictor: by default the model itself.
        observe: called with the nats of each segment's scored targets (N,), row by row, in the
            order of the segments.
    """
    nats = float64_sum(torch.zeros(1, device=model.device))
    tokens = 0
    for nll_N in scored(model, segments, context, predictor=predictor):
        nats += float64_sum(nll_N)
        tokens += len(nll_N)
        if observe is not None:
            observe(nll_N)
    return Score(float(nats), tokens)


@torch.no_grad()
def scored(
    model: TransformerXL,
    segments: Segments,
    context: Context,
    *,
    predictor: Predictor | None = None,
) -> Iterator[Tensor]:
    """Nats of each segment's scored targets (N,), row by row.

    Puts the model in evaluation mode, and back into its previous mode at the end.
    """
    if predictor is None:
        predictor = frozen(model)
    was_training = model.training
    model.eval()
    try:
        if isinstance(predictor, Frozen):
            yield from _of_model(predictor, model, segments, context)
        else:
            for nll_BT, counted_BT in predicted_segments(
                predictor, segments, context, model.device
            ):
                yield of_counted(nll_BT, counted_BT)
    finally:
        model.train(was_training)


AT_ONCE = 1024
"""Tokens whose losses are computed together.

The rows of rare words are read for all of them, not for each segment.
"""
READ_TOGETHER = 512
"""Tokens of segments that are read as one, where that changes nothing: products of more rows take
less time each.
"""


def _of_model(
    predictor: Frozen, model: TransformerXL, segments: Segments, context: Context
) -> Iterator[Tensor]:
    hiddens: list[Tensor] = []
    targets: list[Tensor] = []
    n_together = 0
    if not model.is_sharded and _ends_change_nothing(model.config, context):  # shards read in step
        n_together = READ_TOGETHER
    for hidden_BTD, target_BT, counted_BT in hidden_segments(
        predictor, segments, context, n_together=n_together
    ):
        hiddens.append(of_counted(hidden_BTD, counted_BT).clone())
        targets.append(of_counted(target_BT, counted_BT))
        if sum(map(len, targets)) >= AT_ONCE:
            yield from _losses(model.softmax, hiddens, targets)
            hiddens = []
            targets = []
    if targets:
        yield from _losses(model.softmax, hiddens, targets)


def _ends_change_nothing(config: ModelConfig, context: Context) -> bool:
    """True if results do not depend, but for rounding, on how the text is cut into segments: each
    token sees as many states as every other, by their distances, and states do not depend on the
    segment either.
    """
    encoding = POSITION_ENCODINGS[config.position]
    # others compute the hidden logits of longer segments too, which takes more time than it saves
    by_distance = attends_by_softmax(config) and encoding.by_distance and encoding.is_relative()
    return context.same_length and context.ext_len == 0 and is_bounded(config) and by_distance


def _losses(
    softmax: AdaptiveSoftmax, hiddens: list[Tensor], targets: list[Tensor]
) -> Sequence[Tensor]:
    return softmax.nll(torch.cat(hiddens), torch.cat(targets)).split([*map(len, targets)])


def score_text(
    model: TransformerXL,
    ids: Sequence[int] | np.ndarray | Tensor,
    context: Context,
    *,
    first: int = 1,
    predictor: Predictor | None = None,
    n_again: int = 0,
) -> Tensor:
    """Nats (negative log-likelihood) of each token of a text from token `first` on, (len(ids) -
    first,), on the CPU.

    Tokens before `first` are context only.

    Args:
        ids: all tokens of the text, at least two.
        predictor: by default the model itself.
        n_again: the first tokens, which belong to a segment that the predictor has read before, and
            are read again with the next one (`ext_len`).
    Raises:
        ValueError: if there is no token to score, or none before it.
    """
    if not 1 <= first - n_again < len(ids) - n_again:
        raise ValueError(
            f"a text of {len(ids)} token(s), scored from token {first} on: needs 1 <= first <"
            " length"
        )
    ids_1S = torch.as_tensor(np.asarray(ids, dtype=np.int64))[None]

    def segments() -> Iterator[tuple[Tensor, Tensor, None]]:
        last = len(ids) - 1
        for begin in range(n_again, last, context.tgt_len):
            end = min(begin + context.tgt_len, last)
            yield (
                ids_1S[:, max(0, begin - context.ext_len) : end],
                ids_1S[:, begin + 1 : end + 1],
                None,
            )

    nll_S = torch.cat(
        [nll_N.cpu() for nll_N in scored(model, segments(), context, predictor=predictor)]
    )
    return nll_S[first - n_again - 1 :]


def require_finite(nats: float, name: str) -> None:
    """Raise `UsageError` if the loss on `name` is NaN or infinite."""
    require(
        math.isfinite(nats),
        f"{name}: its loss is {nats}; the weights are not finite, or a flag has an extreme value;"
        " use another checkpoint, or a milder value",
    )
