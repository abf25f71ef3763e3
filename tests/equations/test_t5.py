"""T5's buckets against the paper's words and the formula."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from tests.equations.loops import SIZES, H, N, assert_same, attended, attention_with, by_loop, tokens
from txl import Span
from txl.config import UsageError
from txl.positions.t5 import bucket_starts


def bucket(d: int, n_bucket: int, max_distance: int) -> int:
    """Half of the buckets for single distances, the other half logarithmic up to max_distance; in exact fractions."""
    exact = n_bucket // 2
    if d < exact:
        return d
    n_log = n_bucket - exact
    ratio, whole = Fraction(d, exact) ** n_log, Fraction(max_distance, exact)
    return min(exact + max(i for i in range(d + n_log) if whole**i <= ratio), n_bucket - 1)


@pytest.mark.parametrize(("M", "T"), SIZES)
@pytest.mark.parametrize("clamp_len", [-1, 4])
@pytest.mark.parametrize(("n_bucket", "max_distance"), [(4, 6), (5, 9), (2, 3)])
def test_attention_is_the_formula(M: int, T: int, clamp_len: int, n_bucket: int, max_distance: int) -> None:
    attention, pos = attention_with("t5", n_bucket=n_bucket, max_distance=max_distance)

    def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        distance = min(i - j, clamp_len) if clamp_len > 0 else i - j
        return q @ k / H**0.5 + pos.b_RN[bucket(distance, n_bucket, max_distance), n]

    x_SD = tokens(M, T)
    assert_same(attended(attention, x_SD, Span(M, T, clamp_len=clamp_len)), by_loop(attention, x_SD, M, logit=logit))


@pytest.mark.parametrize(("n_bucket", "max_distance"), [(32, 128), (8, 64), (6, 8), (7, 100), (32, 17)])
def test_every_distance_falls_in_its_bucket(n_bucket: int, max_distance: int) -> None:
    _, pos = attention_with("t5", n_bucket=n_bucket, max_distance=max_distance)
    rows_S = pos.prepare(Span(0, 150), like=torch.zeros(1))
    assert rows_S.tolist() == [bucket(d, n_bucket, max_distance) for d in range(149, -1, -1)]


def test_borders_are_where_logarithms_are_whole() -> None:
    assert bucket_starts(8, 64) == [0, 1, 2, 3, 4, 8, 16, 32]
    # 32 buckets up to 128, as T5 has them: rounded logarithms have nothing to decide there
    found = [bucket(d, 32, 128) for d in range(200)]
    starts = [found.index(b) for b in range(32)]
    assert bucket_starts(32, 128) == starts
    assert starts[16:20] == [math.ceil(16 * 8 ** (i / 16)) for i in range(4)]


def test_buckets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="--max_distance 16: must be above half of --n_bucket 32"):
        attention_with("t5", max_distance=16)
    with pytest.raises(UsageError, match="--n_bucket 1: --position t5 needs at least 2"):
        attention_with("t5", n_bucket=1)
    assert attention_with("t5")[1].b_RN.shape == (32, N)
