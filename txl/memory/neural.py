"""The memory of Titans: a small network per head of keys, whose weights learn what has left the
window.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from txl.config import Context, ModelConfig, option
from txl.memory.beside import BESIDE, BesideAttention, beyond_window, same_document
from txl.model.memory import State
from txl.model.rule import Traits
from txl.model.span import Span
from txl.model.streams import per_row
from txl.ops.heads import folded
from txl.ops.numbers import at_least_float32, widened

_RATES = (0.01, 0.5, 0.05)
"""Forgetting, momentum and learning rate of a new model."""
_LEAST_DAMPING = 1e-3


class Neural(BesideAttention):
    """Hidden states as in `fifo`, and a network per head of keys that maps keys of tokens before
    them to values.

        read      A   = g f_W(q) + (1 - g) A_local         g = sigmoid(b), b a number per head
        f         k W, or silu(k W1) W2                    |q| = |k| = 1
        learned   S_t = n_t S_(t-1) - o_t / s grad |f_W(k_t) - v_t|^2
                  W_t = (1 - a_t) W_(t-1) + S_t            `forgets_to` nothing
                  W_t = W_0 + (1 - a_t) (W_(t-1) - W_0) + S_t        begin: the weights at the start

    Momentum n, rate o and forgetting a of a token are sigmoids of (h . w + b), one each per head; h
    is its hidden state, or what attention reads of it (`rates_of`), the same without pre_lnorm.

    Steps are divided by

        s   = max(1, 2 c),  c = |sum_t p_t x_t x_t^T| (Frobenius), of two layers the sum of both
        p_t   how much of the gradient of t is in W with s = 1, and will be by momentum
              n / (1 - n) of S, n that of the last token
        x_t   what a layer reads; of the first of two, times |diag(silu'(k_t W1)) W2|

    Source: Behrouz et al. 2025 (arXiv 2501.00663), eq. 9 to 15, memory as a gate. As in sec. 3.2,
    the gradients of all tokens that leave the window at once are those at the weights before the
    first of them.
    Differs from the paper: keys, values and queries are those of attention, per head, without SiLU
    and convolutions; W learns what has left the window, so a segment reads what was there before
    it; the gate is a number per head, where the paper normalises both results with learned vectors
    and multiplies them; there are no persistent tokens; W begins at learned weights, from which a
    row remembers its difference; rates are divided by s, over the tokens that leave at once. c
    bounds the curvature of the sum of their losses, each times what its step comes to: where 2 c is
    above 1, steps of similar keys overshoot, extra at each segment, until nothing is finite.
    Gradients: hidden states in the window are detached; what W learned from keys, values and rates
    is not, until the end of a step.
    Documents: W begins anew with the first token of a document that leaves the window.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(BesideAttention.Settings):
        neural_layers: Literal[1, 2] = option(1, "layers of the network that remembers")
        rates_of: Literal["hidden", "normed"] = option(
            "hidden",
            "what the rates of learning follow from: hidden states, or their norms as attention"
            " reads them with --pre_lnorm (the default for weights that were trained without)",
        )
        forgets_to: Literal["nothing", "begin"] = option(
            "nothing",
            "what is left of the network where all is forgotten: nothing, as in the paper, or the"
            " weights that a text begins with, so that streams that never begin anew teach them"
            " too (the default for weights that were trained without)",
        )

    traits = Traits(BESIDE, learns_to_write=True)
    when_added: ClassVar[Mapping[str, Any]] = {
        **BesideAttention.when_added,
        "rates_of": "normed",
        "forgets_to": "begin",
    }

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        settings = config.settings(self.Settings)
        self.rates_of = settings.rates_of
        self.forgets_to = settings.forgets_to
        self.begin = nn.ParameterList(nn.Parameter(torch.empty(shape)) for shape in _shapes(config))
        self.n_key_head = config.n_key_head
        self.rates = nn.Linear(config.d_model, 3 * self.n_key_head)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        *inner, last = self.begin
        for weight in inner:
            nn.init.normal_(weight, 0.0, weight.shape[1] ** -0.5)
        nn.init.zeros_(last)
        with torch.no_grad():
            self.rates.bias.copy_(torch.tensor(_RATES).logit().repeat(self.n_key_head))

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        dtype = at_least_float32(like.dtype)
        zeros = []
        for shape in _shapes(config):
            zeros.append(like.new_zeros(batch_size, *shape, dtype=dtype))
        extra = {}
        for i, x in enumerate(zeros, 1):
            for name in ("learned", "momentum"):
                extra[f"{name}{i}"] = x
        return State(like.new_empty(batch_size, 0, config.d_model), extra)

    def weights(self, extra: Mapping[str, Tensor]) -> list[Tensor]:
        """The weights of each row's networks, (B, N, in, out), the first layer first."""
        return [begin + extra[f"learned{i}"] for i, begin in enumerate(self.begin, 1)]

    def beside(
        self, extra: Mapping[str, Tensor], span: Span, q_BNTH: Tensor, local_BNTH: Tensor
    ) -> Tensor:
        q_BNTH = F.normalize(q_BNTH.to(extra["learned1"].dtype), dim=-1)
        read_BNTH = self._read(q_BNTH, self.weights(extra))
        if span.first_BT is not None:  # nothing of another document
            unlearned_BNTH = self._read(q_BNTH, [w[None] for w in self.begin])
            read_BNTH = torch.where(
                (span.first_BT < 0)[:, None, :, None], read_BNTH, unlearned_BNTH
            )
        # until the next part: a gradient in each step
        unread = 0 * sum(p.sum() for p in self.rates.parameters())
        return self.joined(read_BNTH + unread, local_BNTH)

    def _read(self, q_BNTH: Tensor, weights: list[Tensor]) -> Tensor:
        return _layers(folded(q_BNTH, self.n_key_head), weights)[-1].reshape(q_BNTH.shape)

    def kept(
        self, state: State, new_BTD: Tensor, span: Span, context: Context, layer: Any
    ) -> State:
        left_BLD, hidden_BMD = beyond_window(state, new_BTD, context)
        if not left_BLD.shape[1]:
            return State(hidden_BMD, state.extra)
        extra = dict(state.extra)
        dtype = state.extra["learned1"].dtype
        k_BNLH, v_BNLH = (x.to(dtype) for x in layer.keys_and_values(left_BLD))
        forget_BNL, momentum_BNL, rate_BNL = self.rates_of_tokens(layer, left_BLD)
        if span.since_BT is not None:
            goes_on_B, stays_BL = same_document(span, left_BLD.shape[1])
            extra = {name: torch.where(per_row(goes_on_B, x), x, 0) for name, x in extra.items()}
            forget_BNL = torch.where(stays_BL[:, None], forget_BNL, 0)
            rate_BNL = torch.where(stays_BL[:, None], rate_BNL, 0)
        k_BNLH = F.normalize(k_BNLH, dim=-1)
        weights = self.weights(extra)
        of_weights, of_momentum = _shares(forget_BNL, momentum_BNL, rate_BNL)
        last_BN1 = momentum_BNL[..., -1:]
        later_BNL = last_BN1 / (1 - last_BN1).clamp(min=_LEAST_DAMPING) * of_momentum.tokens
        inputs = _layers(k_BNLH, weights)
        if len(weights) == 2:
            slope_BNLH = _slope(k_BNLH @ weights[0])
        else:
            slope_BNLH = None
        slower_BN = (
            2 * _curvature(inputs, slope_BNLH, weights, of_weights.tokens + later_BNL)
        ).clamp(min=1)
        shares = (share.tokens / slower_BN[..., None] for share in (of_weights, of_momentum))
        steps = _gradients(inputs, slope_BNLH, v_BNLH, weights, *shares)
        for i, (begin, step, last) in enumerate(zip(self.begin, *steps, strict=True), 1):
            learned = extra[f"learned{i}"]
            momentum = extra[f"momentum{i}"]
            new = of_weights.before * learned + of_weights.momentum * momentum - step
            if self.forgets_to == "nothing":
                new = new - (1 - of_weights.before) * begin
            extra[f"learned{i}"] = new
            extra[f"momentum{i}"] = of_momentum.momentum * momentum - last
        return State(hidden_BMD, extra)

    def rates_of_tokens(self, layer: Any, x_BLD: Tensor) -> Tensor:
        """Forgetting, momentum and learning rate, (3, B, N, L)."""
        if self.rates_of == "normed":
            x_BLD = layer.normed(x_BLD)
        rates_BLR = widened(self.rates(x_BLD)).sigmoid()
        return rearrange(rates_BLR, "b l (n rate) -> rate b n l", rate=3)


def _shapes(config: ModelConfig) -> list[tuple[int, int, int]]:
    """Of the weights of each layer, (N, in, out)."""
    n = config.n_key_head
    d = config.d_head
    if config.settings(Neural.Settings).neural_layers == 1:
        return [(n, d, d)]
    return [(n, d, 2 * d), (n, 2 * d, d)]


def _layers(x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """The input of each layer, and the output."""
    found = [x]
    for i, weight in enumerate(weights):
        x = found[-1] @ weight
        found.append(F.silu(x) if i < len(weights) - 1 else x)
    return found


def _gradients(
    inputs: list[Tensor],
    slope_BNLH: Tensor | None,
    v_BNLH: Tensor,
    weights: list[Tensor],
    *shares_BNL: Tensor,
) -> list[list[Tensor]]:
    """For each of the shares the gradient of sum_t share_t |f(k_t) - v_t|^2 for each layer's
    weights.
    """
    k_BNLH = inputs[0]
    backs = []
    for share_BNL in shares_BNL:
        backs.append(2 * share_BNL[..., None] * (inputs[-1] - v_BNLH))
    if slope_BNLH is None:
        return [[k_BNLH.mT @ back_BNLH] for back_BNLH in backs]
    second = weights[1].mT
    gradients = []
    for back_BNLH in backs:
        gradients.append([k_BNLH.mT @ (back_BNLH @ second * slope_BNLH), inputs[1].mT @ back_BNLH])
    return gradients


def _curvature(
    inputs: list[Tensor], slope_BNLH: Tensor | None, weights: list[Tensor], share_BNL: Tensor
) -> Tensor:
    """c, (B, N)."""

    def norm(x_BNLH: Tensor, scale_BNL: Tensor) -> Tensor:
        return torch.linalg.matrix_norm(x_BNLH.mT @ (scale_BNL[..., None] * x_BNLH))

    if slope_BNLH is None:
        return norm(inputs[0], share_BNL)
    through_BNL = (slope_BNLH.square() @ weights[1].square().sum(-1, keepdim=True))[..., 0]
    return norm(inputs[0], share_BNL * through_BNL) + norm(inputs[1], share_BNL)


def _slope(x: Tensor) -> Tensor:
    """The derivative of silu."""
    return x.sigmoid() * (1 + x * (1 - x.sigmoid()))


class _Shares(NamedTuple):
    """Of what the weights, or the momentum, consist after several tokens: less the gradient of each
    of them, (B, N, L), and what was there before, (B, N, 1, 1).
    """

    tokens: Tensor
    momentum: Tensor
    before: Tensor | int


def _shares(forget_BNL: Tensor, momentum_BNL: Tensor, rate_BNL: Tensor) -> tuple[_Shares, _Shares]:
    """Those of the weights and of the momentum."""
    next_BNL = F.pad(momentum_BNL[..., 1:], (0, 1))
    left_BNL = _product_from_right(1 - forget_BNL)
    # of an update by this token, and by it and all later ones
    kept_BNL = F.pad(left_BNL[..., 1:], (0, 1), value=1.0)
    reach_BNL = _summed_from_right(kept_BNL, next_BNL)
    products_BNL = _product_from_right(momentum_BNL)
    later_BNL = F.pad(products_BNL[..., 1:], (0, 1), value=1.0)
    first = momentum_BNL[..., 0] * reach_BNL[..., 0]
    whole = products_BNL[..., 0]
    return (
        _Shares(reach_BNL * rate_BNL, first[..., None, None], left_BNL[..., 0, None, None]),
        _Shares(rate_BNL * later_BNL, whole[..., None, None], 0),
    )


def _product_from_right(x: Tensor) -> Tensor:
    """x_t x_(t+1) ... x_L, in a step for each doubling of what is multiplied: `cumprod` and `prod`
    would wait for a GPU in their derivatives, which divide by x.
    """
    n = x.shape[-1]
    reach = 1
    while reach < n:
        x = x * F.pad(x[..., reach:], (0, reach), value=1.0)
        reach *= 2
    return x


def _summed_from_right(x: Tensor, factor: Tensor) -> Tensor:
    """y_t = x_t + factor_t y_(t+1), by as many steps; nothing is divided."""
    n = x.shape[-1]
    reach = 1
    while reach < n:
        x = x + factor * F.pad(x[..., reach:], (0, reach))
        factor = factor * F.pad(factor[..., reach:], (0, reach))
        reach *= 2
    return x
