"""Random features: the estimate written out, its convergence to softmax, and its numerical range."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from txl import ModelConfig, Span
from txl.kernels.performer import BLOCK, PerformerKernel, causal_ratio, orthogonal_normal
from txl.positions import POSITION_ENCODINGS, PositionEncoding

B, N, H = 2, 2, 4


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POSITION_ENCODINGS, "toy_none", PositionEncoding)


def kernel_of(n_feature: int, d_head: int = H) -> tuple[PerformerKernel, PositionEncoding]:
    config = ModelConfig(n_token=5, n_head=N, d_head=d_head, n_feature=n_feature, position="toy_none")
    return PerformerKernel(config), PositionEncoding(config)


@pytest.mark.parametrize(("M", "T"), [(0, 1), (3, 4)])
@pytest.mark.parametrize("window", [-1, 1, 3])
def test_the_rule_is_the_formula(M: int, T: int, window: int) -> None:
    """Choromanski et al. 2021, lemma 1: phi(x) = F^(-1/2) exp(-|x|^2 / 2) exp(omega . x) of x = H^(-1/4) q."""
    kernel, pos = kernel_of(7)
    kernel.double()
    q_BNTH, k_BNSH, v_BNSH = (torch.randn(B, N, L, H).double() for L in (T, M + T, M + T))
    ours = kernel(q_BNTH, k_BNSH, v_BNSH, pos=pos, feats=q_BNTH.new_empty(0), span=Span(M, T, window=window))

    def phi(x_H: Tensor) -> Tensor:
        x_H = x_H / H**0.25
        return torch.stack([(omega_H @ x_H - x_H @ x_H / 2).exp() / 7**0.5 for omega_H in kernel.omega_FH])

    for b in range(B):
        for n in range(N):
            for t in range(T):
                seen = [s for s in range(M + t + 1) if window < 0 or M + t - s < window]
                weights = torch.stack([phi(q_BNTH[b, n, t]) @ phi(k_BNSH[b, n, s]) for s in seen])
                expected = sum(w * v_BNSH[b, n, s] for w, s in zip(weights, seen, strict=True)) / weights.sum()
                torch.testing.assert_close(ours[b, n, t], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("M", "T"), [(0, 1), (0, 7), (5, 1), (150, 170), (40, 2 * BLOCK), (BLOCK, BLOCK + 1)])
@pytest.mark.parametrize("window", [-1, 1, 4, 200])
def test_blocks_equal_the_masked_product(M: int, T: int, window: int) -> None:
    span = Span(M, T, window=window)
    leaves = [torch.randn(B, N, L, E).double().requires_grad_() for L, E in ((T, 5), (M + T, 5), (M + T, H))]
    logx_BNTF, logy_BNSF, v_BNSH = leaves
    w_BNTS = (logx_BNTF.exp() @ logy_BNSF.exp().mT) * span.mask_TS(logx_BNTF.device)
    full = w_BNTS @ v_BNSH / w_BNTS.sum(-1, keepdim=True)
    fast = causal_ratio(*leaves, span)
    torch.testing.assert_close(fast, full, rtol=0, atol=1e-12)
    upstream = torch.randn_like(full)
    for one, two in zip(*(torch.autograd.grad(out, leaves, upstream) for out in (fast, full)), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-11)


def test_features_are_orthogonal_in_groups_and_normal_in_length() -> None:
    omega_FH = orthogonal_normal(2000 * 8 + 3, 8)
    assert omega_FH.shape == (16003, 8)
    for first in (0, 8, 16000):
        group = omega_FH[first : first + 8]
        gram = group @ group.mT
        torch.testing.assert_close(gram, gram.diagonal().diag(), rtol=0, atol=1e-4)
    torch.testing.assert_close(omega_FH.mean(0), torch.zeros(8), rtol=0, atol=0.04)
    torch.testing.assert_close(omega_FH.mT @ omega_FH / len(omega_FH), torch.eye(8), rtol=0, atol=0.05)
    assert float(omega_FH.norm(dim=1).std()) == pytest.approx(0.695, abs=0.03)  # of the chi distribution with 8


def test_the_estimate_is_unbiased() -> None:
    """E[phi(x) . phi(y)] = exp(x . y), the lemma; the features of one kernel are one draw of many."""
    x_H, y_H = torch.randn(2, 4).double() * 0.5
    omega_FH = orthogonal_normal(200_000, 4).double()
    mean = ((omega_FH @ (x_H + y_H)) - (x_H @ x_H + y_H @ y_H) / 2).exp().mean()
    assert float(mean) == pytest.approx(math.exp(x_H @ y_H), rel=0.01)


def test_more_features_come_nearer_to_softmax() -> None:
    """The error falls with the root of their number, once that covers the variance, which grows with exp(|x + y|^2)."""
    q_BNSH, k_BNSH, v_BNSH = torch.randn(3, 1, 4, 200, 16).double()
    q_BNSH, k_BNSH = q_BNSH / 2, k_BNSH / 2
    span = Span(0, 200)
    logit_BNTS = (q_BNSH @ k_BNSH.mT / 4).masked_fill(~span.mask_TS(q_BNSH.device), -torch.inf)
    exact = logit_BNTS.softmax(-1) @ v_BNSH

    def error(n_feature: int) -> float:
        squares = []
        for _ in range(5):
            kernel, pos = kernel_of(n_feature, d_head=16)
            ours = kernel(q_BNSH, k_BNSH, v_BNSH, pos=pos, feats=q_BNSH.new_empty(0), span=span)
            squares.append((ours - exact).square().mean())
        return float(torch.stack(squares).mean().sqrt())

    errors = [error(n_feature) for n_feature in (16, 64, 256, 1024, 4096)]
    assert all(b < 0.65 * a for a, b in pairwise(errors)), errors
    assert errors[-1] < 0.1 * float(exact.std())


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e3])
def test_keys_of_any_size_give_finite_numbers_and_gradients(size: float) -> None:
    kernel, pos = kernel_of(16)
    leaves = [(torch.randn(1, N, 300, H) * size).requires_grad_() for _ in range(2)]
    v_BNSH = torch.randn(1, N, 300, H)
    out = kernel(*leaves, v_BNSH, pos=pos, feats=v_BNSH.new_empty(0), span=Span(0, 300))
    out.sum().backward()
    assert out.isfinite().all()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)
    assert float(out.detach().abs().max()) <= float(v_BNSH.abs().max()) * 1.001


def test_exponents_are_not_rounded_to_half_precision() -> None:
    kernel, pos = kernel_of(16)
    q_BNSH, k_BNSH, v_BNSH = torch.randn(3, 1, N, 50, H)
    exact = kernel(q_BNSH, k_BNSH, v_BNSH, pos=pos, feats=v_BNSH.new_empty(0), span=Span(0, 50))
    with torch.autocast("cpu", torch.bfloat16):
        under = kernel(q_BNSH, k_BNSH, v_BNSH, pos=pos, feats=v_BNSH.new_empty(0), span=Span(0, 50))
    torch.testing.assert_close(under, exact, rtol=0, atol=0)
