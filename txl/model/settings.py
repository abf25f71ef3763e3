"""Which position encodings, attention rules and memories read a setting; settings that go unread are refused."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from txl.attention_rules import ATTENTION_RULES
from txl.config import ModelConfig, UsageError
from txl.memory import MEMORIES
from txl.positions import POSITION_ENCODINGS

AXES = ("position", "attention", "memory")
"""Flags that choose one of several, each with settings of its own."""


class Readers(NamedTuple):
    """Names of the encodings, rules and memories that read a setting; all empty if it is a general one."""

    position: tuple[str, ...]
    attention: tuple[str, ...]
    memory: tuple[str, ...]


def readers(name: str) -> Readers:
    """The encodings, rules and memories that read a setting."""
    return Readers(
        tuple(key for key, cls in POSITION_ENCODINGS.items() if name in cls.reads()),
        tuple(key for key, cls in ATTENTION_RULES.items() if name in cls.settings),
        tuple(key for key, cls in MEMORIES.items() if name in cls.settings),
    )


def is_read(name: str, **chosen: str) -> bool:
    """True if one of the `chosen` (see `AXES`) reads a setting, or it is a general one."""
    who = readers(name)
    return not any(who) or _is_read(who, chosen)


def require_read(typed: Mapping[str, Any], **chosen: str) -> None:
    """Raise `UsageError` on a typed setting that other encodings, rules or memories read, but not the `chosen` ones.

    False and "auto" are accepted.
    """
    for name, value in typed.items():
        if is_read(name, **chosen) or value is False or value == "auto":
            continue
        kind, names = next((kind, names) for kind, names in zip(AXES, readers(name), strict=True) if names)
        given = f"--{name}" if value is True else f"--{name} {value}"
        raise UsageError(f"{given}: --{kind} {chosen[kind]} does not read it, {_do(names)}; leave it out")


def require_read_by_one(typed: Mapping[str, Any], shapes: Sequence[ModelConfig]) -> None:
    """Raise `UsageError` on a typed setting that none of several models reads."""
    first, *others = (chosen_by(shape) for shape in shapes)
    read_by_another = {name for name in typed for one in others if _is_read(readers(name), one)}
    unread = {name: value for name, value in typed.items() if name not in read_by_another}
    require_read(unread, **first)


def chosen_by(shape: Any) -> dict[str, str]:
    """What a model's configuration chooses on each axis."""
    return {axis: getattr(shape, axis) for axis in AXES}


def _is_read(who: Readers, chosen: Mapping[str, str]) -> bool:
    return any(chosen.get(axis) in names for axis, names in zip(AXES, who, strict=True))


def _do(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last} do" if others else f"{last} does"
