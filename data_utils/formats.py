"""What a file of text holds: lines of plain text, or rows of jsonl and parquet; compressed or
not."""

import bz2
import csv
import gzip
import io
import json
import logging
import lzma
import zipfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from .raw_text import DataError, half_a_pair, no_text, reading

_LOG = logging.getLogger(__name__)
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")


@contextmanager
def opened(path: Path, task: str) -> Iterator[tuple[IO[bytes], Callable[[], object]]]:
    """The uncompressed content of a file whose suffix says how it is compressed, and what moves the
    progress bar to where it is read. A file of no bytes has no content, whatever its suffix. Raises
    `DataError` if the file cannot be read, or is damaged or cut: also if it is not compressed."""
    bar = tqdm(desc=f"{task} {path.name}", unit="B", unit_scale=True, disable=None)
    with bar, reading(path), path.open("rb") as raw:
        bar.total = path.stat().st_size
        try:
            with _uncompressed(path, raw) if bar.total else raw as file:
                yield file, lambda: bar.update(raw.tell() - bar.n)
        except Exception as error:
            if not _is_damage(error):
                raise
            raise damaged(path, error) from None
        bar.update(bar.total - bar.n)


def damaged(path: Path, error: Exception) -> DataError:
    """The error for a file that a library cannot read."""
    return DataError(
        f"{path}: damaged ({(str(error).splitlines() or [repr(error)])[0]}); bring the file again"
    )


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
    names = [member for member in archive.infolist() if not member.is_dir()]
    if len(names) != 1:
        raise DataError(
            f"{path}: holds {len(names)} files; unpack it, and give those that are text"
        )
    if names[0].flag_bits & 1:
        raise DataError(f"{path}: is encrypted; unpack it")
    return archive.open(names[0])


def _zstd_library(path: Path) -> Any:
    try:
        # Python 3.14
        from compression import zstd  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    except ImportError:
        try:
            import backports.zstd as zstd  # pyright: ignore[reportMissingImports] (an extra)
        except ImportError:
            raise DataError(
                f"{path}: reading zstd needs backports.zstd: pip install backports.zstd"
            ) from None
    return zstd


TEXT = (".txt", ".text", ".md", ".tokens", ".raw")
LINES_OF_JSON = (".jsonl", ".ndjson", ".json")
TABLES = (".csv", ".tsv")
_KINDS = (
    ("text", TEXT),
    ("jsonl", LINES_OF_JSON),
    ("parquet", (".parquet",)),
    ("table", TABLES),
)
_LONGEST_CELL = 2**31 - 1
"""Characters of a cell, which Python limits to 131,072 by itself."""
_BLOCK = 1 << 18
LONGEST = 1 << 20
"""Bytes of a line, or of a part of it where it is longer."""


def kind_of(path: Path) -> str | None:
    """text, jsonl, parquet or table (csv, tsv), by the suffix; None where it is not known."""
    suffixes = path.suffixes
    if suffixes and suffixes[-1].lower() in COMPRESSED:
        suffixes.pop()
    if not suffixes:
        return None
    for kind, known in _KINDS:
        if suffixes[-1].lower() in known:
            return kind
    return None


def has_rows(path: Path) -> bool:
    """True for jsonl, parquet, csv and tsv."""
    return kind_of(path) in ("jsonl", "parquet", "table")


def lines_or_rows(path: Path, text_field: str, *, task: str) -> Iterator[bytes]:
    """The rows of a file that has some, else its lines."""
    if has_rows(path):
        return rows_of(path, text_field, task=task)
    return lines_of(path, task=task)


def has_returns(path: Path) -> bool:
    """True if a line of a file of text ends with \\r or \\r\\n. Raises `DataError` if it cannot be
    read."""
    with opened(path, "looking through") as (file, tick):
        while content := file.read(_BLOCK):
            tick()
            if b"\r" in content:
                return True
    return False


def with_one_line_end(line: bytes) -> bytes:
    """A line, or a part of one, that ends with \\n where it ended with \\r or \\r\\n."""
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(text) == len(line):
        return line
    return text + b"\n"


