"""Which position encodings and attention rules read a setting, and the refusal of a setting that goes unread."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from txl.config import UsageError
from txl.kernels import ATTENTION_KERNELS
from txl.positions import POSITION_ENCODINGS


class Readers(NamedTuple):
    """Names of the encodings and of the rules that read a setting; both empty where it is none of theirs."""

    position: tuple[str, ...]
    attention: tuple[str, ...]


def readers(name: str) -> Readers:
    """Who reads the setting."""
    return Readers(
        tuple(key for key, cls in POSITION_ENCODINGS.items() if name in cls.reads()),
        tuple(key for key, cls in ATTENTION_KERNELS.items() if name in cls.settings),
    )


def require_read(typed: Mapping[str, Any], *, position: str, attention: str) -> None:
    """Raise `UsageError` if a setting was typed that others read, but not this encoding and this rule.

    A switch turned off, and an "auto", ask for nothing and are let pass.
    """
    for name, value in typed.items():
        who = readers(name)
        is_read = position in who.position or attention in who.attention
        if is_read or not any(who) or value is False or value == "auto":
            continue
        kind, chosen, names = "attention", attention, who.attention
        if who.position:
            kind, chosen, names = "position", position, who.position
        given = f"--{name}" if value is True else f"--{name} {value}"
        raise UsageError(f"{given}: --{kind} {chosen} does not read it, {_do(names)}; leave it out")


def _do(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last} do" if others else f"{last} does"
