"""JSON records: reading them, checking them against type hints, writing them as text."""

import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from txl.files import content_of


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises `OSError` if it cannot be read, `ValueError` if it is not JSON.
    """
    return parse_json(content_of(path))


def parse_json(content: bytes) -> Any:
    """The content of a JSON file from its bytes. Raises `ValueError` if they are not JSON."""
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json_lines(path: Path) -> list[Any]:
    """The values of a file that has one in each line, without a last line that a kill has left
    incomplete. Raises `OSError` if it cannot be read, `ValueError` if a line is not JSON.
    """
    *lines, _ = content_of(path).split(b"\n")
    return [parse_json(line) for line in lines]


def json_text(content: Any, *, indent: int | None = 1, ensure_ascii: bool = True) -> str:
    """JSON with a line break at its end; numbers that it cannot represent, such as infinity, become
    null.
    """
    return (
        json.dumps(finite(content), ensure_ascii=ensure_ascii, indent=indent, allow_nan=False)
        + "\n"
    )


def finite(content: Any) -> Any:
    """The content with None for numbers that are not finite, which JSON lacks."""
    if isinstance(content, dict):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def require_fields(record: Any, hints: Mapping[str, Any] | type) -> dict[str, Any]:
    """The record, if it is an object whose fields are in `hints` and have their types.

    A bool is not an int, an int is also a float, a list is also a tuple, and floats are finite.

    Args:
        hints: types by name, or a class whose annotations they are.
    Raises:
        ValueError: naming the field that is unknown or of another type.
    """
    if not isinstance(record, dict):
        raise ValueError("holds no JSON object where one belongs")
    if isinstance(hints, type):
        hints = typing.get_type_hints(hints)
    for name, value in record.items():
        if name not in hints:
            raise ValueError(
                f"the field {name!r} is not known: written by a newer version of txl, so upgrade"
            )
        if not fits(value, hints[name]):
            shown = getattr(hints[name], "__name__", str(hints[name]))
            raise ValueError(f"{name} is {str(value)[:40]!r}, which is not of type {shown}")
    return record


def fits(value: Any, hint: Any) -> bool:
    """True if a JSON value has this type."""
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, arg) for arg in args)
    if origin is Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)
    if origin in (tuple, list):
        return isinstance(value, list | tuple) and all(fits(item, args[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(item, args[1]) for item in value.values())
    if hint is float:
        # neither NaN, infinity nor an int beyond floats
        return type(value) in (int, float) and abs(value) <= 1.7e308
    return type(value) is (types.NoneType if hint is None else hint)
