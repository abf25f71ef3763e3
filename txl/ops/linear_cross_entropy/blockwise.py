"""Loss and gradients tile by tile: never more logits at once than a tile, whatever the tokens and the words.

The derivation is in the README of this folder.
"""

import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from txl.ops import few_rows
from txl.ops.linear_cross_entropy import tiles

TILE = {"cpu": 2**20, "cuda": 2**26}
"""Logits of a tile: on a CPU it stays in the cache, on a GPU the products are large enough to fill it."""
EAGER_TILE = 2**22
"""Logits of a tile where the gradients are made with the loss: with few tokens at a time the gradient of the table
would be read and written too often,"""
EAGER_TOKENS = 128
"""and never fewer tokens than this: a third more products would cost more than this tile's memory is worth."""


class Parameters(NamedTuple):
    """A table of words (V, E) and bias (V,), and the entries (C, E), (C,) that only the first group has, or None. Also
    their gradients."""

    weight_VE: Tensor
    bias_V: Tensor
    more_weight_CE: Tensor | None
    more_bias_C: Tensor | None

    def empty_gradients(self, dtype: torch.dtype) -> "Parameters":
        """Room for gradients; those of the tables are not filled."""
        weight_VE, bias_V, more_weight_CE, more_bias_C = self
        if more_weight_CE is None or more_bias_C is None:
            return Parameters(torch.empty_like(weight_VE, dtype=dtype), _zeros(bias_V, dtype), None, None)
        more = torch.empty_like(more_weight_CE, dtype=dtype), _zeros(more_bias_C, dtype)
        return Parameters(torch.empty_like(weight_VE, dtype=dtype), _zeros(bias_V, dtype), *more)

    def runs(self, group: int, sizes: list[int]) -> list["Run"]:
        """Views of what makes up the words of a group."""
        first = sum(sizes[:group])
        rows = slice(first, first + sizes[group])
        runs = [Run(self.weight_VE[rows], self.bias_V[rows], 0)]
        if group == 0 and self.more_weight_CE is not None and self.more_bias_C is not None:
            runs.append(Run(self.more_weight_CE, self.more_bias_C, sizes[0]))
        return runs


class Run(NamedTuple):
    """Consecutive words of a group, the first of which is its word number `first`."""

    weight_UE: Tensor
    bias_U: Tensor
    first: int


class Shape(NamedTuple):
    """Tokens and words of each group, and the numbers that matrix products are made in."""

    lengths: list[int]
    sizes: list[int]
    dtype: torch.dtype

    @property
    def sum_dtype(self) -> torch.dtype:
        """Of log-sum-exps and of sums of gradients."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def groups(self) -> Iterator[tuple[int, slice]]:
        """Each group and where its tokens are."""
        first = 0
        for group, length in enumerate(self.lengths):
            yield group, slice(first, first + length)
            first += length


def loss(hidden_LE: Tensor, parameters: Parameters, target_L: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Nats of each target, and the log-sum-exp of each token's logits, (L,) both."""
    lse_L = hidden_LE.new_full((len(hidden_LE),), -torch.inf, dtype=shape.sum_dtype)
    target_logit_L = torch.zeros_like(lse_L)
    by = _tile_functions(hidden_LE.device, shape.dtype)
    operand_LE = _operand(hidden_LE, shape.dtype)
    scratch = _Scratch(hidden_LE, shape)
    for group, tokens in shape.groups():
        for run in parameters.runs(group, shape.sizes):
            for words, pieces in scratch.tiles(tokens, len(run.weight_UE)):
                weight_UE = _operand(run.weight_UE[words], shape.dtype)
                for piece in pieces:
                    logit_TU = scratch.product(operand_LE[piece], weight_UE)
                    place_T = target_L[piece] - (run.first + words.start)
                    by.add_statistics(logit_TU, run.bias_U[words], place_T, lse_L[piece], target_logit_L[piece])
    return lse_L - target_logit_L, lse_L


