"""What ours is measured against computes the same thing: otherwise the comparison says nothing."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from benchmarks.attention import Case, inputs, ways
from txl.ops.rel_attention.naive import naive

CASES = [Case(2, 3, 5, 7, 6), Case(1, 2, 8, 13, 0), Case(3, 1, 4, 1, 11), Case(1, 2, 3, 5, 19)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_time_first_formulation_is_relative_attention(case: Case) -> None:
    args = inputs(case, torch.device("cpu"), torch.float64)
    way = ways(case, args, None)["original"]()
    expected, dout_BNTH = naive(*args, scale=case.H**-0.5), torch.randn(case.B, case.N, case.T, case.H).double()
    torch.testing.assert_close(way.call(), expected, atol=1e-12, rtol=0)
    theirs = torch.autograd.grad(way.call(), way.leaves, dout_BNTH)
    ours = torch.autograd.grad(expected, args, dout_BNTH)
    for their, our in zip(_batch_first(theirs), ours, strict=True):
        torch.testing.assert_close(their.double(), our.double(), atol=1e-6, rtol=1e-6)


def _batch_first(grads: tuple[Tensor, ...]) -> Iterator[Tensor]:
    for i, grad in enumerate(grads):
        yield grad.permute(1, 2, 0, 3) if i < 3 else grad
