"""Linear biases against the paper's formula."""

import pytest
import torch
from torch import Tensor

from tests.equations.loops import SIZES, H, assert_same, attended, attention_with, by_loop, tokens
from txl import Span
from txl.positions.alibi import slopes


def slope(n: int, n_head: int) -> float:
    """Press et al. 2022, sec. 3: a geometric sequence from 2^(-8/N) on, with that ratio; see the class for other N."""
    power = max(2**i for i in range(8) if 2**i <= n_head)
    if n < power:
        return 2 ** (-8 * (n + 1) / power)
    return 2 ** (-8 * (2 * (n - power) + 1) / (2 * power))


@pytest.mark.parametrize(("M", "T"), SIZES)
@pytest.mark.parametrize("clamp_len", [-1, 2])
@pytest.mark.parametrize("n_head", [1, 2, 3, 6])
def test_attention_is_the_formula(M: int, T: int, clamp_len: int, n_head: int) -> None:
    attention, _ = attention_with("alibi", n_head=n_head)

    def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        distance = min(i - j, clamp_len) if clamp_len > 0 else i - j
        return q @ k / H**0.5 - slope(n, n_head) * distance

    x_SD = tokens(M, T)
    assert_same(attended(attention, x_SD, Span(M, T, clamp_len=clamp_len)), by_loop(attention, x_SD, M, logit=logit))


def test_eight_heads_have_the_slopes_that_the_paper_lists() -> None:
    ours = slopes(8, torch.device("cpu"), torch.float64)
    assert ours.tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_sixteen_heads_go_by_the_root_of_two() -> None:
    ours = slopes(16, torch.device("cpu"), torch.float64)
    assert_same(ours, torch.tensor([2 ** (-i / 2) for i in range(1, 17)], dtype=torch.float64))


def test_far_distances_are_told_apart_in_half_precision() -> None:
    _, pos = attention_with("alibi")
    rows_SN = pos.prepare(Span(4000, 1), like=torch.zeros(1, dtype=torch.bfloat16))
    assert len(rows_SN.unique(dim=0)) == 4001
