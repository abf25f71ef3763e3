"""Transformer-XL: words in, losses and memory out."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from txl.config import Context, ModelConfig, require
from txl.model import parts
from txl.model.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl.model.memory import Reading
from txl.model.span import Span
from txl.model.streams import Memory, made_finite
from txl.ops.dropout import Dropout


class Output(NamedTuple):
    """Hidden states of the last layer, (B, T, D), and the memory for the next segment."""

    hidden_BTD: Tensor
    memory: Memory


class Body(nn.Module):
    """Layers that read vectors and remember; what reads words or observations is built on it."""

    def add_layers(self, config: ModelConfig, *, dropout: float, dropatt: float) -> None:
        """Make the layers. A subclass may have parts that come before them."""
        self.config = config
        self.is_sharded = False  # by FSDP: a layer then holds its weights only while it runs
        self.layers = parts.build_layers(config, dropout=dropout, dropatt=dropatt)
        self.run = parts.run_of(config)
        self.drop = Dropout(dropout)
        self.final_norm = parts.build_final_norm(config)
        self._served: set[tuple[Context, bool]] = set()  # contexts known to be served

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    def empty_memory(self, batch_size: int, *, like: Tensor | None = None) -> Memory:
        """The memory before the first segment; dtype and device of `like`, or of the weights."""
        like = self.layers[0].attn_norm.weight if like is None else like
        rules = [layer.memory for layer in self.layers]
        return Memory(tuple(rule.empty(self.config, batch_size, like=like) for rule in rules))

    def read(
        self,
        h_BTD: Tensor,
        memory: Memory | None,
        context: Context,
        since_BT: Tensor | None = None,
        *,
        span: Span | None = None,
    ) -> Output:
        """Read a segment of vectors (B, T, D), such as embedded tokens.

        Args:
            memory: of the segment before; None: an empty one.
            since_BT: how many tokens of its document stand before each; it sees no others; None: all.
            span: where the segment stands, for readers of a part of one; None: as the context says.
        Raises:
            ValueError: if the memory has another batch size or number of layers.
            UsageError: if a part of the model does not support the context, or documents.
        """
        h_BTD = self.drop(h_BTD)
        states = (memory or self.empty_memory(len(h_BTD), like=h_BTD)).states
        if len(states) != len(self.layers):
            raise ValueError(f"the memory holds {len(states)} layers, the model {len(self.layers)}")
        n_row = len(states[0].hidden_BMD)
        if n_row != len(h_BTD):
            raise ValueError(f"the memory holds {n_row} rows, the segment {len(h_BTD)}")
        if span is None:
            self.require_serves(context, has_documents=since_BT is not None)
            n_mem = self.layers[0].memory.n_kept(states[0])
            span = Span.of(context, n_mem=n_mem, n_new=h_BTD.shape[1])
        finite = None
        if since_BT is not None:
            span = replace(span, since_BT=since_BT.to(h_BTD.device, non_blocking=True))
            finite = made_finite(h_BTD, Memory(states), span)
            h_BTD = finite.h_BTD
            states = finite.memory.states
        reading = Reading(context, span, self.layers[0].attn.pos, like=h_BTD)
        h_BTD, states = self.run(self.layers, h_BTD, states, reading)
        h_BTD = self.final_norm(h_BTD)
        after = Memory(states)
        if finite is not None:
            h_BTD = finite.marked(h_BTD)
            after = finite.marked_memory(after)
        return Output(self.drop(h_BTD), after)

    def remember(self, memory: str | None = None, **settings: Any) -> list[str]:
        """Exchange the memory, see `txl.model.parts.remember`."""
        return parts.remember(self, memory, **settings)

    def require_serves(self, context: Context, *, has_documents: bool) -> None:
        """Raise `UsageError` if a part does not support the context, or documents."""
        if (context, has_documents) not in self._served:
            parts.require_context(self, context, has_documents=has_documents)
            self._served.add((context, has_documents))


class TransformerXL(Body):
    """A language model with segment-level recurrence (Dai et al. 2019, arXiv 1901.02860).

        hidden, memory = model(token_BT, memory, context)
        nll_BT, memory = model.nll(input_BT, target_BT, memory, context)

    The memory is passed in and returned (None: an empty one); the module keeps no state. `context`
    holds the lengths, and may change from call to call.
    """

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0, dropatt: float = 0.0) -> None:
        super().__init__()
        require(config.n_token > 0, f"--n_token {config.n_token}: must be at least 1")
        self.word_emb = AdaptiveEmbedding(config)
        self.add_layers(config, dropout=dropout, dropatt=dropatt)
        self.softmax = AdaptiveSoftmax(config, self.word_emb)

    def forward(
        self,
        token_BT: Tensor,
        memory: Memory | None,
        context: Context,
        since_BT: Tensor | None = None,
        tables: list[Tensor] | None = None,
        *,
        span: Span | None = None,
    ) -> Output:
        """Read a segment of token ids (B, T), as `read` does; `tables` see `AdaptiveEmbedding`."""
        return self.read(self.word_emb(token_BT, tables), memory, context, since_BT, span=span)

    def nll(
        self,
        input_BT: Tensor,
        target_BT: Tensor,
        memory: Memory | None,
        context: Context,
        since_BT: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """Loss of each target in nats, (B, T), and the memory for the next segment.

        The input may be longer than the target (`ext_len`): targets belong to its last positions.
        Ids on the CPU avoid GPU synchronisation, see `AdaptiveSoftmax.nll`.
        """
        tables = self.reused_tables()
        hidden_BTD, memory_after = self(input_BT, memory, context, since_BT, tables)
        hidden_BTD = hidden_BTD[:, -target_BT.shape[1] :]
        return self.softmax.nll(hidden_BTD, target_BT, tables), memory_after

    def reused_tables(self) -> list[Tensor] | None:
        """For `tables` in a step: a tied table gets one gradient for both uses."""
        is_tied = self.softmax.tables[0] is self.word_emb.tables[0]
        return [] if is_tied and torch.is_grad_enabled() and not self.is_sharded else None

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all words, (..., V), for hidden states (..., D)."""
        return self.softmax.log_prob(hidden)
