"""Reading text files that may be missing, empty or not UTF-8."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from txl.config import UsageError
from txl.files import lock, written_whole


class DataError(UsageError):
    """An error in the text that the user can fix. The message names the file, what is wrong and what to do."""


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process of this host at a time work on `folder`. A folder that does not exist is not locked."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the body into a `DataError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); give a text that you may read") from error


def text_of(content: bytes) -> str:
    """The text of UTF-8 bytes. Raises `UnicodeDecodeError`, also at a NUL character."""
    if (begin := content.find(b"\0")) >= 0:
        raise UnicodeDecodeError("utf-8", content, begin, begin + 1, "a NUL character: UTF-16, or no text")
    return content.decode()


def not_utf8(path: Path, line: int, reason: str) -> DataError:
    """The error for a line that is not UTF-8."""
    return DataError(f"{path}, line {line}: not UTF-8 ({reason}); convert it, as with: iconv -f latin1 -t utf-8")


def require_text(path: Path) -> None:
    """Raise `DataError` unless `path` is a file that is not empty."""
    with reading(path):
        if not path.parent.is_dir():
            raise DataError(f"{path.parent}: no such folder; give the folder of the text files with --data")
        if not path.is_file():
            raise DataError(f"{path}: no such file; a folder of text needs train.txt, valid.txt and test.txt")
        if not path.stat().st_size:
            raise DataError(f"{path}: is empty; every split needs some text")


def line_without_text(path: Path, lines: Iterable[bytes]) -> DataError | None:
    """The error for the first of a file's lines that is not UTF-8; None if all are."""
    for n, line in enumerate(lines, 1):
        try:
            text_of(line)
        except UnicodeDecodeError as error:
            return not_utf8(path, n, error.reason)
    return None


def read_record(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if it is missing or damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON file."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(record), encoding="utf-8")
