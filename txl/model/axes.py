"""Which position encodings, attention rules, memories and gates read a setting."""

from typing import Any, NamedTuple

from txl.registry import ATTENTION_RULES, GATES, MEMORIES, POSITIONS, readers_in, reads

AXES = ("position", "attention", "memory", "gate")
"""Flags that choose one of several, each with settings of its own."""


class Readers(NamedTuple):
    """Names of the parts that read a setting. Empty: every model uses it."""

    position: tuple[str, ...]
    attention: tuple[str, ...]
    memory: tuple[str, ...]
    gate: tuple[str, ...]


def readers(name: str) -> Readers:
    """The parts that read a setting."""
    return Readers(
        tuple(key for key, cls in POSITIONS.items() if name in cls.reads()),
        tuple(key for key, cls in ATTENTION_RULES.items() if name in read_by_rule(cls)),
        tuple(key for key, cls in MEMORIES.items() if name in cls.reads()),
        readers_in(GATES, name),
    )


def read_by_rule(rule: Any) -> frozenset[str]:
    """The settings that an attention rule reads: its own, and `redraw_interval` if it draws at
    random.
    """
    if hasattr(rule, "redraw"):
        return reads(rule) | {"redraw_interval"}
    return reads(rule)


def is_read(name: str, **chosen: str) -> bool:
    """True if one of the `chosen` (see `AXES`) reads a setting, or it is a general one."""
    who = readers(name)
    return not any(who) or any(
        chosen.get(axis) in names for axis, names in zip(AXES, who, strict=True)
    )


def chosen_by(shape: Any) -> dict[str, str]:
    """What a model's configuration chooses on each axis."""
    return {axis: getattr(shape, axis) for axis in AXES}
