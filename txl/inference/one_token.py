"""A token a stream at a time, for fixed weights: the paper's model in a third of the calls of
PyTorch.

Where one token is read, as in generation, a layer is some hundred small operations, most of which
take less time than calling them. Here they are some thirty: modules are not entered, what a product
needs is looked up once, keys and values are stored together, and the scale and the sum of both
terms of the logits are parts of one product. `txl.inference.frozen` comes here where `serves` says
so, with the same results up to rounding.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from txl.attention_rules.softmax import GroupedSoftmaxAttention
from txl.config import Context
from txl.inference.key_value import KeyValue
from txl.inference.key_values import KeyValueMemory
from txl.model.attention import Attention, RelativeSoftmax
from txl.model.layer import Layer
from txl.ops.linear import Linear, product_with
from txl.ops.norm import norm_with
from txl.ops.numbers import at_least_float32, product_dtype
from txl.ops.packed import PackedLinear


def serves(
    layers: Sequence[Layer],
    h_BTD: Tensor,
    memory: KeyValueMemory,
    context: Context,
    *,
    is_reversible: bool,
) -> bool:
    """One token a stream, read without gradients on a CPU by softmax attention with the terms of
    `txl.ops.rel_attention`, over a memory of keys and values only; weights in the dtype that they
    are multiplied in.
    """
    if h_BTD.shape[1] != 1 or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    layer = layers[0]
    attn = layers[0].attn
    is_plain = not (layer.training or context.ext_len)
    has_rule = isinstance(attn.rule, RelativeSoftmax) and attn.rule.impl in ("auto", "dense")
    is_cast = (
        attn.v_net.weight.dtype == product_dtype(h_BTD)
        and layer.attn_norm.weight.dtype == h_BTD.dtype
    )
    is_known = h_BTD.device.type == "cpu" and is_plain and has_rule and is_cast
    if not is_known or is_reversible or not memory.has_keys_only:
        return False
    return bool(memory.one_token) or all(
        _is_served(layer) and _is_as_built(layer) for layer in layers
    )


def _is_served(layer: Layer) -> bool:
    """`_Reader` computes what this kind of layer does."""
    attn = layer.attn
    is_plain = type(attn) is Attention and not isinstance(attn.rule, GroupedSoftmaxAttention)
    has_biases = attn.v_net.bias is not None
    is_plain = is_plain and type(layer) is Layer
    is_summed = layer.attn_gate is torch.add and isinstance(layer.attn_norm, nn.LayerNorm)
    return (
        attn.pos.is_relative()
        and is_plain
        and is_summed
        and not has_biases
        and type(attn.q_net) is type(attn.v_net)
    )


def _is_as_built(layer: Layer) -> bool:
    """Nobody has put another module in place of one, or a hook on it: then the modules are to be
    called.
    """
    attn = layer.attn
    ff = layer.ff
    kinds = []
    for net in (attn.q_net, attn.k_net, attn.v_net, attn.o_net, ff[0], ff[3]):
        kinds.append(type(net))
    has_hook = is_hooked(layer.modules())
    return set(kinds) <= {Linear, PackedLinear} and not has_hook


def is_hooked(modules: Iterable[nn.Module]) -> bool:
    """True if somebody has put a hook on a module, which is called only where the module is."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def read(
    layers: Sequence[Layer], h_BTD: Tensor, memory: KeyValueMemory, context: Context, window: int
) -> tuple[Tensor, KeyValueMemory]:
    """The hidden states of one token a stream, (B, 1, D), and the memory for the next; see
    `Body.read`.

    Args:
        window: see `Span`.
    """
    memory = memory.with_feats(layers, context, n_new=1)
    if not memory.one_token:
        scratch = _Scratch(at_least_float32(h_BTD.dtype))
        readers = []
        for layer, feats in zip(layers, memory.feats, strict=True):
            readers.append(_Reader(layer, feats, h_BTD, scratch))
        memory = replace(memory, one_token=tuple(readers))
    h_BD = h_BTD[:, 0]
    states = []
    with torch.autocast("cpu", enabled=False):
        for reader, before in zip(memory.one_token, memory.layers, strict=True):
            h_BD, seen = reader(h_BD, before, window)
            states.append(memory.form.cut(seen, seen.length, context.mem_len))
    return h_BD[:, None], memory.of(states)


