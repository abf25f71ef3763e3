"""Projected relative keys against the formula."""

import pytest
from torch import Tensor

from tests.equations.loops import SIZES, D, H, N, assert_same, attended, attention_with, by_loop, tokens
from txl import Span


@pytest.mark.parametrize(("M", "T"), SIZES)
@pytest.mark.parametrize("clamp_len", [-1, 2])
@pytest.mark.parametrize("n_position", [3, 20])
@pytest.mark.parametrize("impl", ["naive", "dense", "blockwise"])
def test_attention_is_the_formula(M: int, T: int, clamp_len: int, n_position: int, impl: str) -> None:
    """A_ij = [q_i k_j + q_i W_r P_(i-j)] / sqrt(H), the last row of P for all distances beyond it."""
    attention, pos = attention_with("relative_keys", n_position=n_position)
    attention.rule.impl = impl
    W_r = pos.r_net.weight.view(N, H, D)

    def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        row = min(i - j, n_position - 1, clamp_len if clamp_len > 0 else i)
        return (q @ k + q @ (W_r[n] @ pos.p_RD[row])) / H**0.5

    x_SD = tokens(M, T)
    assert_same(attended(attention, x_SD, Span(M, T, clamp_len=clamp_len)), by_loop(attention, x_SD, M, logit=logit))
