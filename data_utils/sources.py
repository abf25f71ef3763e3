"""Files of text as people have them: plain, compressed, jsonl and parquet, in folders, lists and globs."""

import gzip
import io
import json
import lzma
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from .files import DataError, not_utf8, reading

COMPRESSED = (".gz", ".xz", ".zst")
_TEXT = (".txt", ".text", ".md", ".tokens", ".raw")
_LINES_OF_JSON = (".jsonl", ".ndjson", ".json")
_SPLIT = re.compile(r"(?:^|[^a-z])(train|validation|valid|val|dev|test)(?:[^a-z]|$)")
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
_NAMES = {"validation": "valid", "val": "valid", "dev": "valid"}


def files_of(data: tuple[str, ...] | str) -> list[Path]:
    """The files that --data names: a folder's with a known suffix, in it and below, in the order of their names; a
    file; those that a glob matches; or several of these. Raises `DataError` if there are none."""
    found: list[Path] = []
    for name in (data,) if isinstance(data, str) else data:
        path = Path(name)
        if path.is_dir():
            below = (p.relative_to(path) for p in sorted(path.rglob("*")) if p.is_file() and _kind(p) is not None)
            shown = (p for p in below if not any(part.startswith(".") or part == "txl-cache" for part in p.parts))
            found += [path / p for p in shown]
        else:
            found += _matching(name)
    if not found:
        known = " ".join((*_TEXT, *_LINES_OF_JSON[:1], ".parquet"))
        names = data if isinstance(data, str) else " ".join(data)
        missing = isinstance(data, str) and not Path(data).exists()
        what = "no such folder" if missing else f"no files of text ({known}, or compressed: {' '.join(COMPRESSED)})"
        raise DataError(f"{names}: {what}; give the folder of the text files with --data, a file of text or a glob")
    return found


def _matching(name: str) -> list[Path]:
    """The file of this name, or those that a glob matches."""
    return [Path(name)] if Path(name).exists() else [Path(one) for one in sorted(glob(name, recursive=True))]


def home_of(data: tuple[str, ...] | str) -> Path:
    """The folder that --data names or whose files it names."""
    first = data if isinstance(data, str) else data[0]
    if Path(first).is_dir():
        return Path(first)
    found = _matching(first)
    return found[0].parent if found else Path(first)


def by_split(files: list[Path], root: Path) -> dict[str, list[Path]]:
    """The files of each split by their names, such as valid.txt, wiki.test.tokens or validation-00000.parquet, or by
    those of their folders below `root`."""
    splits: dict[str, list[Path]] = {}
    for path in files:
        parts = path.relative_to(root).parts if path.is_relative_to(root) else (path.name,)
        named = [m[1] for part in reversed(parts) for m in [_SPLIT.search(part.lower())] if m]
        if named:
            splits.setdefault(_NAMES.get(named[0], named[0]), []).append(path)
    return splits


def _kind(path: Path) -> str | None:
    """text, jsonl or parquet; None where the suffix is not known."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    last = suffixes[-2:-1] if suffixes and suffixes[-1] in COMPRESSED else suffixes[-1:]
    for kind, known in (("text", _TEXT), ("jsonl", _LINES_OF_JSON), ("parquet", (".parquet",))):
        if last and last[0] in known:
            return kind
    return None


def has_rows(path: Path) -> bool:
    """True for jsonl and parquet."""
    return _kind(path) in ("jsonl", "parquet")


def lines_of(path: Path, *, task: str) -> Iterator[bytes]:
    """The lines of a file of text, uncompressed, with their line ends and without a byte-order mark. Raises `DataError`
    if it cannot be read."""
    with _opened(path, task) as (file, tick):
        for n, line in enumerate(file):
            if n % 4096 == 0:
                tick()
            yield line if n else line.removeprefix(BOM_UTF8)


def rows_of(path: Path, field: str, *, task: str) -> Iterator[bytes]:
    """The texts of a jsonl or parquet file, each with a line end; rows without text are left out. Raises `DataError` if
    it cannot be read, or has no such field of text."""
    rows = parquet_rows(path, field, task) if _kind(path) == "parquet" else _json_lines(path, field, task)
    for n, text in rows:
        if not isinstance(text, str | None):
            raise DataError(f"{path}, row {n}: the field {field!r} holds no text; name another with --text_field")
        if text:
            try:
                yield (text if text.endswith("\n") else text + "\n").encode()
            except UnicodeEncodeError as error:
                raise not_utf8(path, n, error.reason) from None


def _json_lines(path: Path, field: str, task: str) -> Iterator[tuple[int, Any]]:
    for n, line in enumerate(lines_of(path, task=task), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {n}: no JSON ({error}); each line must be a JSON object") from None
        if not isinstance(record, dict) or field not in record:
            there = ", ".join(record) if isinstance(record, dict) else "no fields"
            raise DataError(f"{path}, line {n}: no field {field!r}, there is {there}; name it with --text_field")
        yield n, record[field]


def parquet_rows(path: Path, field: str, task: str) -> Iterator[tuple[int, Any]]:
    """The values of a column of a parquet file, with their numbers from 1 on."""
    try:
        import pyarrow  # pyright: ignore[reportMissingImports] (an extra)
        from pyarrow.parquet import ParquetFile  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError(f"{path}: reading parquet needs pyarrow: pip install pyarrow") from None
    n = 0
    try:
        with reading(path), ParquetFile(path) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise DataError(f"{path}: no column {field!r}, there is {', '.join(names)}; name it with --text_field")
            with tqdm(total=file.metadata.num_rows, desc=f"{task} {path.name}", unit="row", disable=None) as bar:
                for batch in file.iter_batches(batch_size=1024, columns=[field]):
                    texts = batch.column(0).to_pylist()
                    yield from enumerate(texts, n + 1)
                    n += len(texts)
                    bar.update(len(texts))
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: damaged ({str(error).splitlines()[0]}); bring the file again")


@contextmanager
def _opened(path: Path, task: str) -> Iterator[tuple[IO[bytes], Any]]:
    """An uncompressed file, and what moves the progress bar to where it is read."""
    bar = tqdm(desc=f"{task} {path.name}", unit="B", unit_scale=True, disable=None)
    with bar, reading(path), path.open("rb") as raw:
        bar.total = path.stat().st_size
        try:
            with _uncompressed(path, raw) as file:
                yield file, lambda: bar.update(raw.tell() - bar.n)
        except Exception as error:
            if (
                not isinstance(error, _DAMAGE) and type(error).__name__ != "ZstdError"
            ):  # of a library that may be missing
                raise
            raise _damaged(path, error) from None
        bar.update(bar.total - bar.n)


def _uncompressed(path: Path, raw: IO[bytes]) -> IO[bytes]:
    match path.suffix.lower():
        case ".gz":
            return io.BufferedReader(gzip.GzipFile(fileobj=raw))
        case ".xz":
            return io.BufferedReader(lzma.LZMAFile(raw))
        case ".zst":
            try:
                import zstandard
            except ImportError:
                raise DataError(f"{path}: reading zstd needs zstandard: pip install zstandard") from None
            return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True), 1 << 20)
    return raw
