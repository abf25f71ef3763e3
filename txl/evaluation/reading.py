"""How a text is read: segments, the predictor, the context, warm-up."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from txl.config import Context

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
        unlike: why the program whose convention this is has another figure; empty: it has the same.
    """

    asked: Context
    context: Context
    n_warmup: int
    predictor: Predictor
    added: str = ""
    unlike: str = ""


def within(context: Context, n_token: int) -> Context:
    """The context with lengths limited to a text of n_token tokens; results are the same."""
    return context.at_most(
        n_token, "tgt_len", "mem_len", "compressed_len", "lookup_len", "ext_len", "clamp_len"
    )


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
