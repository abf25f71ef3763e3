"""Which position encodings and attention rules read a setting; settings that go unread are refused."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from txl.attention_rules import ATTENTION_RULES
from txl.config import ModelConfig, UsageError
from txl.positions import POSITION_ENCODINGS


class Readers(NamedTuple):
    """Names of the encodings and rules that read a setting; both empty if it is a general one."""

    position: tuple[str, ...]
    attention: tuple[str, ...]


def readers(name: str) -> Readers:
    """The encodings and rules that read a setting."""
    return Readers(
        tuple(key for key, cls in POSITION_ENCODINGS.items() if name in cls.reads()),
        tuple(key for key, cls in ATTENTION_RULES.items() if name in cls.settings),
    )


def is_read(name: str, *, position: str, attention: str) -> bool:
    """True if one of these reads a setting, or it is a general one."""
    who = readers(name)
    return not any(who) or _is_read(who, position, attention)


def require_read(typed: Mapping[str, Any], *, position: str, attention: str) -> None:
    """Raise `UsageError` on a typed setting that other encodings or rules read, but not these.

    False and "auto" are accepted.
    """
    for name, value in typed.items():
        if is_read(name, position=position, attention=attention) or value is False or value == "auto":
            continue
        who = readers(name)
        kind, chosen, names = "attention", attention, who.attention
        if who.position:
            kind, chosen, names = "position", position, who.position
        given = f"--{name}" if value is True else f"--{name} {value}"
        raise UsageError(f"{given}: --{kind} {chosen} does not read it, {_do(names)}; leave it out")


def require_read_by_one(typed: Mapping[str, Any], shapes: Sequence[ModelConfig]) -> None:
    """Raise `UsageError` on a typed setting that none of several models reads."""
    first, *others = shapes
    read_by_another = {name for name in typed for one in others if _is_read(readers(name), one.position, one.attention)}
    unread = {name: value for name, value in typed.items() if name not in read_by_another}
    require_read(unread, position=first.position, attention=first.attention)


def _is_read(who: Readers, position: str, attention: str) -> bool:
    return position in who.position or attention in who.attention


def _do(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last} do" if others else f"{last} does"
