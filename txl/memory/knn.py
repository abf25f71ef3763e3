"""The memory of Memorizing Transformers: one layer looks up the nearest keys of what has left the
window.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import Context, ModelConfig, option, require
from txl.memory.beside import BESIDE, BesideAttention, beyond_window, same_document
from txl.model.memory import Fifo, State
from txl.model.rule import MemoryRule, Traits
from txl.model.span import Span
from txl.model.streams import grown
from txl.ops.heads import folded

_AT_A_TIME = 1 << 24
"""Similarities that are there at once."""


def _idle(context: Context) -> str:
    if context.lookup_len:
        return ""
    return (
        "--lookup_len 0: --memory knn looks nothing up; leave it out, or use --memory"
        f" {ModelConfig.memory}"
    )


class Knn(BesideAttention):
    """Hidden states as in `fifo`, and in one layer keys and values of up to lookup_len tokens
    before them.

        read    A = g A_memory + (1 - g) A_local          g = sigmoid(b), b a number per head
                A_memory = sum_{i in top k} p_i V_i       p = softmax over the k keys of exp(s) q.K_i, |q| = |K_i| = 1

    Source: Wu et al. 2022 (arXiv 2203.08913), sec. 3. Keys and values take no gradient once they
    are stored.
    Differs from the paper, which names no temperature for its normalised keys: exp(s) is learned,
    one per head, from 10 on; only what has left the window is looked up, so no token is seen twice.
    The search is exact.
    Differs from the authors' code (google-research/meliad, `normalize_keys`), which normalises
    queries and keys of local attention too, in every layer, with a learned scale for each head:
    here local attention is Transformer-XL's.
    Documents: keys of other documents are never found.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(BesideAttention.Settings):
        lookup_layer: int = option(
            -1, "the layer that looks up, from 0; from -1 down: from the last one"
        )
        lookup_k: int = option(32, "keys that are found", minimum=1, maximum=2**16)

        def require_fits(self, config: ModelConfig) -> None:
            at = self.lookup_layer
            n = config.n_layer
            there = f"the model has {n} layer(s); name one from 0 to {n - 1}, or from -{n} to -1"
            require(-n <= at < n, f"--lookup_layer {at}: {there}")

        def of_any_depth(self) -> Self:
            return replace(self, lookup_layer=-1)

        def enough(self, context: Context) -> Context:
            return replace(context, lookup_len=min(context.lookup_len, self.lookup_k))

    traits = Traits(BESIDE, looks_up=True, idle=_idle)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.k = config.settings(self.Settings).lookup_k
        self.scale_N = nn.Parameter(torch.empty(config.n_head))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.scale_N, math.log(10))

    @classmethod
    def of_layer(cls, config: ModelConfig, layer: int) -> type[MemoryRule]:
        if layer == config.settings(cls.Settings).lookup_layer % config.n_layer:
            return cls
        return Fifo

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        none_BN0H = like.new_empty(batch_size, config.n_key_head, 0, config.d_head)
        n_found_B = torch.zeros(batch_size, dtype=torch.int64, device=like.device)
        extra = {"keys": none_BN0H, "values": none_BN0H, "n_own": n_found_B}
        return State(like.new_empty(batch_size, 0, config.d_model), extra)

    @classmethod
    def full(cls, config: ModelConfig, context: Context, batch_size: int, *, like: Tensor) -> State:
        lengths = {"keys": context.lookup_len, "values": context.lookup_len}
        return grown(cls.empty(config, batch_size, like=like), context.mem_len, lengths)

    def beside(
        self, extra: Mapping[str, Tensor], span: Span, q_BNTH: Tensor, local_BNTH: Tensor
    ) -> Tensor:
        n_own_B1 = extra["n_own"][:, None]
        if span.first_BT is not None:  # none of another document
            n_own_B1 = n_own_B1 * (span.first_BT < 0)
        n_own_BT = n_own_B1.expand(-1, q_BNTH.shape[2])
        n_head, n_key_head = q_BNTH.shape[1], extra["keys"].shape[1]
        q_BNTH = F.normalize(q_BNTH.to(extra["keys"].dtype), dim=-1)
        q_BNTH = q_BNTH * self.scale_N.exp()[:, None, None]
        n_own_of_folded = n_own_BT.repeat(1, n_head // n_key_head)
        found = self._found(extra, n_own_of_folded, folded(q_BNTH, n_key_head))
        return self.joined(found.reshape(q_BNTH.shape), local_BNTH)

    def _found(self, extra: Mapping[str, Tensor], n_own_BT: Tensor, q_BNTH: Tensor) -> Tensor:
        """Attention to the nearest of the last `n_own` keys of each query, (B, N, T, H) with N heads
        of keys; 0 where there are none.
        """
        k_BNLH = extra["keys"]
        v_BNLH = extra["values"]
        n_key = k_BNLH.shape[2]
        if not n_key:
            return 0 * q_BNTH
        found = []
        n_query = max(1, _AT_A_TIME // (n_key * len(q_BNTH) * q_BNTH.shape[1]))
        for q_BNtH, own_Bt in zip(
            q_BNTH.split(n_query, dim=2), n_own_BT.split(n_query, dim=1), strict=True
        ):
            place_BNtK = _nearest(q_BNtH.detach(), k_BNLH, own_Bt, min(self.k, n_key))
            hidden_BNtK = place_BNtK < n_key - own_Bt[:, None, :, None]
            near_BNtKH, value_BNtKH = (_at(place_BNtK, x) for x in (k_BNLH, v_BNLH))
            logit_BNtK = (
                (q_BNtH[..., None, :] * near_BNtKH).sum(-1).masked_fill(hidden_BNtK, -torch.inf)
            )
            prob_BNtK = logit_BNtK.softmax(-1).masked_fill(hidden_BNtK.all(-1, keepdim=True), 0)
            found.append((prob_BNtK[..., None] * value_BNtKH).sum(-2))
        return torch.cat(found, dim=2)

    def kept(
        self, state: State, new_BTD: Tensor, span: Span, context: Context, layer: Any
    ) -> State:
        left_BLD, hidden_BMD = beyond_window(state, new_BTD, context)
        n_left = left_BLD.shape[1]
        n_own_B = state.extra["n_own"]
        if span.since_BT is None:
            n_own_B = n_own_B + n_left
        else:
            goes_on_B, stays_BL = same_document(span, n_left)
            n_own_B = n_own_B * goes_on_B + stays_BL.sum(1)
        with torch.no_grad():
            k_BNLH, v_BNLH = layer.keys_and_values(left_BLD)
        extra = {}
        for name, new_BNLH in (("keys", F.normalize(k_BNLH, dim=-1)), ("values", v_BNLH)):
            old_BNLH = state.extra[name]
            n_old = min(old_BNLH.shape[2], max(0, context.lookup_len - n_left))
            parts = (
                old_BNLH[:, :, old_BNLH.shape[2] - n_old :],
                new_BNLH[:, :, max(0, n_left - context.lookup_len) :],
            )
            extra[name] = torch.cat([part.to(old_BNLH.dtype) for part in parts], dim=2)
        return State(hidden_BMD, {**extra, "n_own": n_own_B.clamp(max=context.lookup_len)})


def _nearest(q_BNTH: Tensor, k_BNLH: Tensor, n_own_BT: Tensor, k: int) -> Tensor:
    """Indices of the k keys with the largest product among the last `n_own`; others where there are
    fewer.
    """
    product_BNTL = q_BNTH @ k_BNLH.mT
    place_L = torch.arange(k_BNLH.shape[2], device=k_BNLH.device)
    hidden_BTL = place_L < (k_BNLH.shape[2] - n_own_BT)[..., None]
    return product_BNTL.masked_fill(hidden_BTL[:, None], -torch.inf).topk(k, dim=-1).indices


def _at(place_BNTK: Tensor, x_BNLH: Tensor) -> Tensor:
    """The rows of x at these places, (B, N, T, K, H)."""
    flat_BNPH = x_BNLH.take_along_dim(place_BNTK.flatten(2)[..., None], dim=2)
    return flat_BNPH.unflatten(2, place_BNTK.shape[2:])
