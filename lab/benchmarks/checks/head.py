"""The head's loss in chunks against its definition."""

import torch

from lab.benchmarks.checks.errors import Errors, error
from txl.model.autocast import autocast
from txl.ops import linear_cross_entropy as head

CASE = (3000, 64, 1003)  # tokens, width, words


def head_errors(dtype: torch.dtype, device: str, *, same_weight: bool) -> Errors:
    """Of the losses and the gradients of their mean; products in `dtype`, the definition in float64."""
    L, E, V = CASE
    leaves = [
        torch.randn(shape, device=device).requires_grad_() for shape in ((L, E), (V, E), (V,))
    ]
    target_L = torch.randint(V, (L,), device=device)
    budget = head.BUDGET[device]
    head.BUDGET[device] = 256 * V
    try:
        with autocast(torch.device(device), dtype):
            nll_L = head.linear_cross_entropy(*leaves, target_L, same_weight=same_weight)
    finally:
        head.BUDGET[device] = budget
    found = [nll_L, *torch.autograd.grad(nll_L.mean(), leaves)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    logprob_LV = (exact[0] @ exact[1].T + exact[2]).log_softmax(-1)
    nll_L = -logprob_LV.gather(1, target_L[:, None])[:, 0]
    expected = [nll_L, *torch.autograd.grad(nll_L.mean(), exact)]
    return {
        name: error(x, y)
        for name, x, y in zip(("nll", "dx", "dw", "db"), found, expected, strict=True)
    }
