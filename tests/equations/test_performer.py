"""Random features: the estimate written out, its convergence to softmax, and its numerical range."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from txl import ModelConfig, Span
from txl.attention_rules.performer import (
    BLOCK,
    PerformerAttention,
    _Blocks,
    causal_ratio,
    orthogonal_normal,
)
from txl.positions.none import NoPosition

B, N, H = 2, 2, 4


def kernel_of(n_feature: int, d_head: int = H) -> tuple[PerformerAttention, Callable[..., Tensor]]:
    """The rule, and what it computes of queries, keys, values and a span."""
    config = ModelConfig(n_token=5, n_head=N, d_head=d_head, n_feature=n_feature, position="none")
    rule, pos = PerformerAttention(config), NoPosition(config)
    return rule, lambda q, k, v, span: rule(q, k, v, pos=pos, feats=v.new_empty(0), span=span)


@pytest.fixture(params=[False, True], ids=["asked", "not_asked"])
def _asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the device is asked for numbers; if not, blocks are read by halves."""
    if request.param:
        monkeypatch.setattr(_Blocks, "have_one_range", lambda blocks: False)


@pytest.mark.parametrize(("M", "T", "window"), [(0, 1, -1), (3, 4, -1), (3, 4, 1), (3, 4, 3)])
def test_the_rule_is_the_formula(M: int, T: int, window: int) -> None:
    """Choromanski et al. 2021, lemma 1: phi(x) = F^(-1/2) exp(-|x|^2 / 2) exp(omega . x) of x = H^(-1/4) q."""
    rule, attend = kernel_of(7)
    rule.double()
    q_BNTH, k_BNSH, v_BNSH = (torch.randn(B, N, L, H).double() for L in (T, M + T, M + T))
    ours = attend(q_BNTH, k_BNSH, v_BNSH, Span(M, T, window=window))

    def phi(x_H: Tensor) -> Tensor:
        x_H = x_H / H**0.25
        return torch.stack(
            [(omega_H @ x_H - x_H @ x_H / 2).exp() / 7**0.5 for omega_H in rule.omega_FH]
        )

    for b, n, t in ((b, n, t) for b in range(B) for n in range(N) for t in range(T)):
        seen = [s for s in range(M + t + 1) if window < 0 or M + t - s < window]
        weights = torch.stack([phi(q_BNTH[b, n, t]) @ phi(k_BNSH[b, n, s]) for s in seen])
        expected = (
            sum(w * v_BNSH[b, n, s] for w, s in zip(weights, seen, strict=True)) / weights.sum()
        )
        torch.testing.assert_close(ours[b, n, t], expected, rtol=0, atol=1e-12)


def definition(logx_BNTF: Tensor, logy_BNSF: Tensor, v_BNSH: Tensor, span: Span) -> Tensor:
    """The weights of all pairs, by their logarithms."""
    logw_BNTS = (logx_BNTF[..., :, None, :] + logy_BNSF[..., None, :, :]).logsumexp(-1)
    return logw_BNTS.masked_fill(~span.mask_TS(v_BNSH.device), -torch.inf).softmax(-1) @ v_BNSH


def with_gradients(attend: Callable[..., Tensor], leaves: list[Tensor], span: Span) -> list[Tensor]:
    out = attend(*leaves, span)
    upstream = torch.ones_like(out).cumsum(2) / out.shape[2]
    return [out, *torch.autograd.grad(out, leaves, upstream)]


@pytest.mark.usefixtures("_asked")
@pytest.mark.parametrize(
    ("M", "T", "window"),
    [(0, 1, -1), (0, 7, 4), (5, 1, 1), (150, 170, 200), (40, 2 * BLOCK, -1), (BLOCK, BLOCK + 1, 4)],
)
def test_blocks_equal_the_definition(M: int, T: int, window: int) -> None:
    span = Span(M, T, window=window)
    for size in (1, 100, 1e4):
        drawn = [torch.randn(1, N, L, E).double() for L, E in ((T, 5), (M + T, 5), (M + T, 3))]
        leaves = [(x * y).requires_grad_() for x, y in zip(drawn, (size, size, 1), strict=True)]
        full, fast = (with_gradients(attend, leaves, span) for attend in (definition, causal_ratio))
        torch.testing.assert_close(fast, full, rtol=0, atol=1e-10)


@pytest.mark.parametrize("growth", [57, 59, 400])
def test_keys_that_outweigh_those_before_them_are_read_to_the_precision_of_the_numbers(
    growth: float,
) -> None:
    """Near 58 the masked product is at the end of float32's range, beyond it halves take its place."""
    logx_BNTF, logy_BNSF, v_BNSH = (torch.randn(1, N, 200, E) for E in (8, 8, H))
    logy_BNSF[..., 70:, ::2] += growth - 6
    logx_BNTF[..., 1:, ::2] -= growth / 2
    leaves = [x.requires_grad_() for x in (logx_BNTF, logy_BNSF, v_BNSH)]
    fast = with_gradients(causal_ratio, leaves, Span(0, 200))
    full = with_gradients(
        definition, [x.detach().double().requires_grad_() for x in leaves], Span(0, 200)
    )
    for one, two in zip(fast, full, strict=True):
        # exponents of 400 have no more than 3e-5
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=2e-4)


