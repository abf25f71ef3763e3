"""A layer: attention over [memory, segment], then a feed-forward network."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txl.model.attention import Then
from txl.model.memory import Reading, State
from txl.model.span import Span
from txl.ops.cast import weights_cast
from txl.ops.dropout import Dropout, draw_seeds, seeded
from txl.ops.layer_rows import add_norm
from txl.ops.numbers import as_multiplied, on_gpu


class Layer(nn.Module):
    """Both parts with a residual connection and a norm: of the sum, as in the paper, or of a part's
    input (`pre_lnorm`). What it attends to before the segment is its memory's to say. A gate
    joins a part's input and output; None: their sum. `recompute`: activations are computed again.
    """

    def __init__(
        self,
        *,
        attn: nn.Module,
        memory: nn.Module,
        attn_norm: nn.Module,
        ff: nn.Module,
        ff_norm: nn.Module,
        pre_lnorm: bool,
        attn_gate: nn.Module | None = None,
        ff_gate: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.pre_lnorm = pre_lnorm
        self.recompute = False
        self.attn: Any = attn
        self.memory: Any = memory
        self.attn_drop = Dropout(dropout)
        self.attn_norm: Any = attn_norm
        self.ff: Any = ff
        self.ff_drop = Dropout(dropout)
        self.ff_norm: Any = ff_norm
        self.attn_gate: Any = attn_gate or torch.add
        self.ff_gate: Any = ff_gate or torch.add

    def forward(self, h_BTD: Tensor, state: State, reading: Reading) -> tuple[Tensor, State]:
        """The output for a segment, (B, T, D), and what the layer remembers for the next one."""
        return self.memory(self, h_BTD, state, reading)

    def attend(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span, then: Then | None = None
    ) -> Tensor:
        """The output of the layer over these remembered states, (B, T, D); memories call it."""
        return self.finish(x_BTD, self.attention(x_BTD, mem_BMD, feats, span, then))

    def attention(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span, then: Then | None = None
    ) -> Tensor:
        """The output of attention, before dropout and the residual connection."""
        return self.attn(self.normed(x_BTD), self.normed(mem_BMD), feats, span, then)

    def attended(self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span) -> Tensor:
        """The output of attention with dropout: what a residual connection adds."""
        return self.attn_drop(self.attention(x_BTD, mem_BMD, feats, span))

    def finish(self, x_BTD: Tensor, attention_BTD: Tensor) -> Tensor:
        """The output of the layer, given that of attention before dropout."""
        if self.pre_lnorm:
            x_BTD = self.attn_gate(x_BTD, self.attn_drop(attention_BTD))
            return self.ff_gate(x_BTD, self.feed_forward(x_BTD))
        x_BTD = add_norm(x_BTD, attention_BTD, self.attn_drop, self.attn_gate, self.attn_norm)
        return add_norm(x_BTD, self.ff(x_BTD), self.ff_drop, self.ff_gate, self.ff_norm)

    def feed_forward(self, x_BTD: Tensor) -> Tensor:
        """The output of the feed-forward network with dropout: what a residual connection adds."""
        return self.ff_drop(self.ff(self.ff_norm(x_BTD) if self.pre_lnorm else x_BTD))

    def normed(self, x_BLD: Tensor) -> Tensor:
        """What attention projects: states are remembered as they are, and normalised when read."""
        return self.attn_norm(x_BLD) if self.pre_lnorm else x_BLD

    def as_remembered(self, x_BTD: Tensor) -> Tensor:
        """What a memory keeps of states: on a GPU in the dtype in which attention multiplies them."""
        if self.pre_lnorm or not on_gpu(x_BTD):
            return x_BTD
        return as_multiplied(x_BTD)

    def keys_and_values(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Those of states that the layer read, (B, N, L, H) each, without positions."""
        return self.attn.keys_and_values(self.normed(x_BLD))


def run_layers(
    layers: Any, h_BTD: Tensor, states: tuple[State, ...], reading: Reading
) -> tuple[Tensor, tuple[State, ...]]:
    """One layer after the other: the output of the last, and the states for the next segment."""
    readings = reading.prepared().of_layers(layers)
    seeds = draw_seeds(len(layers), 3, like=h_BTD, is_training=layers[0].training)
    next_states = []
    for layer, state, reading, seeds_3 in zip(layers, states, readings, seeds, strict=True):
        if layer.recompute and torch.is_grad_enabled():
            h_BTD, state = checkpoint(
                _run, layer, h_BTD, state, reading, seeds_3, use_reentrant=False
            )
        else:
            h_BTD, state = _run(layer, h_BTD, state, reading, seeds_3)
        next_states.append(state)
    return h_BTD, tuple(next_states)


def _run(
    layer: Layer, h_BTD: Tensor, state: State, reading: Reading, seeds_3: Tensor | None
) -> tuple[Tensor, State]:
    drops = (layer.attn_drop, layer.ff.drop, layer.ff_drop)
    with weights_cast(layer, like=h_BTD), seeded(drops, seeds_3):
        return layer(h_BTD, state, reading)
