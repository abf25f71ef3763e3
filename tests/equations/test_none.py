"""No positions: plain attention, and what follows from it."""

import pytest
import torch
from torch import Tensor

from tests.equations.loops import SIZES, H, assert_same, attended, attention_with, by_loop, tokens
from txl import Span


def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    """Vaswani et al. 2017, eq. 1."""
    return q @ k / H**0.5


@pytest.mark.parametrize(("M", "T"), SIZES)
@pytest.mark.parametrize("window", [-1, 3])
def test_attention_is_the_formula(M: int, T: int, window: int) -> None:
    attention, pos = attention_with("none", attention="softmax")
    x_SD = tokens(M, T)
    ours = attended(attention, x_SD, Span(M, T, window=window))
    assert_same(ours, by_loop(attention, x_SD, M, logit=logit, window=window))
    assert list(pos.parameters()) == []


def test_the_order_of_what_came_before_does_not_matter() -> None:
    attention, _ = attention_with("none")
    x_SD = tokens(6, 1)
    shuffled_SD = torch.cat([x_SD[torch.tensor([3, 1, 5, 0, 2, 4])], x_SD[6:]])
    assert_same(attended(attention, x_SD, Span(6, 1)), attended(attention, shuffled_SD, Span(6, 1)))


@pytest.mark.parametrize(("M", "T", "window"), [(0, 5, -1), (0, 5, 4), (0, 5, 5), (3, 5, -1), (2, 1, -1)])
def test_a_triangle_is_what_the_mask_says(M: int, T: int, window: int) -> None:
    span = Span(M, T, window=window)
    triangle_TS = torch.ones(T, M + T, dtype=torch.bool).tril()
    assert span.is_triangle == torch.equal(span.mask_TS(torch.device("cpu")), triangle_TS)
