"""Files that a user names for a program to write: where they may stand, and how they are written."""

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from txl.errors import require
from txl.files import errors_naming, is_stream, require_writable, written_whole
from txl.runtime.records import json_text, read_json

STANDARD = "-"
"""The name of standard output."""
MARK = "program"
"""The first key of a JSON object that a program of txl writes; its value is that program."""
_HEAD = 2000
"""Bytes at the beginning of a file, in which its mark is."""


class Kind(NamedTuple):
    """A kind of file that a program writes.

    Attributes:
        name: the program.
        is_own: whether a file is of this kind. Raises `OSError` if it cannot be read.
    """

    name: str
    is_own: Callable[[Path], bool]


def text_kind(name: str, pattern: str) -> Kind:
    """Text that is known by a regular expression which its beginning matches."""
    begin = re.compile(pattern.encode(), re.DOTALL)
    return Kind(name, lambda path: begin.match(_head(path)) is not None)


def json_kind(name: str, keys: Collection[str] = (), optional: Collection[str] = ()) -> Kind:
    """A JSON object, known by its `MARK`; those of older versions by all of their keys.

    Args:
        keys: that each of those has; empty: there are none.
        optional: that it may have besides.
    """
    marked = re.compile(rf'\{{\s*"{MARK}":\s*"{name}"'.encode())

    def is_own(path: Path) -> bool:
        head = _head(path)
        if marked.match(head):
            return True
        if not keys or not head.startswith(b"{"):
            return False
        try:
            content = read_json(path)
        except ValueError:
            return False
        return set(keys) <= set(content) <= {*keys, *optional}

    return Kind(name, is_own)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


def is_free(path: Path, kind: Kind) -> bool:
    """True if nothing is lost by writing there: a new path, an empty file, a link, which alone is
    replaced, or a file of this kind; what is written to as it is, see `is_stream`.
    """
    if path.is_symlink() or is_stream(path) or not path.exists():
        return True
    return path.is_file() and (not path.stat().st_size or kind.is_own(path))


def require_free(path: Path, kind: Kind, *, flag: str = "") -> None:
    """Raise `UsageError` unless `is_free`, `OSError` if nothing can be written there.

    Args:
        flag: that names the path, for the message.
    """
    name = f"{flag} {path}".strip()
    if not is_stream(path):
        require(
            path.is_file() or path.is_dir() or path.is_symlink() or not path.exists(),
            f"{name}: is a device or a socket, and nothing is written there; name a file",
        )
        require_writable(path)
    require(
        is_free(path, kind),
        f"{name}: is there, and is nothing that {kind.name} writes; name another file, or remove it",
    )


def require_outputs(
    outputs: Mapping[str, tuple[str | None, Kind]], inputs: Mapping[str, str]
) -> None:
    """Check, before a program begins its work, that its files can be written and destroy nothing.

    Args:
        outputs: paths and what is written there, by their flags; None: the flag is not given.
        inputs: the flags of what is read, by its paths.
    Raises:
        UsageError: if a file is read, written by another flag, too, or not free.
        OSError: if it cannot be written.
    """
    taken = {}
    for path, flag in inputs.items():
        if path == STANDARD:
            path = "/dev/stdin"
        if os.path.isfile(path):
            taken |= dict.fromkeys((_place(path), _identity(os.stat(path))), flag)
    for flag, (name, kind) in outputs.items():
        if name is None:
            continue
        require(name != STANDARD, f"{flag} {name}: the table goes to standard output; name a file")
        path = Path(name)
        if not is_stream(path):
            for place in _names_of(path):
                other = taken.setdefault(place, flag)
                require(
                    other == flag, f"{flag} {path}: is the file of {other}, too; name another one"
                )
        require_free(path, kind, flag=flag)


def inputs_of(typed: Mapping[str, Any], *outputs: str) -> dict[str, str]:
    """The flags by the paths that they may name, for `require_outputs`.

    Args:
        outputs: flags that name what is written.
    """
    found = {}
    for name, value in typed.items():
        values = value if isinstance(value, tuple | list) else [value]
        if name not in outputs:
            found |= {path: f"--{name}" for path in values if isinstance(path, str)}
    return found


def _place(path: str) -> str:
    """Where a file of this name is put: a link is replaced, and not what it names."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _names_of(path: Path) -> list[str]:
    """All by which an output may be known as an input: its own, and that of the file there."""
    names = [_place(str(path))]
    if os.path.lexists(path):
        names.append(_identity(path.lstat()))
    return names


def _identity(state: os.stat_result) -> str:
    """Of a file, under any of its names."""
    return f"{state.st_dev} {state.st_ino}"


@contextmanager
def output(path: Path, kind: Kind) -> Iterator[Path]:
    """Yields a temporary path to write to, which takes its place at the end, whole or not at all; a
    stream is sent what was written. Raises as `require_free`.
    """
    require_free(path, kind)
    if not is_stream(path):
        with written_whole(path) as temporary:
            yield temporary
        return
    with TemporaryDirectory() as folder:
        temporary = Path(folder) / path.name
        yield temporary
        with errors_naming(path), path.open("ab") as to, temporary.open("rb") as source:
            shutil.copyfileobj(source, to)


def write_text(path: Path, text: str, kind: Kind) -> None:
    """Write a text in UTF-8, see `output`."""
    with output(path, kind) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(
    path: Path, content: Mapping[str, Any], kind: Kind, *, indent: int | None = 1
) -> None:
    """Write JSON with the mark of its kind, see `output`; numbers that JSON cannot represent, such
    as infinity, become null.
    """
    marked = {MARK: kind.name, **content}
    write_text(path, json_text(marked, indent=indent, ensure_ascii=False), kind)
