"""The memory of Expire-Span: each state says by itself how long it stays."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import SIZE, Context, ModelConfig, PartSettings, option
from txl.memory.beside import BESIDE
from txl.model.memory import Reading, State
from txl.model.rule import MemoryRule, Traits
from txl.model.span import Span
from txl.model.streams import grown
from txl.ops.numbers import widened

_FIRST_SHARE = 0.1
"""Of max_span: the span of every state in a new model."""


def _idle(context: Context) -> str:
    if context.mem_len:
        return ""
    return (
        "--mem_len 0: --memory expire_span keeps at most so many states; give --mem_len, such"
        " as 256"
    )


class ExpireSpan(MemoryRule):
    """The hidden states whose learned span has not ended, up to the mem_len last of them.

        e_i   = L sigmoid(w.x_i + b)                     L = max_span
        m_ti  = max(0, min(1, 1 + (e_i - (t - i)) / R))  R = span_ramp, t - i tokens passed since
        a'_ti = m_ti a_ti / sum_j m_tj a_tj              a the probabilities of all heads of the layer
        loss  = alpha / T sum_i e_i                      alpha = span_loss, over a segment's T tokens

    x_i is the hidden state, or what attention reads of it (`spans_of`), the same without pre_lnorm.

    Source: Sukhbaatar et al. 2021 (arXiv 2105.06548), sec. 4. Remembered states are detached, w and
    b take the gradient of every m_ti between 0 and 1. A state is dropped after the segment in which
    its m reaches 0, for good.
    Rows: each keeps states of its own. The tensors are as long as the row that keeps most; in the
    others zeros with age 0 stand first, which nobody attends to. So a batch takes as much as its
    longest row.
    Differs from the paper: the survivors stand at consecutive positions before the segment, for any
    encoding of distances, where the authors place the last block only; b begins so that spans are a
    tenth of L (as in their code), and activations are not divided before the sigmoid; the loss
    counts all tokens of the segment (their code: those on the ramp); no memory is cut at random in
    training.
    Documents: a state is hidden in another document, by the tokens passed since, and stays until
    its span ends.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(PartSettings):
        max_span: int = option(
            1024, "tokens that a state can stay at most, before a ramp down to nothing", **SIZE
        )
        span_ramp: int = option(64, "tokens of that ramp", **SIZE)
        span_loss: float = option(
            1e-6, "what a token of the mean span adds to the loss, per layer", minimum=0
        )
        spans_of: Literal["hidden", "normed"] = option(
            "hidden",
            "what spans follow from: hidden states, or their norms as attention reads them with"
            " --pre_lnorm (the default for weights that were trained without)",
        )

    traits = Traits(
        BESIDE | {"attention": ("softmax",), "attn_impl": ("auto",)},
        keeps_places=False,
        weighs_keys=True,
        idle=_idle,
    )
    when_added: ClassVar[Mapping[str, Any]] = {"spans_of": "normed"}

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        settings = config.settings(self.Settings)
        self.limit = settings.max_span
        self.ramp = settings.span_ramp
        self.alpha = settings.span_loss
        self.spans_of = settings.spans_of
        self.w_D, self.b = nn.Parameter(torch.empty(config.d_model)), nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise what is not drawn as other weights are."""
        nn.init.zeros_(self.w_D)
        nn.init.constant_(self.b, math.log(_FIRST_SHARE / (1 - _FIRST_SHARE)))

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        none_B0D = like.new_empty(batch_size, 0, config.d_model)
        return State(none_B0D, {"age": none_B0D[..., 0].long()})

    @classmethod
    def full(cls, config: ModelConfig, context: Context, batch_size: int, *, like: Tensor) -> State:
        return grown(cls.empty(config, batch_size, like=like), context.mem_len)

    def spans(self, layer: Any, x_BSD: Tensor) -> Tensor:
        """e of hidden states, (B, S), in float32 or wider: half precision does not tell long
        spans from each other.
        """
        if self.spans_of == "normed":
            x_BSD = layer.normed(x_BSD)
        e_BS = self.limit * ((x_BSD * self.w_D).sum(-1) + self.b).sigmoid()
        return widened(e_BS)

    def forward(
        self, layer: Any, h_BTD: Tensor, state: State, reading: Reading
    ) -> tuple[Tensor, State]:
        """As in other rules, over what this layer keeps: each has survivors of its own."""
        begin = self.first_held(state.extra["age"])
        state = State(state.hidden_BMD[:, begin:], {"age": state.extra["age"][:, begin:]})
        span = self.placed(reading.span, state.extra["age"])
        feats = layer.attn.pos.prepare(span, like=reading.like)
        of_memory = self.spans(layer, state.hidden_BMD)
        span_BS = torch.cat([of_memory, self.spans(layer, h_BTD)], dim=1)
        span = self.weighed(span, state.extra["age"], span_BS)
        out_BTD = layer.attend(h_BTD, state.hidden_BMD, feats, span)
        return out_BTD, self.kept(state, h_BTD, span_BS, reading.context)

    def first_held(self, age_BM: Tensor) -> int:
        """Before this place no row holds a state: what joined rows were filled with falls away."""
        if age_BM.numel():
            return age_BM.shape[1] - int((age_BM > 0).sum(1).max())
        return 0

    def placed(self, span: Span, age_BM: Tensor) -> Span:
        """The span of the segment over the states of these ages."""
        return replace(span, n_mem=age_BM.shape[1], since_BT=self._since(age_BM, span.since_BT))

    def _since(self, age_BM: Tensor, since_BT: Tensor | None) -> Tensor | None:
        """Of the tokens of a document before each query those that are there."""
        if since_BT is None:
            return None
        t_T = torch.arange(since_BT.shape[1], device=since_BT.device)
        remembered_BTM = (age_BM > 0)[:, None] & (age_BM[:, None] <= (since_BT - t_T)[..., None])
        return torch.minimum(since_BT, t_T) + remembered_BTM.sum(-1)

    def weighed(self, span: Span, age_BM: Tensor, span_BS: Tensor) -> Span:
        """The span with the factors of attention."""
        return replace(span, log_weight_BTS=self.log_factors(age_BM, span_BS))

    def log_factors(self, age_BM: Tensor, span_BS: Tensor) -> Tensor:
        """log m, (B, T, S)."""
        n_new = span_BS.shape[1] - age_BM.shape[1]
        t_T = torch.arange(n_new, device=age_BM.device)
        age_BS = torch.cat([age_BM, (-t_T).expand(len(age_BM), -1)], dim=1)
        left_BS = (span_BS - age_BS).masked_fill(F.pad(age_BM == 0, (0, n_new)), -torch.inf)
        passed_T = t_T.to(span_BS.dtype) / self.ramp
        m_BTS = ((left_BS / self.ramp + 1)[:, None] - passed_T[:, None]).clamp(max=1)
        if not torch.is_grad_enabled():
            return m_BTS.clamp_(min=0).log_()
        hidden_BTS = m_BTS <= 0
        # 0 has no gradient
        return m_BTS.masked_fill(hidden_BTS, 1).log().masked_fill(hidden_BTS, -torch.inf)

    def kept(self, state: State, new_BTD: Tensor, span_BS: Tensor, context: Context) -> State:
        """The state after a segment that the layer read as `new`, given the spans of [memory, new]."""
        n_new = max(0, new_BTD.shape[1] - context.ext_len)
        age_BM = state.extra["age"]
        if self.training and torch.is_grad_enabled():
            loss = self.alpha * span_BS[:, age_BM.shape[1] :].mean()
        else:
            loss = None
        hidden_BSD = torch.cat([state.hidden_BMD, new_BTD.detach()[:, :n_new]], dim=1)
        span_BS = span_BS[:, : hidden_BSD.shape[1]].detach()
        places = self.staying(age_BM, span_BS, context.mem_len)
        return State(places.of(hidden_BSD), {"age": places.age_BM}, loss)

    def staying(self, age_BM: Tensor, span_BS: Tensor, mem_len: int) -> "_Staying":
        """Of [memory, segment] what stays after the segment, the mem_len last at most."""
        n_new = span_BS.shape[1] - age_BM.shape[1]
        new_age_BT = torch.arange(n_new, 0, -1, device=age_BM.device).expand(len(age_BM), -1)
        age_BS = torch.cat([torch.where(age_BM > 0, age_BM + n_new, 0), new_age_BT], dim=1)
        stays_BS = (age_BS > 0) & (age_BS < span_BS + self.ramp)
        if stays_BS.numel():
            n = min(mem_len, int(stays_BS.sum(1).max()))
        else:
            n = 0
        begin = stays_BS.shape[1] - n
        if bool((stays_BS == (age_BS > 0))[:, begin:].all()):
            return _Staying(age_BS[:, begin:], begin, None)
        at_BM = stays_BS.sort(dim=1, stable=True).indices[:, begin:]
        return _Staying((age_BS * stays_BS).gather(1, at_BM), begin, at_BM)


class _Staying(NamedTuple):
    """The states that stay: their ages, and their places in each row; None: all from `begin` on."""

    age_BM: Tensor
    begin: int
    at_BM: Tensor | None

    def of(self, x: Tensor) -> Tensor:
        """Of what was there of each state, (B, S) or (B, S, D), what stays."""
        if self.at_BM is None:
            if self.begin:
                return x[:, self.begin :].clone()
            return x
        B, S, M = *x.shape[:2], self.at_BM.shape[1]
        first_B1 = S * torch.arange(B, device=x.device)[:, None]
        return (
            x.flatten(0, 1).index_select(0, (first_B1 + self.at_BM).flatten()).unflatten(0, (B, M))
        )
