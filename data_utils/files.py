"""Reading text that may be wrong and writing files that are whole or not there."""

import fcntl
import hashlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

from tqdm import tqdm


class DataError(ValueError):
    """Something about the text the user can put right. The message names the file, what is wrong and what to do."""


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Write a file under a temporary name; flushed and renamed at the end, removed if anything fails or SIGTERM comes.

    Temporary files that a killed process has left for `path` are removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _sigterm_raises(), temporary.open("wb") as file:
            _lock(file.fileno(), wait=False)
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a write that fails half way does not say where
        raise


def _remove_leftovers(path: Path) -> None:
    for old in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(OSError), old.open("rb") as file:
            if _lock(file.fileno(), wait=False):  # a living writer holds the lock of its file
                old.unlink()


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM end the process by an exception where it would end it at once, so that files are removed."""

    def end(*_: object) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_free or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Only one process of this host at a time is inside for `folder`; no lock where there is no such folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        _lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file; False if another process holds it, or the file system knows no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the body into a `DataError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}); give a text that this user may read"
        ) from error


def sha256(path: Path, *, start: int = 0) -> str:
    """Hex digest of a file's bytes from `start` on."""
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_lines(path: Path, *, task: str) -> Iterator[str]:
    """The lines of a UTF-8 file with their line ends, without a byte-order mark; a progress bar shows its bytes.

    Lines end at \\n, \\r and \\r\\n and nowhere else, as in the original.

    Args:
        task: what the lines are read for, shown at the bar.
    Raises:
        DataError: if the file is missing, unreadable, empty or not UTF-8; in the last case with the number of the line.
    """
    require_text(path)
    bar = tqdm(total=path.stat().st_size, desc=f"{task} {path.name}", unit="B", unit_scale=True, disable=None)
    with bar, reading(path), path.open(encoding="utf-8", newline="") as file:
        try:
            for n, line in enumerate(file):
                if n % 4096 == 0:
                    bar.update(file.buffer.tell() - bar.n)
                yield line if n else line.removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {_undecodable_line(path)}: not UTF-8 ({error.reason}); "
                f"convert the file, for example with: iconv -f latin1 -t utf-8"
            ) from None
        bar.update(bar.total - bar.n)


def require_text(path: Path) -> None:
    """Raise `DataError` unless `path` is a file with something in it."""
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
