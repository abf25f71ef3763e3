"""Between the products of a layer: one kernel equals PyTorch's operators, by Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("triton", reason="Triton is published for Linux only", exc_type=ImportError)

from txl import ModelConfig
from txl.model.feed_forward import FeedForward
from txl.ops import layer_rows, triton_layer_rows
from txl.ops.dropout import Dropout
from txl.ops.layer_rows import add_norm, bias_relu
from txl.ops.numbers import as_multiplied
from txl.stacks.reversible import compute_in_chunks


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With products in float32, so that rounding hides nothing; more rows than programs."""
    monkeypatch.setattr(layer_rows, "on_gpu", lambda x: True)
    monkeypatch.setattr(layer_rows, "_is_half", lambda x: True)
    monkeypatch.setattr(triton_layer_rows, "PROGRAMS", 3)


def gradients(out: Tensor, inputs: list[Tensor], dout: Tensor) -> list[Tensor]:
    return [*torch.autograd.grad(out, inputs, dout.to(out.dtype))]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.double(), y.double(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("D", [41, 64])
def test_residual_and_norm_equal_their_definition(p: float, D: int) -> None:
    """Values and gradients, with the mask that was drawn: where the gradient of y is 0."""
    norm = nn.LayerNorm(D, eps=1e-3)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x, y = (torch.randn(2, 4, D, requires_grad=True) for _ in range(2))
    dout = torch.randn(2, 4, D)
    inputs = [x, y, *norm.parameters()]

    found = add_norm(x, y, Dropout(p), torch.add, norm)
    grads = gradients(found, inputs, dout)

    wide = [t.detach().double().requires_grad_() for t in inputs]
    mask = (grads[1] != 0).double() / (1 - p)
    expected = F.layer_norm(wide[0] + wide[1] * mask, (D,), wide[2], wide[3], eps=1e-3)
    assert_close([found, *grads], [expected, *gradients(expected, wide, dout)])


def test_both_copies_of_a_result_give_gradients() -> None:
    """Of the residual connection in float32 and of the products, which find theirs."""
    norm = nn.LayerNorm(8)
    x, y = torch.randn(2, 3, 8, requires_grad=True), torch.randn(2, 3, 8).half().requires_grad_()
    with torch.autocast("cpu", torch.float16):
        h = add_norm(x, y, Dropout(0.0), torch.add, norm)
        copy = as_multiplied(h)
    assert copy.dtype == torch.float16
    torch.testing.assert_close(copy.float(), h, rtol=1e-3, atol=1e-3)
    a, b = torch.randn(2, 2, 3, 8)
    found = torch.autograd.grad([h, copy], [x, norm.weight], [a, b.half()])
    plain = norm(x + y)
    expected = torch.autograd.grad(plain, [x, norm.weight], a + b)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_bias_relu_and_dropout_equal_their_definition(p: float) -> None:
    z, bias = torch.randn(7, 41, requires_grad=True), torch.randn(41, requires_grad=True)
    dout = torch.randn(7, 41)
    found = bias_relu(z + bias.detach(), bias, Dropout(p))
    wide = [t.detach().double().requires_grad_() for t in (z, bias)]
    relu = F.relu(wide[0] + wide[1])
    expected = relu * (found != 0).double() / (1 - p)
    assert_close(
        [found, *gradients(found, [z, bias], dout)],
        [expected, *gradients(expected, wide, dout)],
    )


def test_masks_follow_the_generator_and_evaluation_has_none() -> None:
    z, bias = torch.ones(50, 64), torch.zeros(64)

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return bias_relu(z, bias, Dropout(0.5))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    rows = drawn(3)
    assert not torch.equal(rows[0], rows[1])
    assert 0.45 < (rows == 0).double().mean() < 0.55
    assert torch.equal(bias_relu(z, bias, Dropout(0.5).eval()), z)


def test_chunks_draw_masks_of_their_own_and_keep_them_for_the_way_back() -> None:
    """Of the last weights the output is a linear function, whose gradient must give it back."""
    torch.manual_seed(0)
    ff = FeedForward(ModelConfig(n_token=5, d_model=8, d_inner=64), dropout=0.5).train()
    compute_in_chunks(ff, 3)
    ff.drop.seed = torch.tensor([7])
    out = ff(torch.ones(1, 6, 8))
    assert not torch.equal(out[:, :3], out[:, 3:])
    weight, bias = ff[3].weight, ff[3].bias
    (grad,) = torch.autograd.grad(out.sum(), weight)
    torch.testing.assert_close((grad * weight).sum() + 6 * bias.sum(), out.sum())
