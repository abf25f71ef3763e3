"""Queries, keys and values in two products, against three linear layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from txl.ops.projections import project_with_memory, side_by_side

B, T, M, D, E = 2, 3, 4, 5, 6


def weights(*, are_neighbours: bool, has_bias: bool) -> list[Tensor | None]:
    """q, k and v: weight and bias."""
    flat_FD = torch.randn(3 * E, D).double()
    flat_F = torch.randn(3 * E).double()
    found: list[Tensor | None] = []
    for weight_ED, bias_E in zip(flat_FD.chunk(3), flat_F.chunk(3), strict=True):
        if not are_neighbours:
            weight_ED, bias_E = weight_ED.clone(), bias_E.clone()
        found += [weight_ED.requires_grad_(), bias_E.requires_grad_() if has_bias else None]
    return found


class Neighbours(torch.autograd.Function):
    """Keys and values as they are; their gradients lie beside each other, as those of attention."""

    @staticmethod
    def forward(ctx: object, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k.clone(), v.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return torch.cat(grads, -1).chunk(2, -1)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("are_neighbours", [False, True])
@pytest.mark.parametrize("memory_learns", [False, True])
def test_two_products_are_three(has_bias: bool, are_neighbours: bool, memory_learns: bool) -> None:
    given = weights(are_neighbours=are_neighbours, has_bias=has_bias)
    x_BTD = torch.randn(B, T, D).double().requires_grad_()
    mem_BMD = torch.randn(B, M, D).double().requires_grad_(memory_learns)
    leaves = [x for x in (x_BTD, mem_BMD, *given) if x is not None and x.requires_grad]
    q, k, v = given[:2], given[2:4], given[4:]

    expected = [F.linear(x_BTD, *q)]
    expected += [F.linear(torch.cat([mem_BMD, x_BTD], 1), *operands) for operands in (k, v)]
    found = [*project_with_memory(x_BTD, mem_BMD, tuple(q), tuple(k), tuple(v))]
    if are_neighbours:
        found[1:] = Neighbours.apply(*found[1:])
    torch.testing.assert_close(found, expected)
    grads = [torch.randn_like(x) for x in expected]
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, grads), torch.autograd.grad(expected, leaves, grads)
    )


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_neighbours_are_joined_without_a_copy(dim: int) -> None:
    whole = torch.randn(4, 6, 8)
    first, second = whole.chunk(2, dim)
    joined = side_by_side(first, second, dim)
    assert joined.data_ptr() == whole.data_ptr()
    torch.testing.assert_close(joined, whole)
    for pair in ((second, first), (first, first), (first, second.clone())):
        torch.testing.assert_close(side_by_side(*pair, dim), torch.cat(pair, dim))
