"""A model that reads with weights that do not change, as in evaluation and generation; also with its
weights in 16 bits: half the memory, and half of what a product of few rows reads.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from txl.config import Context
from txl.inference import one_token
from txl.inference.key_values import KeyValueMemory, form_of
from txl.model.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl.model.span import Span
from txl.model.streams import Memory, made_finite
from txl.model.transformer import Body, TransformerXL
from txl.ops.linear import Linear
from txl.ops.packed import CAN_PACK, PackedLinear

AnyMemory = Memory | KeyValueMemory


class Part(NamedTuple):
    """A part of a segment, read after other parts of it, which stand at the end of the memory.

    Attributes:
        n_kept: how many tokens the memory may hold meanwhile, in place of mem_len.
        n_full: tokens that stand together once the segment has been read, remembered ones included.
    """

    n_kept: int
    n_full: int


def fresh_memory(model: Body, batch_size: int) -> AnyMemory:
    """An empty memory for reading without gradients: keys and values where the position encoding
    and the memory allow it."""
    form = form_of(model.layers)
    if model.is_sharded:  # keys are projected between layers, whose weights are not there
        dtype = next(model.parameters()).dtype
        return model.empty_memory(batch_size, like=torch.empty(0, dtype=dtype, device=model.device))
    if form is None:
        return model.empty_memory(batch_size)
    like = model.layers[0].attn_norm.weight
    layers = tuple(form.empty(model.config, batch_size, like=like) for _ in model.layers)
    return KeyValueMemory(layers, form)


def projected(model: Body, memory: Memory) -> AnyMemory:
    """The memory with keys and values projected, where the encoding and its rule allow it."""
    empty = fresh_memory(model, memory.batch_size)
    if not isinstance(empty, KeyValueMemory):
        return memory
    of_layers = zip(model.layers, empty.layers, memory.states, strict=True)
    return empty.of([empty.form.of_hidden(*of_layer) for of_layer in of_layers])


def repeated(model: Body, memory: Memory, batch_size: int) -> AnyMemory:
    """A memory of one row, for each row of a batch, on the device of the model; see
    `projected`."""
    first_B = torch.zeros(batch_size, dtype=torch.int64, device=model.device)
    return projected(model, memory.to(model.device).rows(first_B))


def read(
    model: Body,
    h_BTD: Tensor,
    memory: AnyMemory,
    context: Context,
    since_BT: Tensor | None = None,
    *,
    part: Part | None = None,
) -> tuple[Tensor, AnyMemory]:
    """The last layer's hidden states of a segment of vectors, (B, T, D), and the memory for the
    next one; see `Body.read`.

    Args:
        part: these are a part of a segment; None: a whole one.
    """
    context, span = _placed(model, memory, context, h_BTD.shape[1], since_BT, part)
    if isinstance(memory, Memory):
        return model.read(h_BTD, memory, context, since_BT, span=None if part is None else span)
    return _read_key_values(model, h_BTD, memory, context, span)


def _placed(
    model: Body,
    memory: AnyMemory,
    context: Context,
    n_new: int,
    since_BT: Tensor | None,
    part: Part | None,
) -> tuple[Context, Span]:
    """The lengths that hold for these tokens, and where they stand. Raises `UsageError` if a part
    of the model does not support them.
    """
    model.require_serves(context, has_documents=since_BT is not None)
    span = Span.of(context, n_mem=memory.length, n_new=n_new, since_BT=since_BT)
    if part is None:
        return context, span
    return replace(context, mem_len=part.n_kept, ext_len=0), replace(span, n_full=part.n_full)


@torch.no_grad()
def _read_key_values(
    model: Body, h_BTD: Tensor, memory: KeyValueMemory, context: Context, span: Span
) -> tuple[Tensor, KeyValueMemory]:
    if memory.batch_size != len(h_BTD):
        raise ValueError(f"the memory holds {memory.batch_size} rows, the segment {len(h_BTD)}")
    h_BTD = model.drop(h_BTD)
    is_reversible = model.config.reversible
    if span.since_BT is None and one_token.serves(
        model.layers, h_BTD, memory, context, is_reversible=is_reversible
    ):
        h_BTD, memory = one_token.read(model.layers, h_BTD, memory, context, span.window)
        return model.drop(model.final_norm(h_BTD)), memory
    finite = None
    if span.since_BT is not None:
        span = replace(span, since_BT=span.since_BT.to(h_BTD.device, non_blocking=True))
        finite = made_finite(h_BTD, memory, span)
        h_BTD = finite.h_BTD
        memory = finite.memory
    memory = memory.with_feats(model.layers, context, n_new=span.n_new)
    h_BTD, memory = _through_layers(model, h_BTD, memory, context, span)
    h_BTD = model.final_norm(h_BTD)
    if finite is not None:
        h_BTD = finite.marked(h_BTD)
        memory = finite.marked_memory(memory)
    return model.drop(h_BTD), memory


def _through_layers(
    model: Body, h_BTD: Tensor, memory: KeyValueMemory, context: Context, span: Span
) -> tuple[Tensor, KeyValueMemory]:
    form = memory.form
    next_layers = []
    other_BTD = h_BTD  # the first of two streams in reversible layers
    feats = memory.feats_of(model.layers, span.n_new)
    for layer, remembered, of_layer in zip(model.layers, memory.layers, feats, strict=True):
        attended_BTD, kept = form.attended(layer, h_BTD, remembered, of_layer, span, context)
        if model.config.reversible:
            other_BTD = other_BTD + attended_BTD
            h_BTD = h_BTD + layer.feed_forward(other_BTD)
        else:
            h_BTD = layer.finish(h_BTD, attended_BTD)
        next_layers.append(kept)
    if model.config.reversible:
        h_BTD = (other_BTD + h_BTD) / 2
    return h_BTD, memory.of(next_layers)


class Frozen:
    """A language model that reads text without gradients. Its weights must not change.

    Args:
        before: what is remembered before the first segment of a text, one row; None: nothing.
    """

    def __init__(self, model: TransformerXL, before: Memory | None = None) -> None:
        self.model = model
        self.before = before

    def fresh_memory(self, batch_size: int) -> Any:
        """The memory before the first segment, see `fresh_memory`."""
        if self.before is not None:
            return repeated(self.model, self.before, batch_size)
        return fresh_memory(self.model, batch_size)

    @torch.no_grad()
    def __call__(
        self,
        token_BT: Tensor,
        memory: Any,
        context: Context,
        since_BT: Tensor | None = None,
        *,
        part: Part | None = None,
    ) -> tuple[Tensor, Any]:
        """See `TransformerXL.forward` and `read`."""
        if self.model.is_sharded:  # only its own `forward` gathers the weights of the embedding
            within, span = _placed(self.model, memory, context, token_BT.shape[1], since_BT, part)
            return self.model(
                token_BT, memory, within, since_BT, span=None if part is None else span
            )
        h_BTD = self.model.word_emb(token_BT)
        return read(self.model, h_BTD, memory, context, since_BT, part=part)

    def nll(
        self, input_BT: Tensor, target_BT: Tensor, memory: Any, context: Context
    ) -> tuple[Tensor, Any]:
        """See `TransformerXL.nll`."""
        nll_BT, _, after = self.nll_and_hidden(input_BT, target_BT, memory, context)
        return nll_BT, after

    @torch.no_grad()
    def nll_and_hidden(
        self, input_BT: Tensor, target_BT: Tensor, memory: Any, context: Context
    ) -> tuple[Tensor, Tensor, Any]:
        """`nll` with the hidden states (B, T, D) that the targets are predicted from."""
        hidden_BTD, after = self(input_BT, memory, context)
        hidden_BTD = hidden_BTD[:, -target_BT.shape[1] :]
        return self.model.softmax.nll(hidden_BTD, target_BT), hidden_BTD, after


def cast_weights(model: TransformerXL, dtype: torch.dtype) -> None:
    """Keep what products and lookups of words read in `dtype`, in place; LayerNorm and position
    encodings, whose products are few, stay as they are. float32 changes nothing.

    The model is for use under `autocast(device, dtype)`, where it gives what it gives with rounded
    weights in float32: sums, LayerNorm, softmax and losses are in float32. It takes no gradients.
    """
    if dtype == torch.float32:
        return
    model.requires_grad_(False)
    of_positions = set()
    for layer in model.layers:
        for part in layer.attn.pos.modules():
            of_positions.add(part)
    for module in set(model.modules()) - of_positions:
        if isinstance(module, AdaptiveEmbedding | AdaptiveSoftmax | nn.Linear):
            for parameter in module.parameters():
                parameter.data = parameter.data.to(dtype)


def pack_weights(model: TransformerXL) -> None:
    """On a CPU with instructions for bfloat16, put `PackedLinear` in place of linear layers whose
    weights are in it.
    """
    if (
        not CAN_PACK
        or model.device.type != "cpu"
        or model.softmax.tables[0].dtype != torch.bfloat16
    ):
        return
    pack_layers(model)


def pack_layers(model: TransformerXL) -> None:
    """Put `PackedLinear` in place of the model's linear layers; their weights must not change any
    more.
    """
    packed_of: dict[nn.Module, PackedLinear] = {}  # a layer may have two names
    for module in [*model.modules()]:
        for name, layer in module._modules.items():
            if not isinstance(layer, Linear):
                continue
            if layer not in packed_of:
                packed_of[layer] = PackedLinear(layer.weight, layer.bias)
            setattr(module, name, packed_of[layer])
