"""Memories: to add one, add a file here and a line to the registry."""

from importlib import import_module
from typing import Any

from torch import Tensor

from txl.config import Context, ModelConfig, UsageError, require
from txl.memory.base import Memory, MemoryRule, State
from txl.memory.key_value import KeyValue
from txl.memory.key_values import KeyValueMemory
from txl.memory.rows import rows_joined
from txl.memory.span import Span

__all__ = [
    "MEMORIES",
    "KeyValue",
    "KeyValueMemory",
    "Memory",
    "MemoryRule",
    "Span",
    "State",
    "build_memory_rule",
    "empty_states",
    "full_states",
    "is_bounded",
    "require_works",
    "rows_joined",
    "unbounded",
]

_CLASSES = {
    "fifo": "Fifo",
    "none": "NoMemory",
    "compressive": "Compressive",
    "expire_span": "ExpireSpan",
    "infini": "Infini",
    "knn": "Knn",
    "neural": "Neural",
    "recurrent_tokens": "RecurrentTokens",
}
"""The class of each memory, in the file of the memory's name."""

MEMORIES: dict[str, type[MemoryRule]] = {
    name: getattr(import_module(f"{__name__}.{name}"), cls) for name, cls in _CLASSES.items()
}


def build_memory_rule(config: ModelConfig, layer: int) -> MemoryRule:
    """The rule of a layer, counted from 0, named by `config.memory`. Raises `UsageError` if there is none, or it does
    not work with the model."""
    require_works(config.memory, config)
    return MEMORIES[config.memory].of_layer(config, layer)(config)


def empty_states(config: ModelConfig, batch_size: int, *, like: Tensor) -> list[State]:
    """What each layer remembers before the first segment, with dtype and device of `like`."""
    rules = [MEMORIES[config.memory].of_layer(config, i) for i in range(config.n_layer)]
    return [rule.empty(config, batch_size, like=like) for rule in rules]


def full_states(config: ModelConfig, context: Context, batch_size: int, *, like: Tensor) -> list[State]:
    """What each layer remembers at most, with dtype and device of `like`."""
    rules = [MEMORIES[config.memory].of_layer(config, i) for i in range(config.n_layer)]
    return [rule.full(config, context, batch_size, like=like) for rule in rules]


def is_bounded(config: ModelConfig) -> bool:
    """True if what a token sees depends on n_layer * mem_len tokens before it only."""
    return not unbounded(config)


def unbounded(config: ModelConfig) -> str:
    """The flag for which a token sees more than that; empty: there is none."""
    if config.recurrence == "same":
        return "--recurrence same"
    return "" if MEMORIES[config.memory].is_bounded else f"--memory {config.memory}"


def require_works(memory: str, settings: Any, *, can_change: bool = True) -> None:
    """Raise `UsageError` if there is no such memory, or it does not work with a field of these settings; the table is
    `MemoryRule.only` of all memories.

    Args:
        can_change: another memory can be chosen, as for a new model; False: the model is trained.
    """
    require(memory in MEMORIES, f"--memory {memory}: no such memory; there are {', '.join(MEMORIES)}")
    for name, allowed in MEMORIES[memory].only.items():
        given = getattr(settings, name, None)
        values = given if isinstance(given, tuple) else (given,)  # several lengths may be compared
        value = next((one for one in values if one is not None and one not in allowed), None)
        if value is None:
            continue
        refused = f"--{name}" if value is True else f"--{name} {value}"
        others = [other for other, cls in MEMORIES.items() if value in cls.only.get(name, (value,))]
        works = "does not work with it" if value is True else f"works with {' or '.join(map(str, allowed))} only"
        change = f", or use --memory {' or '.join(others)}" if can_change else ""
        raise UsageError(f"{refused}: --memory {memory} {works}; leave it out{change}")
