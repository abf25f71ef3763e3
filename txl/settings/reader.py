"""A file of settings as tables and values: TOML, JSON or YAML. Its size, depth and numbers are bounded,
and so is what aliases of YAML stand for, before anything is built of it.
"""

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from txl.errors import UsageError, require
from txl.files import content_of

_MOST_BYTES = {".json": 2**20, ".toml": 2**18, ".yaml": 2**16, ".yml": 2**16}
"""The reader of each kind takes seconds for them."""
_DOTTED = re.compile(r"""(?:(?:"[^"\n]*"|'[^'\n]*'|[\w-]+)[ \t]*\.[ \t]*){20}""")
"""A key of TOML for tables in tables, whose reader takes the square of its length."""
_MOST_VALUES = 10_000
"""Those that an alias stands for count each time."""
_DEEPEST = 8
_LARGEST = 2**64
_LONGEST = 2**16
_LONGEST_NAME = 100


def read_tables(path: Path) -> dict[str, Any]:
    """The content of a file: tables, lists, text, numbers, true, false and None. Raises `UsageError`
    if it is no such file or too large, `OSError` if it cannot be read.
    """
    readers: dict[str, Callable[[str], Any]] = {
        ".toml": _read_toml,
        ".json": lambda text: json.loads(text, object_pairs_hook=_without_repeats),
        ".yaml": _read_yaml,
        ".yml": _read_yaml,
    }
    kinds = ", ".join(readers)
    require(path.suffix in readers, f"--config {path}: must end in one of {kinds}")
    try:
        content = readers[path.suffix](_text_of(path))
        require(isinstance(content, dict), "must hold settings by name, as in lr = 0.001")
        _require_small(content)
    except RecursionError:
        raise UsageError(
            f"{path}: nested too deeply; settings are values, or lists of them"
        ) from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    # the last two PyYAML's, of tags such as !!int on what is no number
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: cannot be read as {path.suffix[1:]} ({reason})") from None
    return content


def _text_of(path: Path) -> str:
    most = _MOST_BYTES[path.suffix]
    content = content_of(path, most + 1)
    require(len(content) <= most, f"is larger than {most // 1024} KiB; no file of settings is")
    return content.decode()


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    require(len(found) == len(pairs), "names a setting twice in one table; leave one out")
    return found


def _read_toml(text: str) -> Any:
    if _DOTTED.search(text):
        raise RecursionError
    return tomllib.loads(text)


def _read_yaml(text: str) -> Any:
    import yaml  # few files are YAML

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return {}
        require(_n_value(node, {}) <= _MOST_VALUES, f"has more than {_MOST_VALUES} values")
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _n_value(node: Any, known: dict[int, int]) -> int:
    """How many values a node of YAML stands for.

    Args:
        known: of nodes that were counted, by their identity.
    """
    if isinstance(node.value, str):
        is_text = node.tag.endswith(":str")
        require(is_text or len(node.value) <= _LONGEST_NAME, f"{node.value[:20]}...: too long")
        return 1
    if id(node) not in known:
        known[id(node)] = _MOST_VALUES + 1  # while it is counted: if it holds itself
        inside = []
        for one in node.value:
            inside += one if isinstance(one, tuple) else (one,)
        known[id(node)] = 1 + sum(_n_value(one, known) for one in inside)
    return known[id(node)]


def _require_small(content: dict[str, Any]) -> None:
    """Raise `UsageError` if a value is none that a setting can have, or there are too many."""
    left: list[tuple[str, Any, int]] = [("", content, 0)]
    n_value = 0
    while left:
        name, value, depth = left.pop()
        n_value += 1
        require(n_value <= _MOST_VALUES, f"has more than {_MOST_VALUES} values")
        require(depth <= _DEEPEST, "nested too deeply; settings are values, or lists of them")
        if isinstance(value, dict):
            for key, one in value.items():
                is_name = isinstance(key, str) and key.isprintable() and len(key) <= _LONGEST_NAME
                require(is_name, f"{str(key)[:40]!r}: no such setting; names are words")
                left.append((key, one, depth + 1))
        elif isinstance(value, list):
            left += [(name, one, depth + 1) for one in value]
        else:
            require(_is_small(value), f"{name}: no value that a setting can have; give another")


def _is_small(value: Any) -> bool:
    if isinstance(value, str):
        is_odd = any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)
        return not is_odd and len(value) <= _LONGEST
    if isinstance(value, int):
        return abs(value) < _LARGEST
    return value is None or isinstance(value, float)
