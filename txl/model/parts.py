"""The parts that a configuration names, put together: the model knows them by their interfaces.
And the settings that they do not work with.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from txl.config import Context, ModelConfig, UsageError, require
from txl.model.feed_forward import FeedForward
from txl.model.layer import Layer, run_layers
from txl.model.rule import MemoryRule, Run
from txl.registry import (
    ATTENTION_RULES,
    GATES,
    LAYERS,
    MEMORIES,
    NORMS,
    POSITIONS,
    STACKS,
    names_of_settings,
    reads,
)


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
    require(
        config.n_key_head == config.n_head or attends_by_softmax(config),
        f"--n_kv_head {config.n_kv_head}: --attention {config.attention} has as many heads of keys"
        " as of queries; leave it out, or use --attention softmax",
    )
    rule = ATTENTION_RULES[config.attention].of_model(config, dropatt=dropatt)
    attn = pos.attention_class()(config, pos, rule)
    memory = build_memory_rule(config, index)
    return layer_class(config, pos)(
        attn=attn,
        memory=memory,
        attn_norm=build_norm(config),
        ff=FeedForward(config, dropout=dropout),
        ff_norm=build_norm(config),
        pre_lnorm=config.pre_lnorm,
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
    rule = MEMORIES[config.memory].of_layer(config, layer)
    require(
        rule.traits.keeps_places or not POSITIONS[config.position].places_hidden_states(),
        f"--position {config.position}: it counts places from where the memory begins, and with"
        f" --memory {config.memory} each row begins elsewhere; use an encoding of distances, such"
        f" as {ModelConfig.position}",
    )
    return rule(config)


def remember(model: Any, memory: str | None = None, **settings: Any) -> list[str]:
    """Exchange what the layers of a model remember, as in `model.remember("sinks", n_sink=4)`: a
    memory is a choice of the reading. Other weights stay as they are.

    Weights that the memory has of its own are kept where it had them before. Others are made, with
    device and dtype of the model, as its constructor makes them, and are to be trained.

    Args:
        memory: its name; None: the one that there is, with other settings.
        settings: of the memory; the others are at their defaults, or as they were, or where it is
            added to a model without it, at `MemoryRule.when_added`.
    Returns:
        The names of the parameters that are new.
    Raises:
        UsageError: if there is no such memory, it does not read a setting, or it does not work with
            the model.
        TypeError: if no memory has a setting of this name.
        ValueError: if the model is sharded; exchange its memory before.
    """
    if model.is_sharded:
        raise ValueError("the model is sharded: exchange its memory before it is")
    config = with_memory(model.config, memory or model.config.memory, settings)
    rules = [build_memory_rule(config, i) for i in range(config.n_layer)]
    before = MEMORIES[model.config.memory].traits.weighs_keys
    is_weighed_else = MEMORIES[config.memory].traits.weighs_keys != before
    added = []
    for i, (layer, rule) in enumerate(zip(model.layers, rules, strict=True)):
        weight = layer.attn_norm.weight
        rule.to(weight.device, weight.dtype).train(layer.training)
        if _has_same_weights(rule, layer.memory):
            rule.load_state_dict(layer.memory.state_dict())
        else:
            added += [f"layers.{i}.memory.{name}" for name, _ in rule.named_parameters()]
        layer.memory = rule
        if is_weighed_else:
            layer.attn.rule = _attention_rule_like(layer.attn.rule, config)
    model.config = config
    model.run = run_of(config)
    model._served = set()
    return added


def with_memory(config: ModelConfig, memory: str, settings: Mapping[str, Any]) -> ModelConfig:
    """The configuration with another memory, see `remember`."""
    rule = MEMORIES[memory]
    for name, value in settings.items():
        if name in reads(rule):
            continue
        who = " or ".join(MEMORIES.owners(name))
        if not who:
            raise TypeError(f"no memory has a setting {name!r}")
        raise UsageError(
            f"--{name} {value}: has no effect with --memory {memory}, only with {who}; leave it out"
        )
    own = dict(config.own)
    if memory != config.memory:
        for name in names_of_settings((MEMORIES,)):
            own.pop(name, None)
        own |= rule.when_added
    return replace(config, memory=memory, own={**own, **settings})


def _has_same_weights(rule: nn.Module, other: nn.Module) -> bool:
    """True if weights of the one are weights of the other."""
    if type(rule) is not type(other):
        return False
    shapes = []
    for module in (rule, other):
        shapes.append({name: x.shape for name, x in module.state_dict().items()})
    return shapes[0] == shapes[1]


def _attention_rule_like(rule: Any, config: ModelConfig) -> Any:
    """The attention rule for another memory, which computes as `rule` does."""
    other = ATTENTION_RULES[config.attention].of_model(config, dropatt=rule.drop.p)
    other.impl = rule.impl
    other.keep_mib = rule.keep_mib
    return other.train(rule.training)


def layer_class(config: ModelConfig, pos: Any) -> type[Layer]:
    """The layer that a configuration and its encoding ask for."""
    of_encoding = pos.layer_class()
    if not config.parallel:
        return of_encoding
    require(
        of_encoding is Layer,
        f"--parallel: --position {config.position} adds to the input of each layer; use another"
        " encoding",
    )
    return LAYERS["parallel"]


def build_norm(config: ModelConfig) -> nn.Module:
    """A norm of the hidden states."""
    return NORMS[config.norm](config.d_model, eps=config.layer_norm_epsilon)


def build_final_norm(config: ModelConfig) -> nn.Module:
    """The norm of the last layer's output; the paper has none."""
    if config.final_norm:
        return build_norm(config)
    return nn.Identity()


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


