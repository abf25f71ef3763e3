"""The code paths of a GPU, on a CPU: the same losses, memories and gradients as the plain ones."""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is published for Linux only", exc_type=ImportError)

from tests.laws.conftest import SIZES
from txl import Context, ModelConfig, TransformerXL
from txl.model import attention, layer, memory
from txl.ops import cast, dropout, layer_rows, linear_cross_entropy, lookup
from txl.training.nats import Nats

ASK = (attention, layer, memory, cast, dropout, layer_rows, linear_cross_entropy, lookup)
"""Modules that ask whether a tensor is on a GPU."""
MODELS: dict[str, dict[str, Any]] = {
    "paper": {},
    "untied": {"untie_r": True},
    "pre_lnorm": {"pre_lnorm": True},
    "biases": {"qkv_bias": True, "o_bias": True, "ff_bias": False},
    "rms": {"norm": "rms", "qk_norm": True},
    "grouped": {"n_kv_head": 1},
    "gelu_gated": {"activation": "gelu", "gate": "gru", "pre_lnorm": True},
    "last_layer_learns": {},
    "rotary": {"position": "rotary"},
    "learned": {"position": "learned_absolute", "n_position": 20},
    "compressive": {"memory": "compressive", "own": {"compress_rate": 2}},
    "sinks": {"memory": "sinks", "own": {"n_sink": 2}},
    "infini": {"memory": "infini"},
    "same": {"recurrence": "same"},
    "recompute": {},
    "ext_len": {},
}


def losses_memory_and_gradients(model: TransformerXL, context: Context) -> list[Tensor]:
    """Of three segments, each with a gradient."""
    draw = torch.Generator().manual_seed(1)
    found: list[Tensor] = []
    nats = Nats(model, label_smoothing=0.0)
    remembered = None
    for _ in range(3):
        ids = torch.randint(0, model.config.n_token, (2, 2, context.tgt_len), generator=draw)
        loss_BT, _, remembered, _ = nats(*ids, remembered, context)
        loss_BT.mean().backward()
        found += [loss_BT.detach(), *(state.hidden_BMD.double() for state in remembered.states)]
    return [*found, *(p.grad for p in model.parameters() if p.requires_grad)]


def model_of(name: str, dtype: torch.dtype) -> TransformerXL:
    torch.manual_seed(0)
    model = TransformerXL(ModelConfig(**SIZES | {"cutoffs": (10, 30)} | MODELS[name])).to(dtype)
    for p in model.parameters():
        torch.nn.init.normal_(p, 0.0, 0.3)
    for one in model.layers:
        one.recompute = name == "recompute"
    if name == "last_layer_learns":
        model.requires_grad_(False)
        model.layers[-1].requires_grad_(True)
    return model


def context_of(name: str) -> Context:
    more = {"ext_len": {"ext_len": 2}, "compressive": {"compressed_len": 4}}
    return Context(tgt_len=5, mem_len=7, **more.get(name, {}))


def both(monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype) -> Any:
    """By the plain paths, then by those of a GPU."""
    context = context_of(name)
    plain = losses_memory_and_gradients(model_of(name, dtype), context)
    for module in ASK:
        monkeypatch.setattr(module, "on_gpu", lambda x: True)
    return plain, losses_memory_and_gradients(model_of(name, dtype), context)


@pytest.mark.parametrize("name", MODELS)
def test_paths_of_a_gpu_are_exact(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for x, y in zip(*both(monkeypatch, name, torch.float64), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
def test_paths_of_a_gpu_in_bfloat16_differ_by_rounding(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Here the weights are cast together, and kernels run between products."""
    with torch.autocast("cpu", torch.bfloat16):
        plain, found = both(monkeypatch, name, torch.float32)
    exact = losses_memory_and_gradients(model_of(name, torch.float32).double(), context_of(name))
    for x, y, z in zip(plain, found, exact, strict=True):
        assert x.dtype == y.dtype
        scale = z.norm() + 0.1  # of a bias of keys the gradient is nothing but rounding
        assert (y - z).norm() / scale < 2 * (x - z).norm() / scale + 0.01


def test_a_memory_in_half_precision_is_read_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a training is resumed elsewhere with --dtype float32."""
    with monkeypatch.context() as on_gpu:
        for module in ASK:
            on_gpu.setattr(module, "on_gpu", lambda x: True)
        for name in ("paper", "rotary"):
            model = model_of(name, torch.float32)
            ids = torch.randint(0, 30, (2, 5))
            with torch.autocast("cpu", torch.bfloat16):
                _, remembered = model.nll(ids, ids, None, context_of(name))
            assert remembered.states[0].hidden_BMD.dtype == torch.bfloat16
            again, _ = model.nll(ids, ids, remembered, context_of(name))
            on_gpu.undo()
            plain, _ = model.nll(ids, ids, remembered, context_of(name))
            torch.testing.assert_close(again, plain)
            for module in ASK:
                on_gpu.setattr(module, "on_gpu", lambda x: True)
