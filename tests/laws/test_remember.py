"""A memory is a choice of the reading: the rule of each layer is exchanged, all other weights stay."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import (
    MEMORY_MODELS,
    SMALL,
    build,
    config_of,
    context_of,
    read,
    shape_of,
    without_gradient,
)
from txl import Context, MemoryTransformer, ModelConfig
from txl.config import UsageError
from txl.inference.frozen import Frozen
from txl.memory import MEMORIES
from txl.registry import reads
from txl.training.nats import Nats

AFTER = [name for name, shape in MEMORY_MODELS.items() if "norm" not in shape]
"""Those that differ in the memory alone."""
PAIRS = [(a, b) for a in ("fifo", "expire_span", "recurrent_tokens") for b in AFTER]


def settings_of(name: str) -> dict[str, Any]:
    """Of a memory of the list."""
    shape = shape_of(name)
    return {key: shape[key] for key in reads(MEMORIES[shape.get("memory", "fifo")]) & shape.keys()}


def memory_of(name: str) -> str:
    return config_of(name).memory


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_an_exchanged_memory_is_that_of_a_model_that_was_made_with_it(
    before: str, after: str, token_BT: Tensor
) -> None:
    """With the weights of the memory, which are named and have its device, dtype and mode."""
    model, made = build(before, **SMALL), build(after, **SMALL)
    context = context_of(after)
    settings = settings_of(after)
    for name in MEMORIES[memory_of(after)].when_added:
        settings[name] = getattr(made.config, name)
    added = model.remember(memory_of(after), **settings)
    names = [name for name, _ in made.named_parameters() if ".memory." in name]
    assert added == (names if memory_of(before) != memory_of(after) else [])
    assert all(p.dtype == torch.float64 for p in model.parameters())
    assert not any(layer.memory.training for layer in model.layers)
    assert model.config == made.config
    assert type(model.layers[0].attn.rule) is type(made.layers[0].attn.rule)
    model.load_state_dict(made.state_dict())
    expected, _ = read(made, token_BT, [5, 7], context)
    assert read(model, token_BT, [5, 7], context)[0].equal(expected)
    with torch.no_grad():
        found, _ = read(Frozen(model), token_BT, [5, 7], context)
    torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize("name", ["infini", "infini_delta", "knn", "neural", "neural_two_layers"])
def test_what_is_added_to_trained_weights_changes_nothing_and_learns(
    name: str, token_BT: Tensor
) -> None:
    model = build("plain", **SMALL)
    context = context_of(name, mem_len=3)
    expected, _ = read(model, token_BT, [4, 4, 4], context)
    other = copy.deepcopy(model)
    added = other.remember(memory_of(name), **settings_of(name))
    assert added
    assert other.config.memory_gate == "tanh"
    for setting, value in MEMORIES[memory_of(name)].when_added.items():
        assert getattr(other.config, setting) == value
    found, _ = read(other, token_BT, [4, 4, 4], context)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    loss_BT, *_ = Nats(other.train(), 0.0, 3)(token_BT, token_BT, None, context)
    loss_BT.mean().backward()
    assert not without_gradient(other)
    gates = [p for name, p in other.named_parameters() if name.endswith("gate_N")]
    assert all(gate.grad.abs().max() > 1e-6 for gate in gates)  # type: ignore[union-attr]
    half = copy.deepcopy(model)
    half.remember(memory_of(name), **settings_of(name), memory_gate="sigmoid")
    assert not torch.allclose(read(half, token_BT, [4, 4, 4], context)[0], expected)


def test_weights_of_the_memory_are_kept_with_other_settings(token_BT: Tensor) -> None:
    model = build("infini", **SMALL)
    before = model.layers[1].memory.gate_N.clone()
    assert model.remember(infini_update="delta") == []
    assert model.layers[1].memory.gate_N.equal(before)
    assert (model.config.infini_update, model.config.memory_gate) == ("delta", "sigmoid")
    assert model.remember("compressive", compression="mean") == []
    assert "infini_update" not in model.config.own
    assert model.remember("infini") == ["layers.0.memory.gate_N", "layers.1.memory.gate_N"]


def test_what_was_found_to_be_served_is_asked_anew(token_BT: Tensor) -> None:
    model, context = build("fifo", **SMALL), Context(tgt_len=6, mem_len=3, clamp_len=2)
    model(token_BT, None, context)
    model.remember("sinks", n_sink=3)
    assert model.layers[0].memory.n_sink == 3
    with pytest.raises(UsageError, match=r"^--clamp_len 2: --memory sinks works with"):
        model(token_BT, None, context)


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    model = build("fifo", **SMALL | {"position": "learned_absolute", "n_position": 9})
    rules = [layer.memory for layer in model.layers]
    for asked, said in (
        ({"memory": "paper"}, "--memory paper: no such memory"),
        ({"n_sink": 3}, "--n_sink 3: has no effect with --memory fifo, only with sinks"),
        ({"memory": "sinks", "n_sink": 0}, "--n_sink 0: must be at least 1"),
        ({"memory": "expire_span"}, "--position learned_absolute: it counts places from where"),
    ):
        with pytest.raises(UsageError, match=f"^{said}"):
            model.remember(**asked)
    with pytest.raises(TypeError, match="no memory has a setting 'n_position'"):
        model.remember("sinks", n_position=3)
    assert [layer.memory for layer in model.layers] == rules
    assert model.config.memory == "fifo"
    model.is_sharded = True
    with pytest.raises(ValueError, match="exchange its memory before"):
        model.remember("sinks")


def test_agents_too() -> None:
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "d_head": 4, "d_model": 8, "d_inner": 8}
    body = MemoryTransformer(ModelConfig(**sizes)).double()
    body.remember("sinks", n_sink=1)
    x_BTD = torch.randn(2, 9, 8).double()
    _, memory = body(x_BTD, None, Context(mem_len=3))
    assert memory.hidden.length == 4
    assert memory.hidden.layers[0][:, 0].equal(x_BTD[:, 0])