def require_scoreless(config: ModelConfig) -> None:
    """Raise `UsageError` if the position encoding needs the scores of all pairs."""
    if not POSITIONS[config.position].needs_scores():
        return
    usable = sorted(name for name, cls in POSITIONS.items() if not cls.needs_scores())
    if usable:
        others = f", or --attention {config.attention} with --position {' or '.join(usable)}"
    else:
        others = ""
    raise UsageError(
        f"--attention {config.attention} --position {config.position}: the rule does not compute"
        f" the scores of all pairs, which this encoding needs; use --attention softmax{others}"
    )


def require_no_dropatt(config: ModelConfig, dropatt: float) -> None:
    """Raise `UsageError` on dropout of attention probabilities, which the rule does not compute."""
    require(
        dropatt == 0,
        f"--dropatt {dropatt} --attention {config.attention}: this rule has no matrix of"
        " probabilities to drop from; leave --dropatt out, or use --attention softmax",
    )


def require_context(model: Any, context: Context, *, has_documents: bool) -> None:
    """Raise `UsageError` if a model cannot read text in this context, or texts of documents."""
    require_serves(model.layers[0].attn.pos, context)
    require_works(model.config.memory, context)
    if has_documents:
        require_masks_documents(model.config)


def require_serves(encoding: Any, context: Context, *, can_change: bool = True) -> None:
    """Raise `UsageError` if the encoding does not support this context.

    Args:
        can_change: another encoding can be chosen, as for a new model; False: the model is trained.
    """
    if encoding.clamps or context.clamp_len <= 0:
        return
    change = ""
    if can_change:
        names = []
        for name, cls in POSITIONS.items():
            if cls.clamps and cls.needs_scores():
                names.append(name)
        change = f", or use --position {' or '.join(names)}"
    raise UsageError(
        f"--clamp_len {context.clamp_len}: --position {encoding.name} has no distances that could "
        f"be clamped; leave it out (-1){change}"
    )


def require_works(memory: str, settings: Any, *, can_change: bool = True) -> None:
    """Raise `UsageError` if there is no such memory, or it does not work with a field of these
    settings, see `Traits.works_with`.

    Args:
        can_change: another memory can be chosen, as for a new model; False: the model is trained.
    """
    for name, allowed in MEMORIES[memory].traits.works_with.items():
        given = getattr(settings, name, None)
        values = given if isinstance(given, tuple) else (given,)  # several lengths may be compared
        refused = []
        for value in values:
            if value is not None and value not in allowed:
                refused.append(value)
        if refused:
            raise UsageError(_refusal(memory, name, refused[0], allowed, can_change=can_change))


def _refusal(
    memory: str, name: str, value: Any, allowed: tuple[Any, ...], *, can_change: bool
) -> str:
    flag = f"--{name} {value}"
    works = f"works with {' or '.join(map(str, allowed))} only"
    if value is True:
        flag = f"--{name}"
        works = "does not work with it"
    change = ""
    if can_change:
        tables = {}
        for other, rule in MEMORIES.items():
            tables[other] = rule.traits.works_with
        others = []
        for other, table in tables.items():
            if value in table.get(name, (value,)):
                others.append(other)
        change = f", or use --memory {' or '.join(others)}"
    return f"{flag}: --memory {memory} {works}; leave it out{change}"


def require_masks_documents(config: ModelConfig) -> None:
    """Raise `UsageError` if the attention rule or the memory cannot tell the documents of a row
    apart."""
    require(
        MEMORIES[config.memory].traits.masks_documents,
        f"--memory {config.memory}: it is read in all documents of a row; read them in rows of "
        f"their own (train without --reset)",
    )
    masking = []
    for name, rule in ATTENTION_RULES.items():
        if getattr(rule, "masks_documents", False):
            masking.append(name)
    require(
        config.attention in masking,
        f"--attention {config.attention}: this rule does not mask the documents of a row; read "
        f"documents in rows of their own (train without --reset), or use --attention"
        f" {' or '.join(masking)}",
    )