def lines_of(path: Path, *, task: str) -> Iterator[bytes]:
    """The lines of a file of text, uncompressed, with their line ends (\\n, \\r or \\r\\n), without
    a byte-order mark. A line of more than `LONGEST` bytes comes in parts, see `parts_of`. Raises
    `DataError` if it cannot be read."""
    held = b""
    with opened(path, task) as (file, tick):
        content = file.read(_BLOCK).removeprefix(BOM_UTF8)
        while content:
            tick()
            following = file.read(_BLOCK)
            lines = (held + content).splitlines(keepends=True)
            is_whole = lines[-1].endswith(b"\n") or not following  # after \r there may come \n
            held = b""
            if not is_whole:
                held = lines.pop()
            yield from lines
            *parts, held = parts_of(held)
            yield from parts
            content = following


def parts_of(content: bytes) -> list[bytes]:
    """Content in parts of at most `LONGEST` bytes, see `cut`."""
    parts = []
    begin = 0
    while len(content) - begin > LONGEST:
        end = begin + cut(content[begin : begin + LONGEST + 1])
        parts.append(content[begin:end])
        begin = end
    return [*parts, content[begin:]]


def cut(content: bytes) -> int:
    """Where to cut content that is longer than `LONGEST`: after the last line end among its first
    `LONGEST` bytes, else before the last space, else between two characters of UTF-8."""
    if at := content.rfind(b"\n", 0, LONGEST) + 1:
        return at
    if (at := content.rfind(b" ", 0, LONGEST)) > 0:
        return at
    at = LONGEST
    while at > LONGEST - 4 and content[at] & 0xC0 == 0x80:
        at -= 1
    return at


def rows_of(path: Path, field: str, *, task: str) -> Iterator[bytes]:
    """The texts of a file of rows, each with a line end; rows without text are left out, and a note
    counts them. A file of no content has none. Raises `DataError` if it cannot be read, or has no such
    field of text."""
    if kind_of(path) == "parquet":
        rows = parquet_rows(path, field, task)
    elif kind_of(path) == "table":
        rows = _table_rows(path, field, task)
    else:
        rows = _json_lines(path, field, task)
    n_row = n_without = 0
    for n, text in rows:
        if not isinstance(text, str | None):
            what = f"the field {field!r} holds no text; name another with --text_field"
            raise DataError(f"{path}, row {n}: {what}")
        n_row += 1
        if not text:
            n_without += 1
            continue
        try:
            if not text.endswith("\n"):
                text += "\n"
            yield text.encode()
        except UnicodeEncodeError:
            raise half_a_pair(f"{path}, row {n}") from None
    if n_without:
        notice = "%s: %s of %s rows hold no text in %r (null, or empty) and are left out"
        _LOG.warning(notice, path, f"{n_without:,}", f"{n_row:,}", field)


def _table_rows(path: Path, field: str, task: str) -> Iterator[tuple[int, Any]]:
    """The cells of a column of a table, whose first row names the columns, with their numbers from
    1 on. Cells in quotes may hold line ends."""
    csv.field_size_limit(_LONGEST_CELL)
    with opened(path, task) as (file, tick):
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        rows = csv.DictReader(lines, delimiter=_delimiter(path), strict=True)
        try:
            if rows.fieldnames is None:  # nothing is there
                return
            names = list(filter(None, rows.fieldnames))
            _require_column(path, field, names)
            for n, row in enumerate(rows, 1):
                if n % 4096 == 0:
                    tick()
                if None in row:  # cells behind the last name
                    raise DataError(
                        f"{path}, row {n}: has more cells than the {len(names)} that the first row"
                        " names; put cells in quotes that hold what separates them"
                    )
                if row[field] is None:
                    raise DataError(
                        f"{path}, row {n}: ends before the column {field!r}; put cells in quotes"
                        " that hold a line end"
                    )
                yield n, row[field]
        except UnicodeDecodeError as error:
            raise no_text(str(path), error.object, error) from None
        except csv.Error as error:
            what = f"no table ({error})"
            advice = "mend the quotes, or give plain text a name that ends in .txt"
            raise DataError(f"{path}, row {rows.line_num}: {what}; {advice}") from None
        finally:
            lines.detach()


