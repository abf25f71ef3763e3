"""Learned absolute positions against the formula."""

import pytest
from torch import Tensor

from tests.equations.loops import SIZES, H, assert_same, attended, attention_with, by_loop, tokens
from txl import ModelConfig, Span
from txl.config import UsageError
from txl.positions import POSITION_ENCODINGS


def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    return q @ k / H**0.5


@pytest.mark.parametrize(("M", "T"), SIZES)
@pytest.mark.parametrize("n_position", [4, 20])
def test_attention_is_the_formula(M: int, T: int, n_position: int) -> None:
    """q_i = W_q (x_i + P_i), k_j = W_k (x_j + P_j), v_j = W_v x_j; of a longer text the last R tokens have rows."""
    attention, pos = attention_with("learned_absolute", n_position=n_position)

    def place(i: int) -> Tensor:
        before_the_table = max(0, M + T - n_position)
        return pos.p_RD[max(0, i - before_the_table)]

    x_SD = tokens(M, T)
    assert_same(attended(attention, x_SD, Span(M, T)), by_loop(attention, x_SD, M, logit=logit, place=place))


@pytest.mark.parametrize("position", ["learned_relative", "learned_per_layer", "learned_absolute", "relative_keys"])
def test_a_table_of_no_given_length_is_refused(position: str) -> None:
    with pytest.raises(UsageError, match=f"--position {position}: learns a row for each position; set the number with"):
        POSITION_ENCODINGS[position](ModelConfig(n_token=5, position=position))
