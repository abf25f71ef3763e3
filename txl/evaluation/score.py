"""How well a model predicts a text."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from txl.config import Context, require
from txl.model.cuda_graph import CudaGraphModel
from txl.model.transformer import TransformerXL
from txl.ops.numbers import wide_sum
from txl.runtime.distributed import Ranks
from txl.runtime.log import perplexity

Segments = Iterable[tuple[Tensor, Tensor, Tensor | None]]
"""(input, target, which targets count; None: all), in the order of the text."""


class ScoredRows(Protocol):
    """Rows of a text side by side, in segments, to be read with a memory of their own.

    Attributes:
        first_B: the token of the text that each row begins with.
    """

    first_B: np.ndarray

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]: ...

    def __len__(self) -> int: ...


class Predictor(Protocol):
    """What can be scored: a `TransformerXL`, or what adapts one to the text while reading it.

    The state of the text, whatever it is made of, goes in and comes out as `memory`.
    """

    def fresh_memory(self, batch_size: int) -> Any:
        """The state before the first segment."""
        ...

    def nll(self, input_BT: Tensor, target_BT: Tensor, memory: Any, context: Context) -> tuple[Tensor, Any]:
        """Nats of each target (B, T), and the state after the segment."""
        ...


@runtime_checkable
class Learner(Predictor, Protocol):
    """A predictor that learns from a segment once it was scored."""

    def learn(self, memory: Any, counted_BT: Tensor | None) -> Any:
        """The state after learning from the targets that count (None: all) of the segment just scored."""
        ...


@dataclass(frozen=True)
class Score:
    """Summed nats and what was counted; everything else is read off these.

    Attributes:
        tokens: targets that were scored.
        words, lines, characters, bytes: what those targets are written as in the text; 0 where nobody said.
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
        """The score of several shares of a text together."""
        shares = list(shares)
        counts = {f.name: sum(getattr(share, f.name) for share in shares) for f in dataclasses.fields(Score)}
        return Score(**(counts | {"nats": math.fsum(share.nats for share in shares)}))

    def over(self, ranks: Ranks) -> "Score":
        """The score of all ranks' shares together."""
        return Score.total(ranks.gathered(self))

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        return perplexity(self.nats_per_token)

    @property
    def word_perplexity(self) -> float:
        """Perplexity per word and line end, whatever the tokens are: comparable between vocabularies."""
        return perplexity(self.nats / (self.words + self.lines))

    @property
    def bits_per_character(self) -> float | None:
        """None where the targets have no characters, as the end of a last line without a line break."""
        return self.nats / math.log(2) / self.characters if self.characters else None

    @property
    def bits_per_byte(self) -> float | None:
        """None where the targets have no bytes."""
        return self.nats / math.log(2) / self.bytes if self.bytes else None


def evaluate(
    model: TransformerXL,
    segments: Segments,
    context: Context,
    *,
    predictor: Predictor | None = None,
    observe: Callable[[Tensor], None] | None = None,
) -> Score:
    """Score a text, segment by segment, the memory going from each to the next. Sums are in float64.

    Args:
        predictor: what predicts, if it is more than the model as it is.
        observe: is given the nats of each segment's targets that count (N,), row by row, before the next is read.
    """
    nats = wide_sum(torch.zeros(1, device=model.device))
    tokens = 0
    for nll_N in scored(model, segments, context, predictor=predictor):
        nats += wide_sum(nll_N)
        tokens += len(nll_N)
        if observe is not None:
            observe(nll_N)
    return Score(float(nats), tokens)


@torch.no_grad()
def scored(
    model: TransformerXL, segments: Segments, context: Context, *, predictor: Predictor | None = None
) -> Iterator[Tensor]:
    """Nats of each segment's targets that count (N,), row by row.

    The model is in evaluation mode meanwhile, and afterwards in the mode it was in.
    """
    device = model.device
    is_model = predictor is None or predictor is model
    ids_device = torch.device("cpu") if is_model else device  # the model takes ids from the host, and waits for nothing
    if is_model:
        predictor = CudaGraphModel(model) if device.type == "cuda" else model
    was_training = model.training
    model.eval()
    memory = None
    try:
        for input_BT, target_BT, counted_BT in segments:
            if memory is None:
                memory = predictor.fresh_memory(len(input_BT))
            nll_BT, memory = predictor.nll(input_BT.to(ids_device), target_BT.to(ids_device), memory, context)
            if isinstance(predictor, Learner):
                memory = predictor.learn(memory, counted_BT)
            yield nll_BT.flatten() if counted_BT is None else nll_BT[counted_BT.to(device)]
    finally:
        model.train(was_training)


def score_text(
    model: TransformerXL,
    ids: Sequence[int] | np.ndarray | Tensor,
    context: Context,
    *,
    first: int = 1,
    predictor: Predictor | None = None,
) -> Tensor:
    """Nats of each token of a text from token `first` on, (len(ids) - first,), on the CPU.

    The log-likelihood of a token is minus its nats. What stands before `first` is read and learnt from, not scored.

    Args:
        ids: of all tokens, of which there must be one to score and one before it.
    Raises:
        ValueError: if there is nothing to score, or nothing to predict it from.
    """
    if not 1 <= first < len(ids):
        raise ValueError(f"a text of {len(ids)} token(s) to be scored from token {first} on: needs 1 <= first < length")
    ids_1S = torch.as_tensor(np.asarray(ids, dtype=np.int64))[None]

    def segments() -> Iterator[tuple[Tensor, Tensor, None]]:
        last = len(ids) - 1
        for begin in range(0, last, context.tgt_len):
            end = min(begin + context.tgt_len, last)
            yield ids_1S[:, max(0, begin - context.ext_len) : end], ids_1S[:, begin + 1 : end + 1], None

    nll_S = torch.cat([nll_N.cpu() for nll_N in scored(model, segments(), context, predictor=predictor)])
    return nll_S[first - 1 :]


def require_finite(nats: float, name: str) -> None:
    """Raise `UsageError` where the loss of what `name` says is not a number or infinite."""
    require(
        math.isfinite(nats),
        f"{name}: its loss is {nats}; the weights are not finite, or a flag is beyond the range of the numbers; "
        f"use another checkpoint, or milder values",
    )


def within(context: Context, n_token: int) -> Context:
    """The same look-back over a text of n_token tokens, in which no length beyond the text makes a difference."""
    lengths = {name: min(getattr(context, name), n_token) for name in ("tgt_len", "mem_len", "ext_len", "clamp_len")}
    return dataclasses.replace(context, **lengths)


def warmup_segments(n_layer: int, context: Context) -> int:
    """Segments before a token that its loss can depend on.

    A segment reads mem_len + ext_len tokens before itself, and what it reads there was computed, a layer below, from as
    many tokens before those.
    """
    reach = -(-(context.mem_len + context.ext_len) // context.tgt_len)
    return n_layer * reach


def evaluation_context(context: Context, eval_tgt_len: int) -> Context:
    """The look-back of the evaluations during training: what a shorter segment gives up goes to the memory, or to the
    re-read tokens where there is no memory, as in kimiyoung/transformer-xl."""
    spare = context.tgt_len - eval_tgt_len
    if context.mem_len:
        changed = {"mem_len": max(1, context.mem_len + spare)}
    else:
        changed = {"ext_len": max(0, context.ext_len + spare)}
    return dataclasses.replace(context, tgt_len=eval_tgt_len, **changed)
