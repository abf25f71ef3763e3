"""A token a row at a time, for fixed weights and keys that were turned once: a decoder in half of the
calls of PyTorch.

As in `txl.inference.one_token`, a layer's small operations take less time than calling them: modules
are not entered, what a product needs is looked up once, and queries and keys are turned together.
`txl.inference.turned` comes here where `serves` says so, with the same results up to rounding.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.inference.one_token import is_hooked
from txl.model.feed_forward import FeedForward
from txl.model.layer import Layer
from txl.model.projections import NormedHeads
from txl.ops.linear import Linear, product_with
from txl.ops.norm import norm_with
from txl.ops.numbers import product_dtype
from txl.ops.packed import PackedLinear


class Turn(NamedTuple):
    """Of one place, for all channels of a head, (H,) each: [cos, cos] and [-sin, sin]."""

    cos_H: Tensor
    sin_H: Tensor

    @classmethod
    def of(cls, feats_12C: Tensor) -> "Turn":
        """From its cosines and sines, see `Rotary.turns`."""
        cos_C, sin_C = feats_12C[0]
        return cls(torch.cat([cos_C, cos_C]), torch.cat([-sin_C, sin_C]))


def serves(layers: Sequence[Layer], h_BTD: Tensor) -> bool:
    """One token a row, read without gradients on a CPU; weights in the dtype that they are
    multiplied in, and layers as they were built: modules that somebody put in are to be called.
    """
    is_one = h_BTD.shape[1] == 1 and h_BTD.device.type == "cpu"
    is_wide = h_BTD.dtype.itemsize >= 4  # norms of 16 bits are the modules' own
    if not (is_one and is_wide) or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    dtype = product_dtype(h_BTD)
    return all(_is_served(layer, h_BTD.dtype, dtype) for layer in layers)


def _is_served(layer: Any, dtype: torch.dtype, dtype_of_products: torch.dtype) -> bool:
    """`TokenLayer` computes what this kind of layer does."""
    attn = layer.attn
    ff = layer.ff
    is_summed = layer.attn_gate is torch.add and layer.ff_gate is torch.add
    if type(layer) is not Layer or type(ff) is not FeedForward or not is_summed:
        return False
    nets = {type(attn.v_net), type(attn.o_net), type(ff[0]), type(ff[3])}
    is_cast = attn.v_net.weight.dtype == dtype_of_products and layer.attn_norm.weight.dtype == dtype
    nets |= {type(attn.q_net), type(attn.k_net)} - {NormedHeads}
    has_norms = all(
        isinstance(norm, nn.LayerNorm | nn.RMSNorm) for norm in (layer.attn_norm, layer.ff_norm)
    )
    is_whole = 2 * len(attn.pos.freq_C) == attn.d_head
    has_hook = is_hooked(layer.modules())
    return nets <= {Linear, PackedLinear} and is_cast and has_norms and is_whole and not has_hook


class TokenLayer:
    """A layer, as it reads one token a row after another.

    Args:
        dtype: of products.
        n_row: rows of each call.
    """

    def __init__(self, layer: Any, dtype: torch.dtype, n_row: int) -> None:
        attn = layer.attn
        first, activation, _, last = layer.ff
        self._dtype = dtype
        self._scale = attn.pos.scale
        self._pre_lnorm = layer.pre_lnorm
        self._q, self._k, self._v, self._o = (
            _product_of(net, n_row) for net in (attn.q_net, attn.k_net, attn.v_net, attn.o_net)
        )
        self._first = _product_of(first, n_row)
        self._activation: Callable[[Tensor], Tensor] = activation.forward
        self._last = _product_of(last, n_row)
        self._attn_norm = norm_with(layer.attn_norm)
        self._ff_norm = norm_with(layer.ff_norm)

    def __call__(self, h_BD: Tensor, turn: Turn, k_BKSH: Tensor, v_BKSH: Tensor) -> Tensor:
        """The state after the layer, (B, D), of a token that sees these keys and values. The last
        ones are its own: they are written there.
        """
        if self._pre_lnorm:
            h_BD = h_BD + self._attended(self._attn_norm(h_BD), turn, k_BKSH, v_BKSH)
            return h_BD + self._feed_forward(self._ff_norm(h_BD))
        h_BD = self._attn_norm(h_BD + self._attended(h_BD, turn, k_BKSH, v_BKSH))
        return self._ff_norm(h_BD + self._feed_forward(h_BD))

    def _feed_forward(self, x_BD: Tensor) -> Tensor:
        return self._last(self._activation(self._first(x_BD.to(self._dtype))))

    def _attended(self, x_BD: Tensor, turn: Turn, k_BKSH: Tensor, v_BKSH: Tensor) -> Tensor:
        B, K, _, H = k_BKSH.shape
        x_BD = x_BD.to(self._dtype)
        qk_BMH = torch.cat([self._q(x_BD), self._k(x_BD)], dim=1).view(B, -1, H)
        other_BMH = qk_BMH.unflatten(2, (2, H // 2)).flip(2).flatten(2)
        qk_BMH = (qk_BMH * turn.cos_H + other_BMH * turn.sin_H).to(self._dtype)
        k_BKSH[:, :, -1] = qk_BMH[:, -K:]
        v_BKSH[:, :, -1] = self._v(x_BD).view(B, K, H)
        q_BKGH = qk_BMH[:, :-K].unflatten(1, (K, -1))
        out_BKGH = over_all(q_BKGH, k_BKSH, v_BKSH, self._scale)
        return self._o(out_BKGH.reshape(B, -1))


def over_all(q_BKLH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, scale: float) -> Tensor:
    """Attention of a few queries on a CPU to all keys, (B, K, L, H): two products, which take 0.8 of
    the time of PyTorch's operator over 8,200 keys (AMD EPYC, AVX2, two threads). In 16 bits the
    operator keeps logits in float32.
    """
    if q_BKLH.dtype.itemsize == 2:
        return F.scaled_dot_product_attention(q_BKLH, k_BKSH, v_BKSH, scale=scale)
    return ((q_BKLH * scale) @ k_BKSH.mT).softmax(-1) @ v_BKSH


def _product_of(net: Any, n_row: int) -> Callable[[Tensor], Tensor]:
    """What a projection computes, (B, I) to (B, O)."""
    if isinstance(net, NormedHeads):
        return net
    return product_with(net, n_row)
