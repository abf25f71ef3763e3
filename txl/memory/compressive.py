"""The memory of the Compressive Transformer: what leaves the first memory is compressed into a
second one.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from txl.config import Context, ModelConfig, PartSettings, option
from txl.memory.beside import BESIDE
from txl.model.memory import Reading, State
from txl.model.rule import MemoryRule, Traits
from txl.model.span import Span
from txl.model.streams import grown
from txl.ops.heads import per_query_head


def _idle(context: Context) -> str:
    if context.n_compressed:
        return ""
    if context.compressed_len is None:
        return "--memory compressive: --mem_len and --compressed_len are 0; give --mem_len, or both"
    other = f"leave it out, or use --memory {ModelConfig.memory}"
    return f"--compressed_len 0: --memory compressive keeps no compressed state; {other}"


class Compressive(MemoryRule):
    """Hidden states, and compressed ones of what stood before them: keys are [compressed, memory,
    segment].

        m           = SG([memory, h])                         M = mem_len
        old         = m_(:ck),  k = max(0, floor((|m| - M) / c))    c = compress_rate
        memory'     = m_(ck:)
        compressed' = SG([compressed, f(old)])_(-C:)          C = compressed_len

    f of a block of c states, by `compress`:

        conv        W [m_1; ...; m_c] + b
        mean, max   over the block
        most_used   the state with the most attention so far

    The loss that trains f, by `compress_loss`:

        attention        mean |attn(h, old) - attn(h, f(old))|^2
                         attn(h, m) = softmax(H^(-1/2) hQ (mK)^T) mV
        reconstruction   mean |old - g(f(old))|^2             g a matrix D x cD with bias

    Source: Rae et al. 2020 (arXiv 1911.05507), sec. 3, algorithms 1 and 2 and the auto-encoding
    loss. Gradients are stopped as there: the loss changes W, b and g only (h, old, Q, K, V take
    none), the nats change neither of them. Attention in the loss and for most_used is by content,
    without positions, per head.
    Differs from the paper: c states are compressed as soon as there are so many beyond M, whatever
    the length of a segment, so that the first memory has M to M + c - 1 states and a text read
    token by token is compressed at the same places; the loss is a mean of squares, not a norm, and
    so the same on any number of rows and processes, and a sum over layers, and of softmax attention
    with every attention rule; it does not tell documents apart; most_used keeps one state of each
    c; there is no dilated convolution.
    Documents: a compressed state is hidden where one of its tokens belongs to another document.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(PartSettings):
        compress_rate: int = option(
            4, "states that are compressed into one", minimum=2, maximum=2**16
        )
        compression: Literal["conv", "mean", "max", "most_used"] = option(
            "conv",
            "how; conv: a convolution that has a loss of its own; most_used: the one with the most"
            " attention stays",
        )
        compress_loss: Literal["attention", "reconstruction"] = option(
            "attention",
            "what the convolution learns to keep: what the layer attends to, or the states"
            " themselves",
            when=("compression", "conv"),
        )

    traits = Traits(BESIDE, compresses=True, idle=_idle)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        settings = config.settings(self.Settings)
        self.rate = settings.compress_rate
        self.compression = settings.compression
        self.scale = config.d_head**-0.5
        self.conv: nn.Linear | None = None
        self.decoder: nn.Linear | None = None
        wide = self.rate * config.d_model
        if self.compression == "conv":
            self.conv = nn.Linear(wide, config.d_model)
            if settings.compress_loss == "reconstruction":
                self.decoder = nn.Linear(config.d_model, wide)

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        none_B0D = like.new_empty(batch_size, 0, config.d_model)
        extra = {"compressed": none_B0D}
        if config.settings(cls.Settings).compression == "most_used":
            extra["used"] = none_B0D[..., 0]
        return State(none_B0D, extra)

    @classmethod
    def full(cls, config: ModelConfig, context: Context, batch_size: int, *, like: Tensor) -> State:
        rate = config.settings(cls.Settings).compress_rate
        n_plain = context.mem_len + rate - 1  # before a block of them is compressed
        lengths = {"compressed": context.n_compressed, "hidden": n_plain, "used": n_plain}
        return grown(cls.empty(config, batch_size, like=like), context.mem_len, lengths)

    @classmethod
    def n_kept(cls, state: State) -> int:
        return state.extra["compressed"].shape[1] + state.hidden_BMD.shape[1]

    def forward(
        self, layer: Any, h_BTD: Tensor, state: State, reading: Reading
    ) -> tuple[Tensor, State]:
        mem_BMD = torch.cat([state.extra["compressed"], state.hidden_BMD], dim=1)
        span = self.in_keys(reading.span, state.hidden_BMD.shape[1])
        out_BTD = layer.attend(h_BTD, mem_BMD, reading.feats, span)
        return out_BTD, self.kept(state, h_BTD, span, reading.context, layer)

    def in_keys(self, span: Span, n_plain: int) -> Span:
        """The span in which tokens of a document before a query are counted in keys: the n_plain
        last of those remembered are keys of their own."""
        if span.since_BT is None:
            return span
        since_BT = span.since_BT
        plain_T = n_plain + torch.arange(span.n_new, device=since_BT.device)
        n_compressed_BT = (since_BT - plain_T).clamp(min=0) // self.rate
        return replace(span, since_BT=torch.minimum(since_BT, plain_T) + n_compressed_BT)

    def kept(
        self, state: State, new_BTD: Tensor, span: Span, context: Context, layer: Any
    ) -> State:
        """The state after a segment that the layer read as `new`."""
        before = state.hidden_BMD
        n_new = max(0, new_BTD.shape[1] - context.ext_len)
        plain_BMD = torch.cat([before, new_BTD.detach()[:, :n_new]], dim=1)
        n_block = max(0, (plain_BMD.shape[1] - context.mem_len) // self.rate)
        n_old = n_block * self.rate
        extra = {}
        if "used" in state.extra:
            n_older = state.extra["compressed"].shape[1]
            sees = span.mask(before.device)[..., n_older : n_older + before.shape[1]]
            prob_BNTM, _ = _attention(layer, new_BTD, before, self.scale, sees)
            used_BM = F.pad(state.extra["used"] + prob_BNTM.mean((1, 2)), (0, n_new))
            extra["used"], compressed_BKD = (
                used_BM[:, n_old:],
                _most_used(plain_BMD, used_BM, n_block, self.rate),
            )
        else:
            compressed_BKD = self.compressed(plain_BMD[:, :n_old])
        loss = None
        if self.conv is not None and self.training and torch.is_grad_enabled():
            loss = self.loss(layer, new_BTD.detach(), plain_BMD[:, :n_old], compressed_BKD)
        older_BCD = torch.cat(
            [state.extra["compressed"], compressed_BKD.detach().to(before.dtype)], dim=1
        )
        begin = max(0, older_BCD.shape[1] - context.n_compressed)
        return State(
            plain_BMD[:, n_old:].clone(), extra | {"compressed": older_BCD[:, begin:].clone()}, loss
        )

    def compressed(self, old_BLD: Tensor) -> Tensor:
        """f, (B, L / c, D)."""
        if self.conv is not None:
            if old_BLD.shape[1]:
                return self.conv(old_BLD.unflatten(1, (-1, self.rate)).flatten(2))
            return old_BLD
        block_BKCD = old_BLD.reshape(
            len(old_BLD), old_BLD.shape[1] // self.rate, self.rate, old_BLD.shape[2]
        )
        if self.compression == "mean":
            return block_BKCD.mean(2)
        return block_BKCD.amax(2)

    def loss(self, layer: Any, h_BTD: Tensor, old_BLD: Tensor, compressed_BKD: Tensor) -> Tensor:
        """What the compression adds to the loss; zero, but with a gradient, where nothing was
        compressed.
        """
        if not old_BLD.shape[1]:
            return sum((0 * p.sum() for p in self.parameters()), h_BTD.new_zeros(()))
        if self.decoder is not None:
            return (old_BLD - self.decoder(compressed_BKD).reshape(old_BLD.shape)).square().mean()
        outs = []
        for memory in (old_BLD, compressed_BKD):
            prob_BNTM, v_BNMH = _attention(layer, h_BTD, memory, self.scale)
            outs.append(prob_BNTM @ v_BNMH)
        return (outs[0] - outs[1]).square().mean()


def _attention(
    layer: Any, h_BTD: Tensor, mem_BMD: Tensor, scale: float, sees: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention by content of a segment to what it sees of a memory, and its values, per head; the
    layer's weights take no gradient.
    """
    attn = layer.attn
    if layer.pre_lnorm:
        h_BTD = _with_fixed_weights(layer.attn_norm, h_BTD)
        mem_BMD = _with_fixed_weights(layer.attn_norm, mem_BMD)
    q_BNTH = attn.heads(_with_fixed_weights(attn.q_net, h_BTD.detach()))
    k_BKMH = attn.heads(_with_fixed_weights(attn.k_net, mem_BMD))
    v_BKMH = attn.heads(_with_fixed_weights(attn.v_net, mem_BMD))
    k_BNMH, v_BNMH = per_query_head(q_BNTH.shape[1], k_BKMH, v_BKMH)
    logit_BNTM = scale * q_BNTH @ k_BNMH.mT
    if sees is None:
        return logit_BNTM.softmax(-1), v_BNMH
    return logit_BNTM.masked_fill(~sees, -torch.inf).softmax(-1).nan_to_num(0.0), v_BNMH


def _with_fixed_weights(module: nn.Module, x: Tensor) -> Tensor:
    """What a module makes of x, with a gradient for x only."""
    fixed = {name: weight.detach() for name, weight in module.named_parameters()}
    return functional_call(module, fixed, (x,))


def _most_used(plain_BMD: Tensor, used_BM: Tensor, n_block: int, rate: int) -> Tensor:
    """Of each of the first blocks the state with the highest use, (B, n_block, D)."""
    n_old = n_block * rate
    if not n_block:
        return plain_BMD[:, :0]
    place_BK = used_BM[:, :n_old].unflatten(1, (n_block, rate)).argmax(2)
    place_BK = place_BK + rate * torch.arange(n_block, device=place_BK.device)
    return plain_BMD.take_along_dim(place_BK[..., None], dim=1)
