"""The layers of Transformer-XL and their memory. Independent of the position encoding and the attention rule in use."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txl.attention_rules.refusals import require_masks_documents
from txl.config import KEEP_MIB, Context, ModelConfig, require
from txl.memory import KeyValueMemory, Memory, Span, State, empty_states, require_works
from txl.model import one_token
from txl.model.ended import Ended, without_ended
from txl.model.layer import Layer
from txl.model.reversible import reversible_layers
from txl.ops.dropout import Dropout
from txl.ops.rel_attention import refusal, resolved, takes_factors
from txl.positions import build_position_encodings, require_serves

AnyMemory = Memory | KeyValueMemory
"""A model returns the kind of memory that it was given; hidden states if gradients are needed."""


class Output(NamedTuple):
    """Hidden states of the last layer (B, T, D), and the memory for the next segment."""

    hidden_BTD: Tensor
    memory: AnyMemory


class Part(NamedTuple):
    """A part of a segment, read after other parts of it, which stand at the end of the memory.

    Attributes:
        n_kept: how many tokens the memory may hold meanwhile, in place of mem_len.
        n_full: tokens that stand together once the segment has been read, remembered ones included.
    """

    n_kept: int
    n_full: int


class Body(nn.Module):
    """Layers that read vectors and remember; what reads words or observations is built on it.

    The memory is passed in and returned; the module keeps no state.
    """

    layers: Sequence[Layer]

    def build(self, config: ModelConfig, *, dropout: float, dropatt: float) -> None:
        """Make the layers: apart from `__init__`, so that a subclass can have parts that come first in the order of its
        parameters."""
        self.config = config
        encodings = build_position_encodings(config, dropout=dropout)
        layers = nn.ModuleList(
            Layer(config, pos, index=i, dropout=dropout, dropatt=dropatt) for i, pos in enumerate(encodings)
        )
        self.layers = layers  # type: ignore[assignment]  # a ModuleList does not know the class of its elements
        self.drop = Dropout(dropout)
        self.recompute = False
        """Recompute each layer's activations in the backward pass (activation checkpointing)."""
        self.is_sharded = False
        """A layer's weights are there while it runs only; see `txl.training.sharding`."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    def hidden_matrices(self) -> list[Tensor]:
        """The matrices of the layers' attention and feed-forward networks that mix features of hidden states: what Muon
        updates (Jordan et al. 2024)."""
        layers: list[nn.Linear] = []
        for layer in self.layers:
            pos = layer.attn.pos
            of_positions = set() if pos.mixes_hidden_states else set(pos.modules())
            for module in (*layer.attn.modules(), *layer.ff.modules()):
                if isinstance(module, nn.Linear) and module not in of_positions:
                    layers.append(module)
        return [module.weight for module in layers]

    def read(
        self,
        h_BTD: Tensor,
        memory: AnyMemory | None,
        context: Context,
        since_BT: Tensor | None = None,
        *,
        part: Part | None = None,
    ) -> Output:
        """Read a segment of vectors (B, T, D): embedded tokens.

        Args:
            since_BT: how many tokens before each one, at least 0, belong to the same document; none before them is
                seen. Each row has its own borders. None: the text is one document.
            part: these are a part of a segment, see `txl.inference.reader`; None: a segment.
        Raises:
            ValueError: if the memory has another batch size or takes no gradient.
            UsageError: if the position encoding does not support the context, or the attention rule no documents.
        """
        require_serves(self.layers[0].attn.pos, context)
        require_works(self.config.memory, context)
        if since_BT is not None:
            require_masks_documents(self.config)
            since_BT = since_BT.to(h_BTD.device, non_blocking=True)
        h_BTD = self.drop(h_BTD)
        memory = self._memory_for(h_BTD, memory)
        window = context
        if part is not None:
            context = replace(context, mem_len=part.n_kept, ext_len=0)
        if (
            since_BT is None
            and isinstance(memory, KeyValueMemory)
            and one_token.serves(self.layers, h_BTD, memory, context)
        ):
            return Output(*one_token.read(self.layers, h_BTD, memory, context))
        ended: Ended | None = None
        if since_BT is not None:
            ended = without_ended(h_BTD, memory, since_BT)
            h_BTD, memory = ended.h_BTD, ended.memory
        rule = memory.rule(self.layers[0])
        h_BTD = rule.entered(h_BTD, memory.states[0])
        span = rule.span(memory.states[0], window, n_new=h_BTD.shape[1], since_BT=since_BT)
        if part is not None:
            span = replace(span, n_full=part.n_full)
        h_BTD, memory = self._through_layers(h_BTD, memory, span, context)
        if ended is not None:
            h_BTD = ended.marked(h_BTD)
        return Output(self.drop(h_BTD), memory)

    def _memory_for(self, h_BTD: Tensor, memory: AnyMemory | None) -> AnyMemory:
        """The memory of these rows, or an empty one. Raises `ValueError`, see `read`."""
        if memory is None:
            return self.empty_memory(len(h_BTD), like=h_BTD)
        if isinstance(memory, KeyValueMemory) and self._layers_need_gradients(h_BTD):
            if memory.length:
                raise ValueError(
                    "a memory of keys and values takes no gradient; use torch.no_grad(), or start with memory=None"
                )
            memory = self.empty_memory(memory.batch_size, like=h_BTD)
        if memory.batch_size != len(h_BTD):
            raise ValueError(f"the memory holds {memory.batch_size} rows, the segment {len(h_BTD)}")
        return memory

    def _through_layers(
        self, h_BTD: Tensor, memory: AnyMemory, span: Span, context: Context
    ) -> tuple[Tensor, AnyMemory]:
        """What the last layer returns of the segment, and the memory for the next."""
        if self.config.reversible:  # two streams, equal at first, averaged at the end
            h_BTD = torch.cat([h_BTD, h_BTD], dim=-1)
        memory, feats = memory.placed(self.layers, span, context, like=self.layers[0].read(h_BTD))
        states: list[Any] = []
        if isinstance(memory, Memory) and self.config.reversible and self._layers_need_gradients(h_BTD):
            h_BTD, states = self._reversibly(h_BTD, memory, feats[0], span, context)
        else:
            for layer, state, of_layer in zip(self.layers, memory.states, feats, strict=True):
                of_rule = memory.rule(layer)
                h_BTD, kept = of_rule.through(layer, h_BTD, state, of_layer, span, context, self.run_layer)
                states.append(kept)
            h_BTD, states[0] = memory.rule(self.layers[0]).left(h_BTD, states[0])
        if self.config.reversible:
            x1_BTD, x2_BTD = h_BTD.chunk(2, dim=-1)
            h_BTD = (x1_BTD + x2_BTD) / 2
        return h_BTD, memory.of(states)

    def _layers_need_gradients(self, h_BTD: Tensor) -> bool:
        """Also with frozen embeddings."""
        if not torch.is_grad_enabled():  # first: to ask each weight takes as long as a layer does for one token
            return False
        return h_BTD.requires_grad or any(p.requires_grad for layer in self.layers for p in layer.parameters())

    def run_layer(self, layer: Layer, *inputs: Any) -> Any:
        """What a layer returns; recomputed in the backward pass if `recompute` says so."""
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
        n_key, d_head = self.layers[0].memory.length(context, self.config) + context.tgt_len, self.config.d_head
        if self.layers[0].memory.weighs_keys:
            return "blockwise" if takes_factors(self.device, n_key=n_key, needs_grad=needs_grad) else "plain"
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
        rules: list[Any] = [None if one.memory.keeps_output else one.memory.projected for one in self.layers]
        if layer.attn.pos.places_hidden_states() or None in rules:
            return self.empty_memory(batch_size)
        weight = layer.attn_norm.weight
        return KeyValueMemory(tuple(rule.empty(self.config, batch_size, like=weight) for rule in rules))

    def empty_memory(self, batch_size: int, *, like: Tensor | None = None) -> Memory:
        """An empty memory as in training, with dtype and device of `like` (default: the weights)."""
        like = self.layers[0].attn_norm.weight if like is None else like
        return Memory.of(empty_states(self.config, batch_size, like=like))
