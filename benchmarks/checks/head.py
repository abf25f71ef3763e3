"""The loss without the logits against its definition."""

import torch

from benchmarks.checks.errors import Errors, error, poisoned
from txl.ops import linear_cross_entropy as op
from txl.ops.linear_cross_entropy import naive

WIDTH = 410  # rows that do not begin at multiples of 16 bytes
GROUPS = {  # tokens and words of each cluster; on a GPU several tiles of both
    "cuda": ([9000, 300, 0, 40], [20_000, 20_000, 160_000, 67_735]),
    "cpu": ([60, 7, 0, 3], [50, 30, 40, 20]),
}
NAMES = ("nats", "dhidden", "dweight", "dbias", "dmore weight", "dmore bias")


def head_errors(dtype: torch.dtype, device: str) -> Errors:
    """Of the nats and all gradients, tokens of different weights, as train.py asks for it: under autocast."""
    lengths, sizes = GROUPS[device]
    n_word = [size + 3 * (i == 0) for i, size in enumerate(sizes)]
    parts = [torch.randint(n, (length,), device=device) for n, length in zip(n_word, lengths, strict=True)]
    shapes = [(sum(lengths), WIDTH), (sum(sizes), WIDTH), (sum(sizes),), (3, WIDTH), (3,)]
    leaves = [torch.randn(shape, device=device) * (1.0 if i == 0 else 0.05) for i, shape in enumerate(shapes)]
    target_L, weight_L = torch.cat(parts), torch.randn(sum(lengths), device=device)
    ours, exact = ([x.to(kind).requires_grad_() for x in leaves] for kind in (torch.float32, torch.float64))
    with poisoned():
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            nll_L = op.grouped_linear_cross_entropy(*ours[:3], target_L, lengths, sizes, *ours[3:])
        found = [nll_L, *torch.autograd.grad(nll_L, ours, weight_L)]
    nll_L = naive.grouped_linear_cross_entropy(*exact[:3], target_L, lengths, sizes, *exact[3:])
    expected = [nll_L, *torch.autograd.grad(nll_L, exact, weight_L.double())]
    return {name: error(x, y) for name, x, y in zip(NAMES, found, expected, strict=True)}
