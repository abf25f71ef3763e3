"""Reading text files that may be missing, empty or not UTF-8."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from tqdm import tqdm

from txl.config import UsageError
from txl.files import lock


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
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}); give a text that this user may read"
        ) from error


def read_lines(path: Path, *, task: str) -> Iterator[str]:
    """The lines of a UTF-8 file with their line ends, without a byte-order mark, under a progress bar.

    Lines end at \\n, \\r and \\r\\n only, as in the original.

    Args:
        task: the label of the bar.
    Raises:
        DataError: if the file is missing, unreadable, empty or not UTF-8 (with the number of the line).
    """
    require_text(path)
    bar = tqdm(total=path.stat().st_size, desc=f"{task} {path.name}", unit="B", unit_scale=True, disable=None)
    with bar, reading(path), path.open("rb") as raw, TextIOWrapper(raw, encoding="utf-8", newline="") as file:
        try:
            for n, line in enumerate(file):
                if n % 4096 == 0:
                    bar.update(raw.tell() - bar.n)
                yield line if n else line.removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {_undecodable_line(path)}: not UTF-8 ({error.reason}); "
                f"convert the file, for example with: iconv -f latin1 -t utf-8"
            ) from None
        bar.update(bar.total - bar.n)


def require_text(path: Path) -> None:
    """Raise `DataError` unless `path` is a file that is not empty."""
    with reading(path):
        if not path.parent.is_dir():
            raise DataError(f"{path.parent}: no such folder; give the folder of the text files with --data")
        if not path.is_file():
            raise DataError(f"{path}: no such file; a folder of text needs train.txt, valid.txt and test.txt")
        if not path.stat().st_size:
            raise DataError(f"{path}: is empty; every split needs some text")


def _undecodable_line(path: Path) -> int:
    with path.open("rb") as file:
        for n, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return n
    raise AssertionError(f"every line of {path} is UTF-8")
