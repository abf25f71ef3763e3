"""Which position encodings, attention rules, memories and gates read a setting."""

from typing import Any, NamedTuple

from txl.registry import ATTENTION_RULES, GATES, MEMORIES, POSITIONS, reads

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
        tuple(key for key, cls in ATTENTION_RULES.items() if name in reads(cls)),
        tuple(key for key, cls in MEMORIES.items() if name in reads(cls)),
        tuple(key for key, cls in GATES.items() if name in reads(cls)),
    )


def is_read(name: str, **chosen: str) -> bool:
    """True if one of the `chosen` (see `AXES`) reads a setting, or it is a general one."""
    who = readers(name)
    return not any(who) or any(
        chosen.get(axis) in names for axis, names in zip(AXES, who, strict=True)
    )


def chosen_by(shape: Any) -> dict[str, str]:
    """What a model's configuration chooses on each axis."""
    return {axis: getattr(shape, axis) for axis in AXES}
