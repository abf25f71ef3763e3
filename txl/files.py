"""Files that are whole or not there, and errors that name them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the file system name `path`, which those of a write that fails half way do not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
    except SafetensorError as error:
        raise OSError(None, str(error), str(path)) from error


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path` to write to; renamed to it at the end, removed if anything fails."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".tmp.{os.getpid()}.{path.name}")  # its ending tells writers the format
        try:
            yield temporary
            flush(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def require_writable(path: Path) -> None:
    """Raise `OSError` unless a file can be written there; what is not a regular file is not tried."""
    if not path.exists() or path.is_file():
        probe = path.resolve().with_name(f".{path.name}.writable")
        with written_whole(probe) as temporary:
            temporary.touch()
        probe.unlink()


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
