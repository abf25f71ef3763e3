"""What of a model learns: all of it, its memory, or its last layers and its memory."""

import torch
from torch import nn

from txl.config import ModelConfig, UsageError, require
from txl.model.parts import build_memory_rule, with_memory
from txl.model.transformer import Body
from txl.registry import MEMORIES

_LAST = "last:"


def freeze(model: Body, what: str) -> None:
    """Let only these parameters take gradients: `all`; those of the `memory` of each layer; or of
    the N last layers and the memory of each, `last:N`.

    What the last layers share with others, such as parameters of positions, stays as it is.

    Raises:
        UsageError: if nothing would learn, or there are not so many layers.
    """
    if what == "all":
        return
    learning = set()
    for layer in model.layers:
        learning |= set(layer.memory.parameters())
    if what.startswith(_LAST):
        learning |= _of_last_layers(model, int(what.removeprefix(_LAST)))
    if not learning:
        raise UsageError(_nothing(model.config, what))
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in learning)


def learning_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that take gradients, by name, shared ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _of_last_layers(model: Body, n: int) -> set[nn.Parameter]:
    n_layer = len(model.layers)
    require(n <= n_layer, f"--train last:{n}: the model has {n_layer} layer(s); give that at most")
    own = set()
    for layer in model.layers[n_layer - n :]:
        own |= set(layer.parameters())
    for layer in model.layers[: n_layer - n]:
        own -= set(layer.parameters())
    return own


def _nothing(config: ModelConfig, what: str) -> str:
    names = []
    for name in MEMORIES:
        if _has_weights(config, name):
            names.append(name)
    return (
        f"--train {what}: --memory {config.memory} has no weights that could learn; use --memory"
        f" {' or '.join(names)}, or --train last:1"
    )


def _has_weights(config: ModelConfig, memory: str) -> bool:
    """True if a memory that the model works with has weights."""
    try:
        other = with_memory(config, memory, {})
        with torch.device("meta"):
            rules = [build_memory_rule(other, i) for i in range(config.n_layer)]
    except UsageError:
        return False
    return any(True for rule in rules for _ in rule.parameters())
