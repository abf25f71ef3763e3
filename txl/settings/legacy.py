"""Flags of the 2019 code, of NVIDIA's and of our own past that are renamed, have no effect, or are
refused: legacy.toml has their names.
"""

import argparse
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from txl.errors import UsageError

_NAMES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NAMES_ELSEWHERE: dict[str, str] = _NAMES["elsewhere"]
"""Names of settings in other tools, with ours."""
_ATTN_TYPE: dict[str, str] = _NAMES["values"]["attn_type"]
"""Values of --position for the numbers of --attn_type."""
RETIRED = "retired "
"""With which a flag without a counterpart begins among parsed values."""


def current_value(flag: str, value: str) -> str:
    """The value that a flag has here for one of NVIDIA's."""
    return _NAMES["values"].get(flag, {}).get(value, value)


def add_legacy_flags(parser: argparse.ArgumentParser, taken: Collection[str]) -> None:
    """Add the flags that a program has not, and that are not `taken` by settings of parts; --help
    does not list them.
    """
    flags = parser._option_string_actions
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    for name in (*_NAMES["no_effect"], *_NAMES["refused"]):
        if f"--{name}" not in flags and name not in taken:
            parser.add_argument(f"--{name}", dest=f"{RETIRED}{name}", nargs="*", **hidden)
    for name, now in _NAMES["renamed"].items():
        if f"--{now}" in flags:
            kind: Any = flags[f"--{now}"].type
            parser.add_argument(f"--{name}", dest=now, type=kind, **hidden)
    if "--position" in flags:
        parser.add_argument("--attn_type", choices=_ATTN_TYPE, **hidden)


def answer_legacy_flags(values: dict[str, Any]) -> None:
    """Take the flags of the 2019 code out of the parsed values: translate them, print a note, or
    raise `UsageError`.
    """
    for key in [key for key in values if key.startswith(RETIRED)]:
        name = key.removeprefix(RETIRED)
        value = values.pop(key)
        if isinstance(value, list):
            value = value[0] if value else True
        if value is False:  # in a file
            continue
        if name == "fp16" and values.get("dtype") in ("float16", "bfloat16"):
            continue  # as in NVIDIA's configurations, over which a typed --dtype wins
        why = _NAMES["refused"].get(name)
        if why is not None and _NAMES["harmless"].get(name) != str(value):
            raise UsageError(f"--{name}: {why}")
        if why is None:
            print(f"note: --{name} has no effect: {_NAMES['no_effect'][name]}", file=sys.stderr)
    _translate_attn_type(values)


def _translate_attn_type(values: dict[str, Any]) -> None:
    number = values.pop("attn_type", None)
    if number is None:
        return
    name = _ATTN_TYPE[number]
    if values.setdefault("position", name) != name:
        other = f"--position {values['position']}"
        raise UsageError(
            f"--attn_type {number}: means --position {name}, but {other} is given too; drop one of"
            " them"
        )
    if number in "23":
        print(
            f"note: --attn_type {number} is --position {name}: positions are added to a token once,"
            " where the original added them again at each segment",
            file=sys.stderr,
        )
