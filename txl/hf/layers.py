"""A layer of TransfoXL: modules with the published names, each of which is called; linear layers of
which a part of the outputs is needed, and tables with another number of rows.
"""

from typing import TypeGuard, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers.modeling_layers import (  # pyright: ignore[reportMissingImports]
    GradientCheckpointingLayer,
)

from txl.hf.config import TransfoXLConfig
from txl.memory import Span
from txl.ops.dropout import Dropout
from txl.ops.numbers import widened
from txl.ops.operator import is_traced
from txl.ops.rel_attention import rel_attention


class RelativeAttention(nn.Module):
    """Attention over [memory, segment] with relative positions (Dai et al. 2019, sec. 3.3),
    residual connection and LayerNorm. `r_w_bias` is the paper's u, `r_r_bias` its v.

    Args:
        biases: u and v, where all layers share them.
    """

    def __init__(
        self, config: TransfoXLConfig, biases: tuple[nn.Parameter, nn.Parameter] | None
    ) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.scale = config.d_head**-0.5
        self.pre_lnorm = config.pre_lnorm
        self.inner = config.n_head * config.d_head
        self.qkv_net = nn.Linear(config.d_model, 3 * self.inner, bias=False)
        self.drop = Dropout(config.dropout)
        self.dropatt = Dropout(config.dropatt)
        self.o_net = nn.Linear(self.inner, config.d_model, bias=False)
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.r_w_bias, self.r_r_bias = biases or new_biases(config)
        self.r_net = nn.Linear(config.d_model, self.inner, bias=False)

    def forward(
        self,
        x_BTD: Tensor,
        mem_BMD: Tensor,
        feats_SD: Tensor,
        span: Span,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The states after attention (B, T, D) and, if asked for, the probabilities (B, N, T, S).

        Args:
            feats_SD: the encoding of the distances S - 1, ..., 0.
        """
        both_BSD = torch.cat([mem_BMD, x_BTD], dim=1)
        if self.pre_lnorm:
            both_BSD = self.layer_norm(both_BSD)
        q_BNTH, k_BNSH, v_BNSH = self._queries_keys_and_values(both_BSD, x_BTD.shape[1])
        r_SNH = self.r_net(feats_SD).unflatten(-1, (self.n_head, -1))
        prob_BNTS = None
        if output_attentions or is_traced() or not is_plain(self.dropatt, Dropout):
            prob_BNTS = self.dropatt(self._probabilities(q_BNTH, k_BNSH, r_SNH, span))
            attended_BNTH = prob_BNTS.to(v_BNSH.dtype) @ v_BNSH
        else:
            attended_BNTH = rel_attention(
                q_BNTH,
                k_BNSH,
                v_BNSH,
                r_SNH,
                self.r_w_bias,
                self.r_r_bias,
                scale=self.scale,
                window=span.window,
                first_BT=span.first_BT,
                dropout=self.dropatt.p if self.training else 0.0,
                # with dropout, clamped distances differ
                clamp_len=-1 if self.training else span.clamp_len,
            )
        out_BTD = x_BTD + self.drop(self.o_net(attended_BNTH.transpose(1, 2).flatten(2)))
        if not self.pre_lnorm:
            out_BTD = self.layer_norm(out_BTD)
        return out_BTD, prob_BNTS if output_attentions else None

    def _queries_keys_and_values(self, both_BSD: Tensor, n_new: int) -> list[Tensor]:
        """(B, N, T, H), (B, N, S, H), (B, N, S, H). Queries of the memory are not needed, nor
        computed unless something else has taken the layer's place or watches it.
        """
        if is_plain(self.qkv_net, nn.Linear):
            q_BTE = part_of_linear(self.qkv_net, both_BSD[:, -n_new:], 0, self.inner)
            k_BSE, v_BSE = part_of_linear(self.qkv_net, both_BSD, self.inner, 3 * self.inner).chunk(
                2, dim=-1
            )
        else:
            q_BSE, k_BSE, v_BSE = self.qkv_net(both_BSD).chunk(3, dim=-1)
            q_BTE = q_BSE[:, -n_new:]
        heads = []
        for x_BLE in (q_BTE, k_BSE, v_BSE):
            heads.append(x_BLE.unflatten(-1, (self.n_head, -1)).transpose(1, 2))
        return heads

    def _probabilities(self, q_BNTH: Tensor, k_BNSH: Tensor, r_SNH: Tensor, span: Span) -> Tensor:
        """By the definition of `txl.ops.rel_attention`, (B, N, T, S), in operators that take any
        size in a graph.
        """
        content_BNTS = (q_BNTH + self.r_w_bias[:, None]) @ k_BNSH.mT
        by_distance_BNTS = (q_BNTH + self.r_r_bias[:, None]) @ r_SNH.permute(1, 2, 0)
        distance_TS = Span(span.n_mem, span.n_new).distances_TS(q_BNTH.device)
        row_TS = span.n_key - 1 - distance_TS.clamp(min=0)
        place_BNTS = by_distance_BNTS.gather(-1, row_TS.expand_as(content_BNTS))
        logit_BNTS = widened(self.scale * (content_BNTS + place_BNTS))
        return logit_BNTS.masked_fill(~span.mask(q_BNTH.device), -torch.inf).softmax(-1)


def new_biases(config: TransfoXLConfig) -> tuple[nn.Parameter, nn.Parameter]:
    """u and v, (N, H), not drawn yet."""
    size = config.n_head, config.d_head
    return nn.Parameter(torch.empty(size)), nn.Parameter(torch.empty(size))


class FeedForward(nn.Module):
    """The feed-forward network, residual connection and LayerNorm."""

    def __init__(self, config: TransfoXLConfig) -> None:
        super().__init__()
        self.pre_lnorm = config.pre_lnorm
        self.CoreNet = nn.Sequential(
            nn.Linear(config.d_model, config.d_inner),
            nn.ReLU(),
            Dropout(config.dropout),
            nn.Linear(config.d_inner, config.d_model),
            Dropout(config.dropout),
        )
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        if self.pre_lnorm:
            return x_BTD + self.CoreNet(self.layer_norm(x_BTD))
        return self.layer_norm(x_BTD + self.CoreNet(x_BTD))


class TransfoXLLayer(GradientCheckpointingLayer):
    """Attention, then a feed-forward network; transformers recomputes it in the backward pass if
    asked to.
    """

    def __init__(
        self, config: TransfoXLConfig, biases: tuple[nn.Parameter, nn.Parameter] | None
    ) -> None:
        super().__init__()
        self.dec_attn = RelativeAttention(config, biases)
        self.pos_ff = FeedForward(config)

    def forward(
        self,
        x_BTD: Tensor,
        mem_BMD: Tensor,
        feats_SD: Tensor,
        span: Span,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """See `RelativeAttention.forward`."""
        attended_BTD, prob_BNTS = self.dec_attn(x_BTD, mem_BMD, feats_SD, span, output_attentions)
        return self.pos_ff(attended_BTD), prob_BNTS


M = TypeVar("M", bound=nn.Module)


def is_plain(layer: nn.Module, kind: type[M]) -> TypeGuard[M]:
    """True if a call of a layer does nothing but what its class does: no adapter, quantised or
    pruned layer has taken its place, its weights are no quantised or sharded tensors, and nothing
    watches it. Only then may its weights be used without a call.
    """
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    is_watched = any(hooks) or torch_module._has_any_global_hook() or "forward" in vars(layer)
    if type(layer) is not kind or is_watched:
        return False
    return not any(map(is_traceable_wrapper_subclass, layer.parameters(recurse=False)))


def part_of_linear(layer: nn.Module, x: Tensor, first: int, last: int) -> Tensor:
    """Outputs `first` to `last` (excluded) of a linear layer, (..., last - first)."""
    if not is_plain(layer, nn.Linear) or last - first == layer.out_features:
        return layer(x)[..., first:last]
    bias = None if layer.bias is None else layer.bias[first:last]
    return F.linear(x, layer.weight[first:last], bias)


def resized(table: Tensor, n_row: int, std: float | None) -> nn.Parameter:
    """The first rows of a table; new ones are the mean of the old, or drawn with the standard
    deviation `std`.
    """
    kept = table.detach()[:n_row]
    size = n_row - len(kept), *table.shape[1:]
    if std is None:
        new = table.detach().mean(0).expand(size)
    else:
        new = torch.randn(size).to(table) * std
    return nn.Parameter(torch.cat([kept, new]), requires_grad=table.requires_grad)