@pytest.mark.usefixtures("_asked")
@pytest.mark.parametrize(("size", "M", "window"), [(1, 0, -1), (4, 3, -1), (6, 0, 5), (100, 0, -1)])
def test_a_later_key_does_not_move_earlier_outputs(size: float, M: int, window: int) -> None:
    """In float32, heads of 64: the last key of many large ones becomes 0, which outweighs them all."""
    _, attend = kernel_of(256, d_head=64)
    q_BNTH, k_BNSH, v_BNSH = (torch.randn(1, N, L, 64) for L in (16, M + 16, M + 16))
    other_BNSH, span = k_BNSH * size, Span(M, 16, window=window)
    other_BNSH[:, :, -1] = 0
    before, after = (attend(q_BNTH, k, v_BNSH, span) for k in (k_BNSH * size, other_BNSH))
    # exponents are rounded
    torch.testing.assert_close(after[:, :, :-1], before[:, :, :-1], rtol=0, atol=1e-3)
    if M == 0:
        torch.testing.assert_close(after[:, :, 0], v_BNSH[:, :, 0], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("window", [-1, 3])
def test_no_device_is_asked_for_a_number_and_what_is_compiled_is_one_graph(window: int) -> None:
    """Tensors on the meta device have no values: what would look at one raises."""
    span, leaves = (
        Span(3, 9, window=window),
        [torch.randn(1, N, L, 5).double() for L in (9, 12, 12)],
    )
    on_meta = [x.to("meta").requires_grad_() for x in leaves]
    assert [x.shape for x in with_gradients(causal_ratio, on_meta, span)[1:]] == [
        x.shape for x in leaves
    ]
    compiled = torch.compile(lambda: causal_ratio(*leaves, span), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(), causal_ratio(*leaves, span), rtol=0, atol=1e-12)


def test_keys_of_normal_size_are_read_at_one_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes longer is kept for keys that need it."""
    monkeypatch.delattr(_Blocks, "read_by_halves")
    _, attend = kernel_of(256, d_head=64)
    x_BNSH = torch.randn(1, N, 300, 64)
    k_BNSH = x_BNSH.clone()
    k_BNSH[:, :, 100::100] *= 9  # first keys of blocks, too light to matter
    attend(x_BNSH, k_BNSH, x_BNSH, Span(0, 300))
    with pytest.raises(AttributeError, match="read_by_halves"):
        attend(x_BNSH, x_BNSH * 9, x_BNSH, Span(0, 300))


def test_features_are_orthogonal_in_groups_and_normal_in_length() -> None:
    omega_FH = orthogonal_normal(2000 * 8 + 3, 8)
    assert omega_FH.shape == (16003, 8)
    for first in (0, 8, 16000):
        gram = omega_FH[first : first + 8] @ omega_FH[first : first + 8].mT
        torch.testing.assert_close(gram, gram.diagonal().diag(), rtol=0, atol=1e-4)
    torch.testing.assert_close(omega_FH.mean(0), torch.zeros(8), rtol=0, atol=0.04)
    torch.testing.assert_close(
        omega_FH.mT @ omega_FH / len(omega_FH), torch.eye(8), rtol=0, atol=0.05
    )
    # of the chi distribution with 8
    assert float(omega_FH.norm(dim=1).std()) == pytest.approx(0.695, abs=0.03)


@pytest.mark.parametrize("size", [1e-3, 30.0, 1e3])
def test_keys_of_any_size_give_means_of_values_and_finite_gradients(size: float) -> None:
    """The first coordinate of every value is 1, and so is that of every mean of them."""
    _, attend = kernel_of(16)
    leaves, v_BNSH = (
        [(torch.randn(1, N, 300, H) * size).requires_grad_() for _ in range(2)],
        torch.randn(1, N, 300, H),
    )
    v_BNSH[..., 0] = 1
    out = attend(*leaves, v_BNSH, Span(0, 300))
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), leaves))
    torch.testing.assert_close(out[..., 0], torch.ones_like(out[..., 0]), rtol=0, atol=1e-5)
    torch.testing.assert_close(out[:, :, 0], v_BNSH[:, :, 0], rtol=0, atol=1e-5)
    assert (out.detach().abs() <= v_BNSH.abs().cummax(-2).values + 1e-5).all()


def test_exponents_are_not_rounded_to_half_precision() -> None:
    (_, attend), operands = kernel_of(16), torch.randn(3, 1, N, 50, H)
    exact = attend(*operands, Span(0, 50))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attend(*operands, Span(0, 50)), exact)