def _require_column(path: Path, field: str, names: list[str]) -> None:
    """Raise `DataError` unless one of the columns of a file has this name."""
    if field not in names:
        columns = ", ".join(names)[:200]
        raise DataError(
            f"{path}: no column {field!r}, there is {columns}; name it with --text_field"
        )
    if names.count(field) > 1:
        what = f"{names.count(field)} columns are named {field!r}"
        raise DataError(f"{path}: {what}; name them apart, or another with --text_field")


def _delimiter(path: Path) -> str:
    """What stands between cells: the most frequent of the usual signs in the row of names."""
    if ".tsv" in map(str.lower, path.suffixes):
        return "\t"
    with opened(path, "looking at") as (file, _):
        names = file.readline(_BLOCK).decode(errors="replace")
    return max(",;\t|", key=names.count)


def _json_lines(path: Path, field: str, task: str) -> Iterator[tuple[int, Any]]:
    with opened(path, task) as (file, tick):
        for n, line in enumerate(file, 1):
            if n % 4096 == 0:
                tick()
            if not line.strip():
                continue
            if n == 1:
                line = line.removeprefix(BOM_UTF8)
            try:
                record = json.loads(line.decode())
            except UnicodeDecodeError as error:
                raise no_text(f"{path}, line {n}", line, error) from None
            except (ValueError, RecursionError) as error:
                if n == 1 and line.lstrip()[:1] == b"[":
                    yield from _array_rows(path, field, line + file.read())
                    return
                raise DataError(
                    f"{path}, line {n}: no JSON ({error}); each line must be a JSON object"
                ) from None
            if n == 1 and isinstance(record, list):
                yield from _array_rows(path, field, line + file.read())
                return
            yield n, _field_of(record, field, f"{path}, line {n}")


def _field_of(record: Any, field: str, where: str) -> Any:
    if isinstance(record, dict) and field in record:
        return record[field]
    fields = "no fields"
    if isinstance(record, dict):
        fields = ", ".join(record)[:200]
    what = f"no field {field!r}, there is {fields}; name it with --text_field"
    raise DataError(f"{where}: {what}")


def _array_rows(path: Path, field: str, content: bytes) -> Iterator[tuple[int, Any]]:
    """The rows of a JSON array, which is read whole; strings in it are rows too."""
    try:
        array = json.loads(content.decode())
    except UnicodeDecodeError as error:
        raise no_text(str(path), content, error) from None
    except (ValueError, RecursionError) as error:
        what = f"no JSON array ({error})"
        advice = "bring the file again, or write one object a line"
        raise DataError(f"{path}: {what}; {advice}") from None
    for n, record in enumerate(array, 1):
        if isinstance(record, str):
            yield n, record
        else:
            yield n, _field_of(record, field, f"{path}, row {n}")


def parquet_rows(path: Path, field: str, task: str) -> Iterator[tuple[int, Any]]:
    """The values of a column of a parquet file, with their numbers from 1 on; a file of no bytes,
    which is none, has no values."""
    with reading(path):
        if not path.stat().st_size:
            return
    try:
        import pyarrow  # pyright: ignore[reportMissingImports] (an extra)
        from pyarrow.parquet import ParquetFile  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError(f"{path}: reading parquet needs pyarrow: pip install pyarrow") from None
    n = 0
    try:
        with reading(path), ParquetFile(path) as file:
            names = file.schema_arrow.names
            _require_column(path, field, names)
            with tqdm(
                total=file.metadata.num_rows, desc=f"{task} {path.name}", unit="row", disable=None
            ) as bar:
                for batch in file.iter_batches(batch_size=1024, columns=[field]):
                    texts = batch.column(0).to_pylist()
                    yield from enumerate(texts, n + 1)
                    n += len(texts)
                    bar.update(len(texts))
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise damaged(path, error) from None
