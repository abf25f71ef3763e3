"""The parts that a configuration names, put together: the model knows them by their interfaces."""

from typing import Any

from torch import nn

from txl.config import ModelConfig, require
from txl.model.feed_forward import FeedForward
from txl.model.layer import Layer, run_layers
from txl.model.refusals import require_works
from txl.model.rule import MemoryRule, Run
from txl.registry import ATTENTION_RULES, GATES, MEMORIES, POSITIONS, STACKS


def build_layers(config: ModelConfig, *, dropout: float, dropatt: float) -> Any:
    """All layers of a model, an `nn.ModuleList`.

    Raises `UsageError` if parts do not fit together.
    """
    encodings = build_position_encodings(config, dropout=dropout)
    layers = []
    for i, pos in enumerate(encodings):
        layers.append(build_layer(config, pos, index=i, dropout=dropout, dropatt=dropatt))
    return nn.ModuleList(layers)


def build_layer(
    config: ModelConfig, pos: Any, *, index: int, dropout: float, dropatt: float
) -> Layer:
    """A layer, counted from 0, with its position encoding."""
    rule = ATTENTION_RULES[config.attention].of_model(config, dropatt=dropatt)
    attn = pos.attention_class()(config, pos, rule)
    memory = build_memory_rule(config, index)
    require(
        memory.traits.keeps_places or not pos.places_hidden_states(),
        f"--position {config.position}: it counts places from where the memory begins, and with"
        f" --memory {config.memory} each row begins elsewhere; use an encoding of distances, such"
        f" as {ModelConfig.position}",
    )
    return pos.layer_class()(
        config,
        attn=attn,
        memory=memory,
        ff=FeedForward(config, dropout=dropout),
        attn_gate=build_gate(config),
        ff_gate=build_gate(config),
        dropout=dropout,
    )


def build_position_encodings(config: ModelConfig, *, dropout: float = 0.0) -> list[Any]:
    """An encoding for each layer; parameters in the class's `shared` are the same object in all,
    unless `untie_r`.

    Raises:
        UsageError: if there is no such encoding, or it does not support these sizes.
    """
    cls = POSITIONS[config.position]
    first, *rest = (cls(config, dropout=dropout) for _ in range(config.n_layer))
    for layer, encoding in enumerate(rest, start=1):
        encoding.layer = layer
        for name in () if config.untie_r else cls.shared:
            setattr(encoding, name, getattr(first, name))
    return [first, *rest]


def build_memory_rule(config: ModelConfig, layer: int) -> MemoryRule:
    """The rule of a layer, counted from 0. Raises `UsageError` if there is none of this name, or it
    does not work with the model."""
    require_works(config.memory, config)
    return MEMORIES[config.memory].of_layer(config, layer)(config)


def build_gate(config: ModelConfig) -> nn.Module | None:
    """The gate that a configuration names; None: the residual sum."""
    if config.gate == "none":
        return None
    return GATES[config.gate](config)


def attends_by_softmax(config: ModelConfig) -> bool:
    """True if the weights of attention are the softmax of the logits of all visible keys."""
    return getattr(ATTENTION_RULES[config.attention], "is_softmax", False)


def run_of(config: ModelConfig) -> Run:
    """How the layers read a segment."""
    if config.reversible:
        return STACKS["reversible"]
    return MEMORIES[config.memory].run or run_layers
