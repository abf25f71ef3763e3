"""Products by oneDNN are the linear map, values and gradients, and are taken where they are made for only."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from txl.ops import onednn
from txl.ops.linear import Linear, linear


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """On any processor and at any size; the inputs of the products that are taken."""
    products, plain = [], onednn.product
    monkeypatch.setattr(onednn, "AVAILABLE", True)
    monkeypatch.setattr(onednn, "PAYS", 1)
    monkeypatch.setattr(onednn, "TRANSPOSED_PAYS", 6)
    monkeypatch.setattr(onednn, "product", lambda x, *rest: products.append(x) or plain(x, *rest))
    return products


@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 1, 5), (1, 1)], ids=str)
@pytest.mark.parametrize("sizes", [(7, 5), (3, 8)], ids=["narrower", "wider"])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_the_linear_map(shape: tuple[int, ...], sizes: tuple[int, int], bias: bool) -> None:
    """Also the derivative of its gradients."""
    module = Linear(*sizes, bias=bias)
    x = torch.randn(*shape, sizes[0], requires_grad=True)
    weights = [*module.parameters()]
    doubled = [w.detach().double().requires_grad_() for w in weights]
    ours, theirs = module(x), F.linear(x.double(), *doubled)
    found, expected = [ours], [theirs]
    for out, parameters, values in ((ours, weights, found), (theirs, doubled, expected)):
        first = torch.autograd.grad(out.square().sum(), [x, *parameters], create_graph=True)
        values += first
        values += torch.autograd.grad(
            first[0].square().sum() + first[1].square().sum(), [x, *parameters]
        )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(
            a.double(), b.double(), rtol=1e-4, atol=1e-5 * float(b.detach().abs().max())
        )


def test_only_the_gradients_that_are_asked_for_are_computed(by_onednn: list[Tensor]) -> None:
    weight, x = torch.randn(5, 7, requires_grad=True), torch.randn(4, 7)
    linear(x, weight).sum().backward()
    assert len(by_onednn) == 2
    linear(x.requires_grad_(), weight.detach()).sum().backward()
    assert len(by_onednn) == 4


def test_all_else_is_multiplied_as_ever(
    by_onednn: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = torch.randn(4, 7), torch.randn(5, 7)
    linear(x.double(), weight.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16
    # as torch.backends.mkldnn.flags, which warns of other flags of its own
    torch._C._set_mkldnn_enabled(False)
    try:
        linear(x, weight)
    finally:
        torch._C._set_mkldnn_enabled(True)
    monkeypatch.setattr(onednn, "PAYS", 4 * 7 * 5 + 1)
    linear(x, weight)
    monkeypatch.setattr(onednn, "AVAILABLE", False)
    monkeypatch.setattr(onednn, "PAYS", 1)
    linear(x, weight)
    assert by_onednn == []
    monkeypatch.setattr(onednn, "AVAILABLE", True)
    linear(x, weight)
    assert len(by_onednn) == 1
