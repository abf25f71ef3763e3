"""What a layer does between its products in one kernel, against its definition in float64."""

import torch
import torch.nn.functional as F
from torch import nn

from lab.benchmarks.checks.errors import Errors, error
from txl.ops.dropout import Dropout
from txl.ops.layer_rows import add_norm, bias_relu


def norm_errors(dtype: torch.dtype, device: str, width: int, p: float) -> Errors:
    """Of LayerNorm(x + dropout(y)), its copy and four gradients. The mask is where y has a gradient."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(width, device=device)
    x = torch.randn(37, 5, width, device=device, requires_grad=True)
    y = torch.randn(37, 5, width, device=device).to(dtype).requires_grad_()
    inputs = [x, y, *norm.parameters()]
    grads = [torch.randn_like(x), torch.randn_like(x).to(dtype)]
    h = add_norm(x, y, Dropout(p), torch.add, norm)
    found = [h, h.multiplied, *torch.autograd.grad([h, h.multiplied], inputs, grads)]
    wide = [t.detach().double().requires_grad_() for t in inputs]
    mask = (found[3] != 0).double() / (1 - p)
    exact = F.layer_norm(wide[0] + wide[1] * mask, (width,), wide[2], wide[3], norm.eps)
    expected = torch.autograd.grad(exact, wide, grads[0].double() + grads[1].double())
    names = ("h", "copy", "dx", "dy", "dweight", "dbias")
    both = zip(found, [exact, exact, *expected], strict=True)
    errors = {name: error(*pair) for name, pair in zip(names, both, strict=True)}
    share = float((mask == 0).double().mean())
    return errors | {"share dropped": float(abs(share - p) > 0.05)}


def relu_errors(dtype: torch.dtype, device: str, width: int, p: float) -> Errors:
    """Of dropout(max(z + b, 0)), b added before, and two gradients. The mask is where the result is not 0."""
    torch.manual_seed(0)
    z = torch.randn(185, width, device=device).to(dtype).requires_grad_()
    bias = torch.randn(width, device=device, requires_grad=True)
    grad = torch.randn_like(z)
    out = bias_relu(z + bias.detach().to(dtype), bias, Dropout(p))
    found = [out, *torch.autograd.grad(out, [z, bias], grad)]
    wide = [t.detach().double().requires_grad_() for t in (z, bias.to(dtype))]
    exact = F.relu(wide[0] + wide[1]) * (out != 0).double() / (1 - p)
    expected = [exact, *torch.autograd.grad(exact, wide, grad.double())]
    names = ("out", "dz", "dbias")
    return {
        name: error(*pair)
        for name, pair in zip(names, zip(found, expected, strict=True), strict=True)
    }