def gradients(
    grad_L: Tensor,
    hidden_LE: Tensor,
    parameters: Parameters,
    target_L: Tensor,
    lse_L: Tensor,
    shape: Shape,
    *,
    of_hidden: bool,
    of_parameters: bool,
) -> tuple[Tensor | None, Parameters | None]:
    """Gradients of sum(grad_L * loss), summed in `shape.sum_dtype`. The logits are computed a second time.

    Words are the outer loop: the table is read once, and its gradient written once where a group is one piece.
    """
    by = _tile_functions(hidden_LE.device, shape.dtype)
    operand_LE, grad_L = _operand(hidden_LE, shape.dtype), grad_L.to(shape.sum_dtype)
    grad_hidden_LE = _zeros(hidden_LE, shape.sum_dtype) if of_hidden else None
    grads = parameters.empty_gradients(shape.sum_dtype) if of_parameters else None
    scratch = _Scratch(hidden_LE, shape)
    for group, tokens in shape.groups():
        grad_runs = grads.runs(group, shape.sizes) if grads is not None else []
        _zero_where_no_token_is(grad_runs, tokens)
        for i, run in enumerate(parameters.runs(group, shape.sizes)):
            for words, pieces in scratch.tiles(tokens, len(run.weight_UE)):
                weight_UE = _operand(run.weight_UE[words], shape.dtype)
                for piece in pieces:
                    logit_TU = scratch.product(operand_LE[piece], weight_UE)
                    place_T = target_L[piece] - (run.first + words.start)
                    grad_TU = by.logit_gradient(logit_TU, run.bias_U[words], place_T, lse_L[piece], grad_L[piece])
                    if grad_hidden_LE is not None:
                        _add_product(grad_hidden_LE[piece], grad_TU, weight_UE)
                    if grads is not None:
                        is_first = piece.start == tokens.start
                        _add_product(grad_runs[i].weight_UE[words], grad_TU.T, operand_LE[piece], is_first=is_first)
                        grad_runs[i].bias_U[words].add_(grad_TU.sum(0, dtype=shape.sum_dtype))
    return grad_hidden_LE, grads


