"""Compressed files, read as what they hold."""

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from .raw_text import DataError, reading

COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")


@contextmanager
def opened(path: Path, task: str) -> Iterator[tuple[IO[bytes], Callable[[], object]]]:
    """The uncompressed content of a file whose suffix says how it is compressed, and what moves the progress bar to
    where it is read. Raises `DataError` if the file cannot be read, or is damaged or cut: also if it is not compressed.
    """
    bar = tqdm(desc=f"{task} {path.name}", unit="B", unit_scale=True, disable=None)
    with bar, reading(path), path.open("rb") as raw:
        bar.total = path.stat().st_size
        try:
            with _uncompressed(path, raw) as file:
                yield file, lambda: bar.update(raw.tell() - bar.n)
        except Exception as error:
            if not _is_damage(error):
                raise
            raise damaged(path, error) from None
        bar.update(bar.total - bar.n)


def damaged(path: Path, error: Exception) -> DataError:
    """The error for a file that a library cannot read."""
    return DataError(f"{path}: damaged ({(str(error).splitlines() or [repr(error)])[0]}); bring the file again")


def _is_damage(error: Exception) -> bool:
    """True for what the libraries raise for bad content; errors of the disk have a number."""
    known = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)
    without_number = isinstance(error, OSError) and error.errno is None
    is_zstd = type(error).__name__ == "ZstdError"  # of a library that may be missing
    return isinstance(error, known) or without_number or is_zstd


def _uncompressed(path: Path, raw: IO[bytes]) -> IO[bytes]:
    match path.suffix.lower():
        case ".gz":
            return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
        case ".bz2":
            return bz2.BZ2File(raw)
        case ".xz":
            return lzma.LZMAFile(raw)
        case ".zst":
            zstd = _zstd_library(path)
            any_window = {zstd.DecompressionParameter.window_log_max: 31}  # as --long=31 writes
            return zstd.ZstdFile(raw, options=any_window)
        case ".zip":
            return _only_member(path, raw)
    return raw


def _only_member(path: Path, raw: IO[bytes]) -> IO[bytes]:
    archive = zipfile.ZipFile(raw)
    names = [one for one in archive.infolist() if not one.is_dir()]
    if len(names) != 1:
        raise DataError(f"{path}: holds {len(names)} files; unpack it, and give those that are text")
    if names[0].flag_bits & 1:
        raise DataError(f"{path}: is encrypted; unpack it")
    return archive.open(names[0])


def _zstd_library(path: Path) -> Any:
    try:
        from compression import zstd  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue] (Python 3.14)
    except ImportError:
        try:
            import backports.zstd as zstd  # pyright: ignore[reportMissingImports] (an extra)
        except ImportError:
            raise DataError(f"{path}: reading zstd needs backports.zstd: pip install backports.zstd") from None
    return zstd
