"""Transformer-XL: the file to read first. It does not know which position encoding or attention rule is in use."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txl.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl.attention import Attention
from txl.config import Context, ModelConfig, require
from txl.memory import KeyValue, KeyValueMemory, Memory, Span
from txl.ops.rel_attention import fastest, refusal
from txl.positions import PositionEncoding, build_position_encodings


class Layer(nn.Module):
    """Attention over [memory, segment], then a feed-forward net, each with residual connection and LayerNorm."""

    def __init__(self, config: ModelConfig, pos: PositionEncoding, *, dropout: float, dropatt: float) -> None:
        super().__init__()
        self.pre_lnorm = config.pre_lnorm
        self.attn = Attention(config, pos, dropatt=dropatt)
        self.attn_drop = nn.Dropout(dropout)
        self.attn_norm = nn.LayerNorm(config.d_model)
        self.ff = nn.Sequential(
            nn.Linear(config.d_model, config.d_inner),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(config.d_inner, config.d_model),
            nn.Dropout(dropout),
        )
        self.ff_norm = nn.LayerNorm(config.d_model)

    def forward(self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span) -> Tensor:
        """The layer's output (B, T, D). With `pre_lnorm` the memory, kept unnormalised, is normalised when read."""
        x_BTD, mem_BMD = self.attn.pos.layer_input(x_BTD, mem_BMD, feats, span)
        if self.pre_lnorm:
            return self._after(x_BTD, self.attn(self.attn_norm(x_BTD), self.attn_norm(mem_BMD), feats, span))
        return self._after(x_BTD, self.attn(x_BTD, mem_BMD, feats, span))

    def with_key_values(
        self, x_BTD: Tensor, remembered: KeyValue, place: Tensor, span: Span
    ) -> tuple[Tensor, KeyValue]:
        """The same from remembered keys and values; see `Attention.with_key_values`."""
        read_BTD = self.attn_norm(x_BTD) if self.pre_lnorm else x_BTD
        attended_BTD, seen = self.attn.with_key_values(read_BTD, remembered, place, span)
        return self._after(x_BTD, attended_BTD), seen

    def _after(self, x_BTD: Tensor, attended_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attn_drop(attended_BTD)
        if self.pre_lnorm:
            return x_BTD + self.ff(self.ff_norm(x_BTD))
        x_BTD = self.attn_norm(x_BTD)
        return self.ff_norm(x_BTD + self.ff(x_BTD))


AnyMemory = Memory | KeyValueMemory
"""What a model remembers; it returns the kind that it was given."""


class Output(NamedTuple):
    """Hidden states of the last layer (B, T, D), and the memory for the next segment."""

    hidden_BTD: Tensor
    memory: AnyMemory


class TransformerXL(nn.Module):
    """A language model with a memory of the segments before (Dai et al. 2019, arXiv 1901.02860).

        hidden, memory = model(token_BT, memory, context)
        nll_BT, memory = model.nll(input_BT, target_BT, memory, context)

    State goes in and comes out; nothing is kept in the module. `memory=None` is the empty memory. `context` says how
    far to look back, and may change from call to call.
    With `pre_lnorm` there is no LayerNorm after the last layer, as in the original.
    """

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0, dropatt: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.word_emb = AdaptiveEmbedding(config)
        encodings = build_position_encodings(config, dropout=dropout)
        self.layers = nn.ModuleList(Layer(config, pos, dropout=dropout, dropatt=dropatt) for pos in encodings)
        self.drop = nn.Dropout(dropout)
        self.softmax = AdaptiveSoftmax(config, self.word_emb)
        self.recompute = False
        """Compute each layer a second time in the backward pass instead of keeping its activations."""

    def forward(self, token_BT: Tensor, memory: AnyMemory | None, context: Context) -> Output:
        """Read a segment. The ids may lie on the CPU, see `AdaptiveEmbedding`.

        Raises:
            ValueError: if the memory belongs to a batch of another size, an id lies outside the vocabulary, or the
                position encoding has no meaning for this look-back.
        """
        return self.read(self.word_emb(token_BT), memory, context)

    def read(self, h_BTD: Tensor, memory: AnyMemory | None, context: Context) -> Output:
        """Read a segment of embedded tokens (B, T, D)."""
        self.layers[0].attn.pos.require_serves(context)
        h_BTD = self.drop(h_BTD)
        batch_size, n_new, _ = h_BTD.shape
        if memory is None:
            memory = Memory.empty(len(self.layers), batch_size, self.config.d_model, like=h_BTD)
        if memory.batch_size != batch_size:
            raise ValueError(f"the memory holds {memory.batch_size} rows, the segment {batch_size}")
        span = Span.of(context, n_mem=memory.length, n_new=n_new)
        if isinstance(memory, KeyValueMemory):
            h_BTD, memory = self._with_key_values(h_BTD, memory, span, context)
        else:
            h_BTD, memory = self._with_hidden_states(h_BTD, memory, span, context)
        return Output(self.drop(h_BTD), memory)

    def _with_hidden_states(self, h_BTD: Tensor, memory: Memory, span: Span, context: Context) -> tuple[Tensor, Memory]:
        feats = self.layers[0].attn.pos.prepare(span, like=h_BTD)
        inputs = []
        for layer, mem_BMD in zip(self.layers, memory.layers, strict=True):
            inputs.append(h_BTD)
            if self.recompute and torch.is_grad_enabled():
                h_BTD = checkpoint(layer, h_BTD, mem_BMD, feats, span, use_reentrant=False)
            else:
                h_BTD = layer(h_BTD, mem_BMD, feats, span)
        return h_BTD, memory.extended(inputs, mem_len=context.mem_len, ext_len=context.ext_len)

    @torch.no_grad()
    def _with_key_values(
        self, h_BTD: Tensor, memory: KeyValueMemory, span: Span, context: Context
    ) -> tuple[Tensor, KeyValueMemory]:
        memory = self._with_places(memory, span, context, like=h_BTD)
        seen = []
        for layer, remembered, place in zip(self.layers, memory.layers, memory.places, strict=True):
            place = place[-span.n_key :] if layer.attn.pos.by_distance else place
            h_BTD, both = layer.with_key_values(h_BTD, remembered, place, span)
            seen.append(both)
        n_new, ext_len = span.n_new, context.ext_len
        return h_BTD, memory.kept(seen, n_new=n_new, mem_len=context.mem_len, ext_len=ext_len)

    def _with_places(self, memory: KeyValueMemory, span: Span, context: Context, *, like: Tensor) -> KeyValueMemory:
        """The memory with positions projected for this span: made once for the longest span there will be."""
        encodings = [layer.attn.pos for layer in self.layers]
        by_distance = encodings[0].by_distance
        is_for_this_clamp = by_distance and bool(memory.places) and memory.clamp_len == span.clamp_len
        if is_for_this_clamp and len(memory.places[0]) >= span.n_key:
            return memory
        if by_distance:
            longest = max(span.n_key, context.mem_len + context.ext_len + context.tgt_len)
            span = Span(longest - span.n_new, span.n_new, clamp_len=span.clamp_len)
        feats = encodings[0].prepare(span, like=like)
        return replace(memory, places=tuple(pos.project(feats) for pos in encodings), clamp_len=span.clamp_len)

    def use_attention(self, impl: str) -> None:
        """Compute relative attention in the way named, see `txl.ops.rel_attention`; the result is the same.

        Raises:
            UsageError: if it does not work on the model's device.
        """
        reason = refusal(impl, next(self.parameters()).device)
        require(reason is None, f"--attn_impl {impl}: {reason}")
        for layer in self.layers:
            layer.attn.kernel.impl = impl

    def attention_path(self, context: Context, *, needs_grad: bool) -> str:
        """The way in which relative attention over a full memory is computed."""
        impl = self.layers[0].attn.kernel.impl
        device, n_key = next(self.parameters()).device, context.mem_len + context.tgt_len
        return fastest(device, n_key=n_key, needs_grad=needs_grad) if impl == "auto" else impl

    def fresh_memory(self, batch_size: int) -> AnyMemory:
        """An empty memory for evaluation and generation, of the faster kind where the encoding allows it."""
        weight = self.layers[0].attn.k_net.weight
        if self.layers[0].attn.pos.places_hidden_states():
            return Memory.empty(len(self.layers), batch_size, self.config.d_model, like=weight)
        n_head, d_head = self.config.n_head, self.config.d_head
        return KeyValueMemory(tuple(KeyValue.empty(batch_size, n_head, d_head, like=weight) for _ in self.layers))

    def nll(
        self, input_BT: Tensor, target_BT: Tensor, memory: AnyMemory | None, context: Context
    ) -> tuple[Tensor, AnyMemory]:
        """Nats of each target, (B, T) in the order of the tokens, and the memory for the next segment.

        The input may be longer than the target (`ext_len`): the targets belong to its last positions. Ids that lie on
        the CPU spare a GPU the waiting, see `AdaptiveSoftmax.nll`.
        """
        hidden_BTD, memory = self(input_BT, memory, context)
        return self.softmax.nll(hidden_BTD[:, -target_BT.shape[1] :], target_BT), memory

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all words, (..., V), for hidden states (..., D)."""
        return self.softmax.log_prob(hidden)
