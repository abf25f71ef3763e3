"""The original's attn_type 1 against its formula."""

import pytest
from torch import Tensor

from tests.equations.loops import SIZES, H, assert_same, attended, attention_with, by_loop, tokens
from txl import Span


@pytest.mark.parametrize(("M", "T"), SIZES)
@pytest.mark.parametrize(("n_position", "clamp_len", "last_row"), [(20, -1, 19), (4, -1, 3), (20, 3, 2), (4, 9, 3)])
def test_attention_is_the_formula(M: int, T: int, n_position: int, clamp_len: int, last_row: int) -> None:
    """A_ij = [(q_i + u) k_j + q_i r_(i-j) + b_(i-j)] / sqrt(H); the last row, or clamp_len - 1, for all beyond it."""
    attention, pos = attention_with("learned_relative", n_position=n_position)

    def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        row = min(i - j, last_row)
        return ((q + pos.u_NH[n]) @ k + q @ pos.r_RNH[row, n] + pos.b_RN[row, n]) / H**0.5

    x_SD = tokens(M, T)
    assert_same(attended(attention, x_SD, Span(M, T, clamp_len=clamp_len)), by_loop(attention, x_SD, M, logit=logit))
