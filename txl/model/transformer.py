"""Transformer-XL: the file to read first. Independent of the position encoding and the attention rule in use."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txl.attention_rules.refusals import require_masks_documents
from txl.config import KEEP_MIB, Context, ModelConfig, require
from txl.memory import KeyValue, KeyValueMemory, Memory, Span, State, require_works
from txl.model.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl.model.layer import Layer
from txl.model.reversible import reversible_layers
from txl.ops.dropout import Dropout
from txl.ops.rel_attention import refusal, resolved
from txl.positions import build_position_encodings, require_serves

AnyMemory = Memory | KeyValueMemory
"""A model returns the kind of memory that it was given; hidden states if gradients are needed."""


class Output(NamedTuple):
    """Hidden states of the last layer (B, T, D), and the memory for the next segment."""

    hidden_BTD: Tensor
    memory: AnyMemory


class TransformerXL(nn.Module):
    """A language model with segment-level recurrence (Dai et al. 2019, arXiv 1901.02860).

        hidden, memory = model(token_BT, memory, context)
        nll_BT, memory = model.nll(input_BT, target_BT, memory, context)

    The memory is passed in and returned; the module keeps no state. `memory=None` is an empty memory. `context` holds
    the segment and memory lengths, and may change from call to call.
    With `pre_lnorm` there is no LayerNorm after the last layer, as in the original.
    """

    layers: Sequence[Layer]

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0, dropatt: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.word_emb = AdaptiveEmbedding(config)
        encodings = build_position_encodings(config, dropout=dropout)
        layers = nn.ModuleList(Layer(config, pos, dropout=dropout, dropatt=dropatt) for pos in encodings)
        self.layers = layers  # type: ignore[assignment]  # a ModuleList does not know the class of its elements
        self.drop = Dropout(dropout)
        self.softmax = AdaptiveSoftmax(config, self.word_emb)
        self.recompute = False
        """Recompute each layer's activations in the backward pass (activation checkpointing)."""
        self.is_sharded = False
        """A layer's weights are there while it runs only; see `txl.training.sharding`."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    def forward(
        self, token_BT: Tensor, memory: AnyMemory | None, context: Context, since_BT: Tensor | None = None
    ) -> Output:
        """Read a segment of token ids (B, T), which may be on the CPU, see `AdaptiveEmbedding`.

        Args:
            since_BT: how many tokens before each one, at least 0, belong to the same document; none before them is
                seen. Each row has its own borders. None: the text is one document.
        Raises:
            ValueError: if the memory has another batch size or takes no gradient, or an id is outside the vocabulary.
            UsageError: if the position encoding does not support the context, or the attention rule no documents.
        """
        return self.read(self.word_emb(token_BT), memory, context, since_BT)

    def read(self, h_BTD: Tensor, memory: AnyMemory | None, context: Context, since_BT: Tensor | None = None) -> Output:
        """Read a segment of embedded tokens (B, T, D)."""
        require_serves(self.layers[0].attn.pos, context)
        require_works(self.config.memory, context)
        if since_BT is not None:
            require_masks_documents(self.config)
            since_BT = since_BT.to(h_BTD.device, non_blocking=True)
        h_BTD = self.drop(h_BTD)
        batch_size, n_new, _ = h_BTD.shape
        if memory is None:
            memory = self.empty_memory(batch_size, like=h_BTD)
        needs_gradients = self._layers_need_gradients(h_BTD)
        if isinstance(memory, KeyValueMemory) and needs_gradients:
            if memory.length:
                raise ValueError(
                    "a memory of keys and values takes no gradient; use torch.no_grad(), or start with memory=None"
                )
            memory = self.empty_memory(memory.batch_size, like=h_BTD)
        if memory.batch_size != batch_size:
            raise ValueError(f"the memory holds {memory.batch_size} rows, the segment {batch_size}")
        span = memory.rule(self.layers[0]).span(memory.states[0], context, n_new=n_new, since_BT=since_BT)
        if self.config.reversible:  # two streams, equal at first, averaged at the end
            h_BTD = torch.cat([h_BTD, h_BTD], dim=-1)
        states: list[Any]
        memory, feats = memory.placed(self.layers, span, context, like=self.layers[0].read(h_BTD))
        if isinstance(memory, Memory) and self.config.reversible and needs_gradients:
            h_BTD, states = self._reversibly(h_BTD, memory, feats[0], span, context)
        else:
            states = []
            for layer, state, of_layer in zip(self.layers, memory.states, feats, strict=True):
                rule = memory.rule(layer)
                h_BTD, kept = rule.through(layer, h_BTD, state, of_layer, span, context, self.run_layer)
                states.append(kept)
        if self.config.reversible:
            x1_BTD, x2_BTD = h_BTD.chunk(2, dim=-1)
            h_BTD = (x1_BTD + x2_BTD) / 2
        return Output(self.drop(h_BTD), memory.of(states))

    def _layers_need_gradients(self, h_BTD: Tensor) -> bool:
        """Also with frozen embeddings."""
        trains = torch.is_grad_enabled() and any(p.requires_grad for layer in self.layers for p in layer.parameters())
        return trains or h_BTD.requires_grad

    def run_layer(self, layer: Layer, *inputs: Any) -> Tensor:
        """The output of a layer; recomputed in the backward pass if `recompute` says so."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)

    def _reversibly(
        self, h_BTD: Tensor, memory: Memory, feats: Tensor, span: Span, context: Context
    ) -> tuple[Tensor, list[State]]:
        kept: list[State] = []
        rules = [layer.memory for layer in self.layers]

        def keep(before_BTD: Tensor, after_BTD: Tensor) -> None:
            rule, state, layer = rules[len(kept)], memory.states[len(kept)], self.layers[len(kept)]
            kept.append(rule.kept(state, after_BTD if rule.keeps_output else before_BTD, span, context, layer))

        x1_BTD, x2_BTD = h_BTD.chunk(2, dim=-1)
        read = [rule.read(state) for rule, state in zip(rules, memory.states, strict=True)]
        streams = reversible_layers(self.layers, x1_BTD, x2_BTD, read, feats, span, keep)
        return torch.cat(streams, dim=-1), kept

    def use_attention(self, impl: str, *, keep_mib: int = KEEP_MIB) -> None:
        """Choose the implementation of relative attention, see `txl.ops.rel_attention`; results agree up to rounding.

        Raises:
            UsageError: if it cannot run on the model's device.
        """
        reason = refusal(impl, self.device, d_head=self.config.d_head)
        require(reason is None, f"--attn_impl {impl}: {reason}")
        for layer in self.layers:
            layer.attn.rule.impl, layer.attn.rule.keep_mib = impl, keep_mib

    def attention_path(self, context: Context, dtype: torch.dtype, *, needs_grad: bool, by_row: bool = False) -> str:
        """The implementation used for attention over a full memory in `dtype`, with documents masked `by_row`, for the
        log."""
        attn = self.layers[0].attn
        path = attn.rule.path(attn.pos)
        if path != "relative":
            return path
        n_key, d_head = self.layers[0].memory.length(context) + context.tgt_len, self.config.d_head
        return resolved(
            attn.rule.impl, self.device, dtype, d_head=d_head, n_key=n_key, needs_grad=needs_grad, by_row=by_row
        )

    def fresh_memory(self, batch_size: int) -> AnyMemory:
        """An empty memory for evaluation and generation: keys and values if encoding and recurrence allow it.

        If gradients are needed it acts like `None`.
        """
        if self.is_sharded:  # keys are projected between layers, whose weights are not there
            dtype = next(self.parameters()).dtype
            return self.empty_memory(batch_size, like=torch.empty(0, dtype=dtype, device=self.device))
        layer = self.layers[0]
        if layer.attn.pos.places_hidden_states() or layer.memory.keeps_output or not layer.memory.is_projected:
            return self.empty_memory(batch_size)
        n_head, d_head, weight = self.config.n_head, self.config.d_head, layer.attn.k_net.weight
        return KeyValueMemory(tuple(KeyValue.empty(batch_size, n_head, d_head, like=weight) for _ in self.layers))

    def empty_memory(self, batch_size: int, *, like: Tensor | None = None) -> Memory:
        """An empty memory as in training, with dtype and device of `like` (default: the weights)."""
        like = self.layers[0].attn.k_net.weight if like is None else like
        return Memory.of([layer.memory.empty(self.config, batch_size, like=like) for layer in self.layers])

    def nll(
        self,
        input_BT: Tensor,
        target_BT: Tensor,
        memory: AnyMemory | None,
        context: Context,
        since_BT: Tensor | None = None,
        *,
        same_weight: bool = False,
    ) -> tuple[Tensor, AnyMemory]:
        """Loss of each target in nats, (B, T), and the memory for the next segment.

        The input may be longer than the target (`ext_len`): targets belong to its last positions. Ids on the CPU avoid
        GPU synchronisation, see `AdaptiveSoftmax.nll`, also for `same_weight`.
        """
        nll_BT, _, memory = self.nll_and_hidden(input_BT, target_BT, memory, context, since_BT, same_weight=same_weight)
        return nll_BT, memory

    def nll_and_hidden(
        self,
        input_BT: Tensor,
        target_BT: Tensor,
        memory: AnyMemory | None,
        context: Context,
        since_BT: Tensor | None = None,
        *,
        same_weight: bool = False,
    ) -> tuple[Tensor, Tensor, AnyMemory]:
        """`nll`, with the hidden states (B, T, D) that the targets are predicted from between its results."""
        tables: list[Tensor] | None = None
        # one gradient for both uses of a tied table; a GPU would sum its rows in any order
        if torch.is_grad_enabled() and self.device.type == "cpu" and not (self.config.not_tied or self.is_sharded):
            tables = []
            out = self.read(self.word_emb(input_BT, tables), memory, context, since_BT)
        else:
            out = self(input_BT, memory, context, since_BT)
        hidden_BTD = out.hidden_BTD[:, -target_BT.shape[1] :]
        nll_BT = self.softmax.nll(hidden_BTD, target_BT, tables, same_weight=same_weight)
        return nll_BT, hidden_BTD, out.memory

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all words, (..., V), for hidden states (..., D)."""
        return self.softmax.log_prob(hidden)
