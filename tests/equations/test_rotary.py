"""Rotary position embedding against the paper's formula."""

import cmath

import pytest
import torch
from torch import Tensor

from tests.equations.loops import SIZES, H, assert_same, attended, attention_with, by_loop, tokens
from txl import ModelConfig, Span
from txl.config import UsageError
from txl.positions.rotary import Rotary


def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    """Su et al. 2021, eq. 12 for every pair of channels: Re[q conj(k) e^(i (m - n) theta)] / sqrt(H)."""
    total = torch.zeros(()).double()
    for c in range(H // 2):
        turned = cmath.exp(1j * (i - j) * 10000 ** (-2 * c / H))
        product = torch.complex(q[c], q[c + H // 2]) * torch.complex(k[c], k[c + H // 2]).conj()
        total = total + (product * turned).real
    return total / H**0.5


@pytest.mark.parametrize(("M", "T"), SIZES)
def test_attention_is_the_formula(M: int, T: int) -> None:
    """To float32, in which the angles' frequencies are kept."""
    attention, _ = attention_with("rotary")
    x_SD = tokens(M, T)
    assert_same(attended(attention, x_SD, Span(M, T)), by_loop(attention, x_SD, M, logit=logit), atol=1e-5)


def test_turning_keeps_distances_however_far_the_window_reaches() -> None:
    _, pos = attention_with("rotary")
    q, k = torch.randn(1, 2, 1, H).double(), torch.randn(1, 2, 1001, H).double()
    far_q, far_k = pos.transform_qk(q, k, Span(1000, 1))
    near_q, near_k = pos.transform_qk(q, k[:, :, -5:], Span(4, 1))
    assert_same((far_q @ far_k.mT)[..., -5:], near_q @ near_k.mT)


def test_angles_are_not_rounded_to_half_precision() -> None:
    _, pos = attention_with("rotary")
    q, k = torch.randn(1, 2, 1, H).bfloat16(), torch.randn(1, 2, 4001, H).bfloat16()
    exact = pos.transform_qk(q.float(), k.float(), Span(4000, 1))
    for half, full in zip(pos.transform_qk(q, k, Span(4000, 1)), exact, strict=True):
        torch.testing.assert_close(half, full.bfloat16(), rtol=0, atol=0)


def test_heads_of_odd_size_are_refused() -> None:
    with pytest.raises(UsageError, match="--d_head 5: --position rotary rotates pairs of channels; use an even one"):
        Rotary(ModelConfig(n_token=5, d_head=5, position="rotary"))
