"""Gates are the formulas of Parisotto et al. 2020, sec. 3.2, a number at a time."""

import pytest
import torch
from torch import Tensor

from txl import Context, ModelConfig, TransformerXL
from txl.registry import GATES
from txl.stacks.gates import Gate
from txl.training.config import TrainConfig
from txl.training.init import init_weights

D = 4
SHAPE = {
    "n_token": 9,
    "n_layer": 2,
    "n_head": 2,
    "d_head": 2,
    "d_model": D,
    "d_inner": 6,
    "pre_lnorm": True,
}


def row(matrix: Tensor, x_D: list[Tensor], i: int) -> Tensor:
    return sum((matrix[i, j] * x_D[j] for j in range(D)), torch.zeros((), dtype=matrix.dtype))


def by_loop(
    name: str, w: list[Tensor], b: Tensor | None, x: list[Tensor], y: list[Tensor]
) -> Tensor:
    """g(x, y) of a token. Matrices in this order: those of r, z and h times y, then those times x."""
    out, reset = [], []
    if name == "gru":
        reset = [torch.sigmoid(row(w[0], y, i) + row(w[3], x, i)) * x[i] for i in range(D)]
    for i in range(D):
        if name == "input":
            out.append(torch.sigmoid(row(w[0], x, i)) * x[i] + y[i])
        elif name == "output":
            out.append(x[i] + torch.sigmoid(row(w[0], x, i) - b[i]) * y[i])
        elif name == "highway":
            share = torch.sigmoid(row(w[0], x, i) + b[i])
            out.append(share * x[i] + (1 - share) * y[i])
        elif name == "sigmoid_tanh":
            out.append(x[i] + torch.sigmoid(row(w[0], y, i) - b[i]) * torch.tanh(row(w[1], y, i)))
        else:
            z = torch.sigmoid(row(w[1], y, i) + row(w[4], x, i) - b[i])
            out.append((1 - z) * x[i] + z * torch.tanh(row(w[2], y, i) + row(w[5], reset, i)))
    return torch.stack(out)


@pytest.mark.parametrize("name", GATES)
def test_a_gate_is_its_formula(name: str) -> None:
    gate = GATES[name](ModelConfig(**SHAPE, gate=name)).double()
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter.normal_()
    x_BTD, y_BTD = (torch.randn(2, 3, D, dtype=torch.float64, requires_grad=True) for _ in range(2))
    after_relu_BTD = y_BTD * (y_BTD > 0)
    w = [part for net in gate.nets for part in net.weight.split(D)]
    by_token = [
        by_loop(name, w, getattr(gate, "b_D", None), [*x], [*y])
        for x, y in zip(x_BTD.view(-1, D), after_relu_BTD.view(-1, D), strict=True)
    ]
    sources = [x_BTD, y_BTD, *gate.parameters()]
    upstream = torch.randn(6, D, dtype=torch.float64)
    ours, theirs = gate(x_BTD, y_BTD).view(-1, D), torch.stack(by_token)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad(out, sources, upstream) for out in (ours, theirs)]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)


def test_gates_stand_on_a_path_that_nothing_else_changes() -> None:
    """The identity-map reordering: no LayerNorm on the stream itself."""
    model = TransformerXL(ModelConfig(**SHAPE, gate="gru")).double().eval()
    gates = [module for module in model.modules() if isinstance(module, Gate)]
    assert len(gates) == 2 * len(model.layers)
    for gate in gates:
        gate.register_forward_hook(lambda module, inputs, output: inputs[0])
    h_BTD = torch.randn(2, 3, D, dtype=torch.float64)
    assert torch.equal(model.read(h_BTD, None, Context()).hidden_BTD, h_BTD)


def test_biases_begin_as_told() -> None:
    model = TransformerXL(ModelConfig(**SHAPE, gate="gru", gate_bias=0.5))
    init_weights(model, TrainConfig())
    biases = [p for name, p in model.named_parameters() if name.endswith("gate.b_D")]
    assert len(biases) == 2 * len(model.layers)
    assert all((bias == 0.5).all() for bias in biases)
