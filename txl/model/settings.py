"""Which position encodings and attention rules read a setting."""

from typing import NamedTuple

from txl.attention_rules import ATTENTION_RULES
from txl.positions import POSITION_ENCODINGS


class Readers(NamedTuple):
    """Names of the encodings and rules that read a setting. Empty: every model uses it."""

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
    return not any(who) or position in who.position or attention in who.attention
