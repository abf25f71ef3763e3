"""How a text is read: segments, the predictor, the context, warm-up."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from txl.config import Context, ModelConfig
from txl.inference.frozen import Frozen
from txl.inference.key_values import KeyValueMemory
from txl.positions import POSITION_ENCODINGS

Segments = Iterable[tuple[Tensor, Tensor, Tensor | None]]
"""(input, target, mask of the targets that are scored; None: all), in the order of the text."""


def of_counted(value_BT: Tensor, counted_BT: Tensor | None) -> Tensor:
    """The values (N, ...) of the scored targets, row by row, of values (B, T,
    ...) on any device.
    """
    if counted_BT is None:
        return value_BT.flatten(0, 1)
    return value_BT[counted_BT.to(value_BT.device)]


class ScoredRows(Protocol):
    """Segments of several rows of a text, read in parallel, starting with an empty memory.

    Attributes:
        first_B: index in the text of each row's first token.
    """

    first_B: np.ndarray

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]: ...

    def __len__(self) -> int: ...


class Predictor(Protocol):
    """What is scored: a `TransformerXL`, or a wrapper that adapts it to the text.

    `memory` is the predictor's state, of any type; it is passed in and returned.
    """

    def fresh_memory(self, batch_size: int) -> Any:
        """The state before the first segment."""
        ...

    def nll(
        self, input_BT: Tensor, target_BT: Tensor, memory: Any, context: Context
    ) -> tuple[Tensor, Any]:
        """Loss of each target in nats (B, T), and the state after the segment."""
        ...


@runtime_checkable
class Learner(Predictor, Protocol):
    """A predictor that learns from each segment after it was scored."""

    def learn(self, memory: Any, counted_BT: Tensor | None) -> Any:
        """The state after learning from the scored targets (None: all) of the last segment."""
        ...


@dataclass(frozen=True)
class Reading:
    """How a text is read at one context setting.

    Attributes:
        asked: the context as requested.
        context: the context passed to the predictor.
        n_warmup: unscored segments before the first scored one.
        predictor: what is scored.
        added: test-time methods in use, for tables; empty for the plain model.
        n_again: tokens at the beginning of a text that are read again, see `score_text`.
        unlike: why the program whose convention this is has another figure; empty: it has the same.
    """

    asked: Context
    context: Context
    n_warmup: int
    predictor: Predictor
    added: str = ""
    unlike: str = ""
    n_again: int = 0


@torch.no_grad()
def hidden_segments(
    model: Frozen, segments: Segments, context: Context, *, n_together: int = 0
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Read a text segment by segment, carrying the memory along: of each segment the hidden states
    that its targets are predicted from, (B, T, D), its targets and their mask. The next segment may
    overwrite the hidden states.

    Ids stay on the host, which avoids GPU synchronisation. Nobody goes back to an earlier memory,
    so keys are written over.

    Args:
        n_together: segments that have no more tokens than this together are read as one.
    """
    memory: Any = None
    for group in _groups(segments, n_together):
        inputs = [input_BT for input_BT, _, _ in group]
        if n_together:
            n_input = sum(input_BT.shape[1] for input_BT in inputs)
            context = dataclasses.replace(context, tgt_len=max(context.tgt_len, n_input))
        if memory is None:
            memory = model.fresh_memory(len(inputs[0]))
            if isinstance(memory, KeyValueMemory):
                n_kept = context.mem_len + context.ext_len
                memory = memory.in_place(n_kept=n_kept, n_new=context.tgt_len)
        hidden_BTD, memory = model(torch.cat(inputs, dim=1), memory, context)
        widths = [target_BT.shape[1] for _, target_BT, _ in group]
        parts = hidden_BTD[:, -sum(widths) :].split(widths, dim=1)
        for part_BTD, (_, target_BT, counted_BT) in zip(parts, group, strict=True):
            yield part_BTD, target_BT, counted_BT


def _groups(
    segments: Segments, n_token: int
) -> Iterator[list[tuple[Tensor, Tensor, Tensor | None]]]:
    """Consecutive segments, as many as have no more than n_token tokens
    together, but one at least.
    """
    group: list[tuple[Tensor, Tensor, Tensor | None]] = []
    n_there = 0
    for segment in segments:
        if group and n_there + segment[0].numel() > n_token:
            yield group
            group = []
            n_there = 0
        group.append(segment)
        n_there += segment[0].numel()
    if group:
        yield group


def predicted_segments(
    predictor: Predictor, segments: Segments, context: Context, device: torch.device
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Read a text segment by segment with a predictor, which learns from each if it does: the nats
    of its targets, (B, T), and their mask.
    """
    memory: Any = None
    for input_BT, target_BT, counted_BT in segments:
        if memory is None:
            memory = predictor.fresh_memory(len(input_BT))
        nll_BT, memory = predictor.nll(input_BT.to(device), target_BT.to(device), memory, context)
        if isinstance(predictor, Learner):
            memory = predictor.learn(memory, counted_BT)
        yield nll_BT, counted_BT


def within(config: ModelConfig, context: Context, n_token: int) -> Context:
    """The context with lengths limited to a text of n_token tokens; results are the same.

    Segments stay as long as they are where states are placed: tables of positions count from their
    ends. So does clamp_len: with the vectors that a memory reads beside the tokens, distances may
    be longer than the text.
    """
    if POSITION_ENCODINGS[config.position].places_hidden_states():
        return context.at_most(n_token)
    return context.at_most(n_token, "tgt_len", "ext_len")


def warmup_segments(n_layer: int, context: Context) -> int:
    """Number of segments before a token that its loss can depend on.

    A segment sees mem_len + ext_len tokens before itself; their states, one layer below, depend on
    as many before them.
    """
    reach = -(-(context.mem_len + context.ext_len) // context.tgt_len)
    return n_layer * reach


def evaluation_context(context: Context, eval_tgt_len: int) -> Context:
    """The context of evaluations during training: memory grows by what the segment shrinks, or
    ext_len if there is no memory, as in kimiyoung/transformer-xl.
    """
    spare = context.tgt_len - eval_tgt_len
    if context.mem_len:
        changed = {"mem_len": max(1, context.mem_len + spare)}
    else:
        changed = {"ext_len": max(0, context.ext_len + spare)}
    return dataclasses.replace(context, tgt_len=eval_tgt_len, **changed)
