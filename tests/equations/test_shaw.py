"""Shaw et al. 2018 against the paper's formula."""

import pytest
import torch
from torch import Tensor

from tests.equations.loops import SIZES, H, assert_same, attended, attention_with, by_loop, tokens
from txl import Span
from txl.positions.base import rel_shift, rel_unshift


@pytest.mark.parametrize(("M", "T"), SIZES)
@pytest.mark.parametrize("clamp_len", [-1, 1])
@pytest.mark.parametrize("window", [-1, 3])
@pytest.mark.parametrize("k", [1, 3, 30])
def test_attention_is_the_formula(M: int, T: int, clamp_len: int, window: int, k: int) -> None:
    """Eq. 4: e_ij = q_i (k_j + aK_ij) / sqrt(H); eq. 3: z_i = sum_j alpha_ij (v_j + aV_ij); a_ij = w_clip(j - i, k)."""
    attention, pos = attention_with("shaw", max_distance=k)

    def row(i: int, j: int) -> int:
        return min(i - j, k if clamp_len < 0 else min(k, clamp_len))

    def logit(n: int, q: Tensor, key: Tensor, i: int, j: int) -> Tensor:
        return q @ (key + pos.key_RH[row(i, j)]) / H**0.5

    def value(n: int, i: int, j: int) -> Tensor:
        return pos.value_RH[row(i, j)]

    x_SD = tokens(M, T)
    ours = attended(attention, x_SD, Span(M, T, clamp_len=clamp_len, window=window))
    assert_same(ours, by_loop(attention, x_SD, M, logit=logit, value=value, window=window))


@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 9), (4, 4), (5, 9), (7, 8)])
def test_rel_unshift_is_the_inverse_of_rel_shift(T: int, S: int) -> None:
    visible = Span(S - T, T).mask_TS(torch.device("cpu"))
    x = torch.randn(2, 3, T, S) * visible
    by_distance = rel_unshift(x)
    assert torch.equal(rel_shift(by_distance) * visible, x)
    for t in range(T):
        for column in range(S):
            s = column - (T - 1 - t)
            assert torch.equal(by_distance[..., t, column], x[..., t, s] if s >= 0 else torch.zeros(2, 3))