class _Scratch:
    """Room for the keys and values of one layer in a wider dtype, for one layer after the other.

    New memory in each call takes three times as long to get as to fill.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._room = torch.empty(0, dtype=dtype)

    def widened(self, x: Tensor) -> Tensor:
        """The same numbers in the wider dtype, valid until the next call."""
        if x.dtype == self._room.dtype:
            return x
        n = x.numel()
        if self._room.numel() < n:
            self._room = self._room.new_empty(n + n // 4)  # a memory grows token by token
        return self._room[:n].view(x.shape).copy_(x)


class _Reader:
    """A layer, as it reads one token a stream after another: weights, and features that the layer
    has projected.
    """

    def __init__(self, layer: Layer, feats: Tensor, like_BTD: Tensor, scratch: _Scratch) -> None:
        attn = layer.attn
        ff = layer.ff
        n_row = len(like_BTD)
        self._n_head = attn.n_head
        self._scratch = scratch
        self._scale = attn.pos.scale
        self._pre_lnorm = layer.pre_lnorm
        self._dtype = product_dtype(like_BTD)
        self._qkv = []
        for net in _joined([attn.q_net, attn.k_net, attn.v_net]):
            self._qkv.append(product_with(net, n_row))
        self._o = product_with(attn.o_net, n_row)
        first, activation, _, last = ff
        self._first = product_with(first, n_row)
        self._activation: Callable[[Tensor], Tensor] = activation.forward
        self._last = product_with(last, n_row)
        self._attn_norm, self._ff_norm = norm_with(layer.attn_norm), norm_with(layer.ff_norm)
        r_RNH, u_NH, w_NH = attn.pos.relative(feats)
        wide = at_least_float32(r_RNH.dtype)
        self._r_NHR = r_RNH.to(wide).permute(1, 2, 0).contiguous()
        self._uw_21NH = torch.stack([u_NH, w_NH])[:, None].to(wide)

    def __call__(self, h_BD: Tensor, before: KeyValue, window: int) -> tuple[Tensor, KeyValue]:
        """The state after the layer, (B, D), and the keys and values that the token sees."""
        if self._pre_lnorm:
            attended_BD, seen = self._attended(self._attn_norm(h_BD), before, window)
            x_BD = h_BD + attended_BD
            return x_BD + self._feed_forward(self._ff_norm(x_BD)), seen
        attended_BD, seen = self._attended(h_BD, before, window)
        x_BD = self._attn_norm(h_BD + attended_BD)
        return self._ff_norm(x_BD + self._feed_forward(x_BD)), seen

    def _feed_forward(self, x_BD: Tensor) -> Tensor:
        return self._last(self._activation(self._first(x_BD.to(self._dtype))))

    def _attended(self, x_BD: Tensor, before: KeyValue, window: int) -> tuple[Tensor, KeyValue]:
        x_BD, B, N = x_BD.to(self._dtype), x_BD.shape[0], self._n_head
        parts = [product(x_BD) for product in self._qkv]
        qkv_3BNH = (
            (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
            .view(B, 3, N, -1)
            .transpose(0, 1)
        )
        seen = before.appended_both(qkv_3BNH[1:, :, :, None])
        if window <= 0:
            kv_2BNSH = seen.kv_2BNMH
        else:
            kv_2BNSH = seen.kv_2BNMH[:, :, :, -window:]
        q_2BNH = qkv_3BNH[0] + self._uw_21NH  # wide, as is all that follows
        k_PSH, v_PSH = kv_2BNSH.flatten(1, 2).unbind()
        prob_P1S = self._logits(q_2BNH, self._scratch.widened(k_PSH)).softmax(-1)
        out_P1H = torch.bmm(prob_P1S, self._scratch.widened(v_PSH))
        return self._o(out_P1H.view(B, -1).to(self._dtype)), seen

    def _logits(self, q_2BNH: Tensor, k_PSH: Tensor) -> Tensor:
        """scale * (x.k + y.r), (B N, 1, S), for queries [x, y], which have the biases."""
        P, S, H = k_PSH.shape
        x_BNH, y_BNH = q_2BNH.unbind()
        place_NBS = torch.bmm(y_BNH.transpose(0, 1), self._r_NHR[:, :, -S:])  # r once for all rows
        n_far = S - place_NBS.shape[2]  # distances beyond clamp_len are like it
        if n_far > 0:
            place_NBS = torch.cat([place_NBS[:, :, :1].expand(-1, -1, n_far), place_NBS], dim=2)
        place_P1S = place_NBS.transpose(0, 1).reshape(P, 1, S)
        return torch.baddbmm(
            place_P1S, x_BNH.view(P, 1, H), k_PSH.mT, beta=self._scale, alpha=self._scale
        )


def _joined(nets: list[nn.Linear]) -> list[nn.Linear]:
    """Layers whose outputs, side by side, are those of `nets`. Packed ones become one, a copy: a
    product of few rows takes little longer than to call it.
    """
    weights = []
    for net in nets:
        if isinstance(net, PackedLinear):
            weights.append(net.plain_weight())
    if len(weights) < len(nets):
        return nets
    return [PackedLinear(torch.cat(weights))]
