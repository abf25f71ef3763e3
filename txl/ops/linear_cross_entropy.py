"""Cross-entropy of a linear layer's softmax, in chunks of tokens.

Beyond `BUDGET` logits, tokens are processed in chunks, so memory does not grow with tokens x
vocabulary. The gradients need the logits of a chunk again. Either the backward pass recomputes
them, which makes four products in all; or, where every token's loss has the same weight, the
gradients are made together with the loss: three products. On a CPU they take the place of the
logits, a few rows at a time, which stay in the cache.

That is done also where all logits may be held: in bfloat16 on a CPU if they do not fit the cache,
and on a GPU where `softmax_kernel` serves. By autograd, four tensors of this size in float32 come
from memory. Not in float16, where gradients that are made for 1, not for the scaled loss, may
overflow.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from txl.ops import onednn
from txl.ops.linear import CAST_PAYS, linear, linear_in_part
from txl.ops.lookup import NO_WORD
from txl.ops.numbers import HAS_TRITON, at_least_float32, on_gpu, product_dtype, widened
from txl.ops.table import take_gradient_place

IN_CACHE = 2**20
"""Logits whose softmax is computed at once on a CPU, in float32."""
BUDGET = {"cpu": 2**25, "cuda": 2**27}
"""Logits held at once (128 and 512 MiB in float32); a backward pass that recomputes them holds two
more tensors of this size.
"""
READ_AT_ONCE = 2**22
"""Logits held at once on a CPU where nothing learns; at least those of `CAST_PAYS` tokens."""

Parts = Tensor | Sequence[Tensor]
"""A table, or what follows each other in it."""


def parts_of(x: Parts) -> Sequence[Tensor]:
    """The parts of a table."""
    if isinstance(x, Tensor):
        return [x]
    return x


def whole(x: Parts, dim: int = 0) -> Tensor:
    """The table; of several parts a copy."""
    first, *others = parts_of(x)
    if others:
        return torch.cat([first, *others], dim)
    return first


def linear_cross_entropy(
    hidden_LE: Tensor,
    weights: Parts,
    biases: Parts,
    target_L: Tensor,
    *,
    same_weight: bool = False,
    all_count: bool = True,
) -> Tensor:
    """-log softmax(hidden_LE @ weight_VE.T + bias_V)[l, target_L[l]], in nats, (L,).

    The softmax is computed in float32 or wider, even if the logits are in half precision. L may be
    0.

    Args:
        weights, biases: (V, E) and (V,), each whole, or in parts that follow each other. On a CPU
            where nothing learns the logits of parts are joined, else the parts themselves, which
            makes a copy.
        same_weight: promises that the backward pass, if there is one, comes with the same gradient
            for every token that counts, as that of a mean or a sum is. With others the gradients of
            weight and bias are NaN.
        all_count: False: a target may be `NO_WORD`, whose nats are 0. The first target is `NO_WORD`
            only if all are.
    """
    learns = torch.is_grad_enabled()
    if hidden_LE.device.type == "cpu" and not learns and all_count:
        return _nats_alone(hidden_LE, parts_of(weights), parts_of(biases), target_L)
    if on_gpu(hidden_LE):
        weights, biases = _aligned(hidden_LE, parts_of(weights), parts_of(biases))
    weight_VE = whole(weights)
    bias_V = whole(biases)
    n_token = max(1, BUDGET.get(hidden_LE.device.type, BUDGET["cpu"]) // len(weight_VE))
    # only the kernel knows targets that do not count
    has_kernel = _has_kernel(hidden_LE.device, product_dtype(hidden_LE))
    makes_gradients = same_weight and learns and (all_count or has_kernel)
    is_large = makes_gradients and _is_large(hidden_LE, len(weight_VE))
    if len(hidden_LE) <= n_token and not is_large:
        return _nats(hidden_LE, weight_VE, bias_V, target_L)
    if makes_gradients:
        place = take_gradient_place(weight_VE)
        return _NatsAndGradients.apply(hidden_LE, weight_VE, bias_V, target_L, n_token, place)
    pieces = zip(hidden_LE.split(n_token), target_L.split(n_token), strict=True)
    if not learns:  # `checkpoint` would import torch._dynamo for nothing: 140 MiB
        return torch.cat([_nats(h, weight_VE, bias_V, t) for h, t in pieces])
    # nothing is random, and a CUDA graph cannot read the state of a generator
    again = partial(checkpoint, _nats, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([again(h, weight_VE, bias_V, t) for h, t in pieces])


def _aligned(
    hidden_LE: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """With words that nobody says, so that rows of logits begin on 16 bytes: else a GPU multiplies
    them by slower kernels. For fewer tokens than the table has columns its copy would cost more.
    """
    n_missing = -sum(map(len, weights)) % 8
    n_token, width = hidden_LE.shape
    if n_missing == 0 or n_token < width:
        return weights, biases
    silent = weights[0].new_zeros(n_missing, width)
    never = biases[0].new_full((n_missing,), -torch.inf)
    return [*weights, silent], [*biases, never]


def _is_large(hidden_LE: Tensor, n_word: int) -> bool:
    """True if gradients are made with the loss though all logits may be held at once."""
    dtype = product_dtype(hidden_LE)
    if _has_kernel(hidden_LE.device, dtype):
        return dtype != torch.float16
    is_many = len(hidden_LE) >= CAST_PAYS and len(hidden_LE) * n_word > IN_CACHE
    return _is_in_place(hidden_LE) and is_many


def _has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda" and HAS_TRITON and dtype != torch.float64


def _is_in_place(hidden_LE: Tensor) -> bool:
    return hidden_LE.device.type == "cpu" and product_dtype(hidden_LE) == torch.bfloat16


def _nats(hidden_LE: Tensor, weight_VE: Tensor, bias_V: Tensor, target_L: Tensor) -> Tensor:
    logit_LV = linear_in_part(hidden_LE, weight_VE, bias_V)
    return F.cross_entropy(widened(logit_LV), target_L, reduction="none", ignore_index=NO_WORD)


def _nats_alone(
    hidden_LE: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], target_L: Tensor
) -> Tensor:
    """On a CPU, without gradients."""
    n_word = sum(map(len, weights))
    n_token = min(max(1, BUDGET["cpu"] // n_word), max(CAST_PAYS, READ_AT_ONCE // n_word))

    def of_chunk(hidden_CE: Tensor, target_C: Tensor) -> Tensor:
        logits = []
        for part in zip(weights, biases, strict=True):
            logits.append(linear_in_part(hidden_CE, *part))
        pieces = []
        for x in (target_C, *logits):
            pieces.append(x.split(max(1, IN_CACHE // n_word)))
        nats = []
        # a few rows at a time, which stay in the cache
        for target_R, *logits_R in zip(*pieces, strict=True):
            nats.append(_nats_in_place(widened(whole(logits_R, -1)), target_R))
        return torch.cat(nats)

    chunks = zip(hidden_LE.split(n_token), target_L.split(n_token), strict=True)
    return torch.cat([of_chunk(*chunk) for chunk in chunks])


def _nats_in_place(logit_RV: Tensor, target_R: Tensor) -> Tensor:
    """The log-probabilities take the place of the logits."""
    return -torch.log_softmax(logit_RV, -1, out=logit_RV).gather(1, target_R[:, None])[:, 0]


class _Chunk(NamedTuple):
    """The gradients of logits, (C, V), the nats, (C,), and the bias's gradient, (V,)."""

    dlogit_CV: Tensor
    nats_C: Tensor
    dbias_V: Tensor


