"""Reading text that may be wrong and writing files that are whole or not there."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm


class DataError(ValueError):
    """Something about the text the user can put right. The message names the file, what is wrong and what to do."""


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Write a file under a temporary name; flushed and renamed at the end, removed if anything fails before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a write that fails half way does not say where
        raise


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_lines(path: Path, *, task: str) -> Iterator[str]:
    """The lines of a UTF-8 file, with a progress bar over its bytes.

    Lines end at \\n, \\r and \\r\\n and nowhere else, as in the original.

    Args:
        task: what the lines are read for, shown at the bar.
    Raises:
        DataError: if the file is missing, empty or not UTF-8; in the last case with the number of the line.
    """
    require_text(path)
    bar = tqdm(total=path.stat().st_size, desc=f"{task} {path.name}", unit="B", unit_scale=True, disable=None)
    with bar, path.open(encoding="utf-8") as file:
        try:
            for n, line in enumerate(file):
                if n % 4096 == 0:
                    bar.update(file.buffer.tell() - bar.n)
                yield line
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {_undecodable_line(path)}: not UTF-8 ({error.reason}); "
                f"convert the file, for example with: iconv -f latin1 -t utf-8"
            ) from None
        bar.update(bar.total - bar.n)


def require_text(path: Path) -> None:
    """Raise `DataError` unless `path` is a file with something in it."""
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
