"""How well a model predicts a text."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from txl.config import Context
from txl.distributed import Ranks
from txl.graphed import Graphed
from txl.log import perplexity
from txl.model import TransformerXL

Segments = Iterable[tuple[Tensor, Tensor, Tensor | None]]
"""(input, target, which targets count; None: all), in the order of the text."""


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


@dataclass(frozen=True)
class Score:
    """Summed nats and what was counted; everything else is read off these."""

    nats: float
    tokens: int

    def over(self, ranks: Ranks) -> "Score":
        """The score of all ranks' shares together."""
        shares = ranks.gathered((self.nats, self.tokens))
        return Score(math.fsum(nats for nats, _ in shares), sum(tokens for _, tokens in shares))

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        return perplexity(self.nats_per_token)


def evaluate(
    model: TransformerXL, segments: Segments, context: Context, *, predictor: Predictor | None = None
) -> Score:
    """Score a text, segment by segment, the memory going from each to the next. Sums are in float64.

    The model is in evaluation mode meanwhile, and afterwards in the mode it was in.

    Args:
        predictor: what predicts, if it is more than the model as it is.
    """
    device = next(model.parameters()).device
    predictor = predictor or (Graphed(model) if device.type == "cuda" else model)
    was_training = model.training
    model.eval()
    nats = torch.zeros((), dtype=torch.float64, device=device)
    tokens = 0
    memory = None
    with torch.no_grad():
        for input_BT, target_BT, counted_BT in segments:
            if memory is None:
                memory = predictor.fresh_memory(len(input_BT))
            nll_BT, memory = predictor.nll(input_BT.to(device), target_BT.to(device), memory, context)
            if counted_BT is not None:
                nll_BT = nll_BT[counted_BT.to(device)]
            nats += nll_BT.double().sum()
            tokens += nll_BT.numel()
    model.train(was_training)
    return Score(float(nats), tokens)


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