def loss_and_gradients(
    hidden_LE: Tensor, parameters: Parameters, target_L: Tensor, shape: Shape, *, of_parameters: bool
) -> tuple[Tensor, Tensor, Tensor, Parameters | None]:
    """Nats and log-sum-exps as `loss` gives them, and besides the gradient of each token's own nats by its hidden
    state, and of the sum of all nats by the parameters.

    The logits are computed once only, for which a tile must hold all words of its group: tokens are the outer loop.
    """
    lse_L = hidden_LE.new_empty(len(hidden_LE), dtype=shape.sum_dtype)
    nll_L, grad_hidden_LE = torch.empty_like(lse_L), _zeros(hidden_LE, shape.sum_dtype)
    grads = parameters.empty_gradients(shape.sum_dtype) if of_parameters else None
    operand_LE = _operand(hidden_LE, shape.dtype)
    for group, tokens in shape.groups():
        grad_runs = grads.runs(group, shape.sizes) if grads is not None else []
        _zero_where_no_token_is(grad_runs, tokens)
        runs = parameters.runs(group, shape.sizes)
        runs = [run._replace(weight_UE=_operand(run.weight_UE, shape.dtype)) for run in runs]
        n_word = sum(len(run.weight_UE) for run in runs)
        for piece in _pieces(tokens, max(EAGER_TOKENS, EAGER_TILE // n_word)):
            logit_TW = _all_logits(operand_LE[piece], runs, shape.sum_dtype)
            target_T1 = target_L[piece, None]
            target_logit_T = logit_TW.gather(1, target_T1).squeeze(1)
            lse_L[piece] = _normalised(logit_TW)
            torch.sub(lse_L[piece], target_logit_T, out=nll_L[piece])
            grad_TW = logit_TW.scatter_add_(1, target_T1, logit_TW.new_full(target_T1.shape, -1.0)).to(shape.dtype)
            for i, run in enumerate(runs):
                grad_TU = grad_TW[:, run.first : run.first + len(run.weight_UE)]
                _add_product(grad_hidden_LE[piece], grad_TU, run.weight_UE)
                if grads is not None:
                    is_first = piece.start == tokens.start
                    _add_product(grad_runs[i].weight_UE, grad_TU.T, operand_LE[piece], is_first=is_first)
                    grad_runs[i].bias_U.add_(grad_TU.sum(0, dtype=shape.sum_dtype))
    return nll_L, lse_L, grad_hidden_LE, grads


def _all_logits(hidden_TE: Tensor, runs: list[Run], dtype: torch.dtype) -> Tensor:
    """The logits (T, W) of all words of a group."""
    logit_TW = hidden_TE.new_empty(len(hidden_TE), sum(len(run.weight_UE) for run in runs))
    for run in runs:
        torch.mm(hidden_TE, run.weight_UE.T, out=logit_TW[:, run.first : run.first + len(run.weight_UE)])
    logit_TW = logit_TW.to(dtype)
    for run in runs:
        logit_TW[:, run.first : run.first + len(run.weight_UE)] += run.bias_U
    return logit_TW


def _normalised(logit_TW: Tensor) -> Tensor:
    """Turn logits into probabilities in place; the log-sum-exps, (T,).

    The softmax makes one pass over a row while it is in the cache, a log-sum-exp and an exponential four over the tile.
    It keeps its sums to itself, but the largest probability is exp(largest logit - log-sum-exp), and never small.
    """
    top_T = logit_TW.amax(1)
    prob_TW = torch.softmax(logit_TW, 1, out=logit_TW)
    return top_T - prob_TW.amax(1).log_()


class _Scratch:
    """Room for one tile of logits, used again and again."""

    def __init__(self, like: Tensor, shape: Shape) -> None:
        self._size = TILE.get(like.device.type, TILE["cpu"])
        self._longest = max(1, int(self._size**0.5))
        # rows of a GPU's matrix product begin at multiples of 16 bytes, or the product is slow
        self._align = 8 if like.device.type == "cuda" else 1
        n_token = min(max(shape.lengths, default=0), self._longest)
        n_word = min(max(shape.sizes, default=0), self._size) + self._align
        self._room = like.new_empty(min(self._size, n_token * n_word), dtype=shape.dtype)

    def tiles(self, tokens: slice, n_word: int) -> Iterator[tuple[slice, list[slice]]]:
        """Pieces of 0 ... n_word - 1, and with each the pieces of the tokens."""
        pieces = list(_pieces(tokens, self._longest))
        if pieces:
            longest = max(piece.stop - piece.start for piece in pieces)
            for words in _pieces(slice(0, n_word), self._size // longest - self._align + 1):
                yield words, pieces

    def product(self, hidden_TE: Tensor, weight_UE: Tensor) -> Tensor:
        """hidden_TE @ weight_UE.T, (T, U), until the next call."""
        n_token, n_word = len(hidden_TE), len(weight_UE)
        if hidden_TE.device.type == "cpu" and hidden_TE.dtype == torch.float32 and n_token <= few_rows.FEW_FOR_A_TABLE:
            return few_rows.product(hidden_TE, weight_UE)
        width = -(-n_word // self._align) * self._align
        logit_TU = self._room[: n_token * width].view(n_token, width)[:, :n_word]
        return torch.mm(hidden_TE, weight_UE.T, out=logit_TU)


def _pieces(whole: slice, at_most: int) -> Iterator[slice]:
    """Cut into the fewest pieces of at most so many, as even as can be."""
    length = whole.stop - whole.start
    n_piece = -(-length // at_most)
    for i in range(n_piece):
        yield slice(whole.start + i * length // n_piece, whole.start + (i + 1) * length // n_piece)


def _zero_where_no_token_is(grad_runs: list[Run], tokens: slice) -> None:
    if tokens.start == tokens.stop:
        for run in grad_runs:
            run.weight_UE.zero_()


def _add_product(out: Tensor, a: Tensor, b: Tensor, *, is_first: bool = False) -> None:
    """out += a @ b; the first time out = a @ b, whatever was there."""
    beta = 0 if is_first else 1
    if a.dtype == out.dtype:
        out.addmm_(a, b, beta=beta)
    elif out.device.type == "cuda":
        torch.addmm(out, a, b, out_dtype=out.dtype, beta=beta, out=out)
    elif is_first:
        out.copy_(a @ b)
    else:
        out.add_(a @ b)


def _operand(x_XE: Tensor, dtype: torch.dtype) -> Tensor:
    """In the numbers of the products, rows of a narrower type beginning at multiples of 16 bytes on a GPU."""
    if x_XE.dtype == dtype or x_XE.device.type != "cuda":
        return x_XE.to(dtype)
    n_row, width = x_XE.shape
    room = x_XE.new_empty(n_row, -(-width // 8) * 8, dtype=dtype)
    return room[:, :width].copy_(x_XE)


def _zeros(like: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(like, dtype=dtype)


def _tile_functions(device: torch.device, dtype: torch.dtype) -> ModuleType:
    if device.type == "cuda" and dtype != torch.float64 and importlib.util.find_spec("triton"):
        from txl.ops.linear_cross_entropy import fused

        return fused
    return tiles