def _of_logits(logit_CV: Tensor, target_C: Tensor) -> _Chunk:
    """In float32 or wider."""
    wide = at_least_float32(logit_CV.dtype)
    at_C1 = target_C[:, None]
    # exponentials once in place of twice, where looking at the probabilities is free
    if _is_in_place(logit_CV):
        prob_CV = logit_CV.softmax(-1, dtype=wide)
        prob_C1 = prob_CV.gather(1, at_C1)
        # smaller ones have fewer digits, or are 0
        is_exact = bool(prob_C1.amin() >= torch.finfo(prob_C1.dtype).tiny)
        if is_exact:
            logprob_C1 = prob_C1.log_()
        else:
            logprob_C1 = logit_CV.log_softmax(-1, dtype=wide).gather(1, at_C1)
    else:
        logprob_CV = logit_CV.log_softmax(-1, dtype=wide)
        logprob_C1 = logprob_CV.gather(1, at_C1)
        prob_CV = logprob_CV.exp_()
    prob_CV.scatter_add_(1, at_C1, prob_CV.new_full((len(target_C), 1), -1.0))
    return _Chunk(prob_CV, -logprob_C1[:, 0], prob_CV.sum(0))


def _of_chunk(hidden_CE: Tensor, weight_VE: Tensor, bias_V: Tensor, target_C: Tensor) -> _Chunk:
    """The gradients of logits in the dtype of the hidden states. On a CPU and by the kernel they
    take the place of the logits.
    """
    logit_CV = linear(hidden_CE, weight_VE, bias_V)
    wide = at_least_float32(logit_CV.dtype)
    if _has_kernel(logit_CV.device, logit_CV.dtype):
        from txl.ops.softmax_kernel import gradients_in_place  # imports Triton

        nats_C = gradients_in_place(logit_CV, target_C)
        return _Chunk(logit_CV, nats_C, logit_CV.sum(0, dtype=wide))
    if logit_CV.device.type != "cpu":
        chunk = _of_logits(logit_CV, target_C)
        return chunk._replace(dlogit_CV=chunk.dlogit_CV.to(logit_CV.dtype))
    n_row = max(1, IN_CACHE // len(weight_VE))
    nats = []
    dbias_V = torch.zeros_like(bias_V, dtype=wide)
    for logit_RV, target_R in zip(logit_CV.split(n_row), target_C.split(n_row), strict=True):
        rows = _of_logits(logit_RV, target_R)
        logit_RV.copy_(rows.dlogit_CV)
        nats.append(rows.nats_C)
        dbias_V += rows.dbias_V
    return _Chunk(logit_CV, torch.cat(nats), dbias_V)


class _NatsAndGradients(torch.autograd.Function):
    """The gradient of a logit is (probability - [word is target]) times that of its token's loss.
    Gradients are made for 1 in its place and multiplied in the backward pass: those of hidden
    states token by token.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_LE: Tensor,
        weight_VE: Tensor,
        bias_V: Tensor,
        target_L: Tensor,
        n_token: int,
        place: Callable[[], Tensor] | None,
    ) -> Tensor:
        dtype = product_dtype(hidden_LE)
        wide = at_least_float32(dtype)
        ctx.dtypes = hidden_LE.dtype, weight_VE.dtype, bias_V.dtype
        ctx.place = place
        with torch.autocast(hidden_LE.device.type, enabled=False):
            hidden_LE, weight_VE, bias_V = (x.to(dtype) for x in (hidden_LE, weight_VE, bias_V))
            learns = ctx.needs_input_grad[1]
            is_one = len(hidden_LE) <= n_token and dtype != wide
            if is_one or not learns:
                dweight_VE = None
            else:
                dweight_VE = torch.zeros_like(weight_VE, dtype=wide)
            dhidden_LE = torch.empty_like(hidden_LE)
            dbias_V = None
            nats = []
            parts = (x.split(n_token) for x in (hidden_LE, target_L, dhidden_LE))
            for hidden_CE, target_C, dhidden_CE in zip(*parts, strict=True):
                dlogit_CV, nats_C, more_V = _of_chunk(hidden_CE, weight_VE, bias_V, target_C)
                nats.append(nats_C)
                if dbias_V is None:
                    dbias_V = more_V
                else:
                    dbias_V += more_V
                if dweight_VE is not None and onednn.serves(dlogit_CV, weight_VE.T):
                    dhidden_CE.copy_(onednn.linear(dlogit_CV, weight_VE.T))
                    dweight_VE += onednn.of_weight(dlogit_CV, hidden_CE)
                else:
                    torch.mm(dlogit_CV, weight_VE, out=dhidden_CE)
                    if learns and dweight_VE is None:
                        dweight_VE = dlogit_CV.T @ hidden_CE
                    elif dweight_VE is not None and dtype == wide:
                        dweight_VE.addmm_(dlogit_CV.T, hidden_CE)
                    elif dweight_VE is not None:
                        dweight_VE += dlogit_CV.T @ hidden_CE
                del dlogit_CV  # before there are the logits of the next chunk
        ctx.save_for_backward(dhidden_LE, dweight_VE, dbias_V, target_L)
        return torch.cat(nats)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_L: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        dhidden_LE, dweight_VE, dbias_V, target_L = ctx.saved_tensors
        # no look at it: a GPU would be waited for
        is_alike = ((grad_L == grad_L[:1]) | (target_L == NO_WORD)).all()
        grad_1 = grad_L[:1].where(is_alike, torch.nan)
        if dweight_VE is not None:
            dweight_VE = _times(dweight_VE, grad_1, ctx.place).to(ctx.dtypes[1])
        dhidden_LE = (dhidden_LE * grad_L[:, None]).to(ctx.dtypes[0])
        dbias_V = (dbias_V * grad_1).to(ctx.dtypes[2])
        return dhidden_LE, dweight_VE, dbias_V, None, None, None


def _times(x_VE: Tensor, factor_1: Tensor, place: Callable[[], Tensor] | None) -> Tensor:
    """The product in float32 or wider, at a place that awaits it, or in that of x."""
    if place is not None:
        return torch.mul(x_VE, factor_1, out=place())
    if x_VE.dtype == factor_1.dtype:
        return x_VE.mul_(factor_1)
    return x_VE * factor_1
