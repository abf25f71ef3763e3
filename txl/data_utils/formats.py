"""What a file of text holds: lines of plain text, or rows of jsonl, csv and parquet; compressed or
not."""

import bz2
import csv
import gzip
import itertools
import json
import logging
import lzma
import zipfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from .errors import DataError, no_text, reading

_LOG = logging.getLogger(__name__)
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
TEXT = (".txt", ".text", ".md", ".tokens", ".raw")
LINES_OF_JSON = (".jsonl", ".ndjson", ".json")
_KINDS = {
    "text": TEXT,
    "jsonl": LINES_OF_JSON,
    "parquet": (".parquet",),
    "table": (".csv", ".tsv"),
}
_LONGEST_CELL = 2**31 - 1
"""Characters of a cell, which Python limits to 131,072 by itself."""
_BLOCK = 1 << 18
LONGEST = 1 << 20
"""Bytes of a line, or of a part of it where it is longer."""


def kind_of(path: Path) -> str | None:
    """text, jsonl, parquet or table (csv, tsv), by the suffix; None where it is not known."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    for kind, known in _KINDS.items():
        if suffixes and suffixes[-1] in known:
            return kind
    return None


def has_rows(path: Path) -> bool:
    """True for jsonl, parquet, csv and tsv."""
    return kind_of(path) in ("jsonl", "parquet", "table")


def blocks(path: Path, task: str) -> Iterator[bytes]:
    """The content of a file, uncompressed and without a byte-order mark, in blocks that do not end
    within \\r\\n. A file of no bytes has none, whatever its suffix. Raises `DataError` if the file
    cannot be read, or is damaged or cut: also if it is not compressed."""
    bar = tqdm(desc=f"{task} {path.name}", unit="B", unit_scale=True, disable=None)
    with bar, reading(path), path.open("rb") as raw:
        bar.total = path.stat().st_size
        try:
            with _uncompressed(path, raw) if bar.total else raw as file:
                block = file.read(_BLOCK).removeprefix(BOM_UTF8)
                while block:
                    if block.endswith(b"\r"):
                        block += file.read(1)
                    yield block
                    bar.update(raw.tell() - bar.n)
                    block = file.read(_BLOCK)
        except Exception as error:
            if not _is_damage(error):
                raise
            raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> DataError:
    """The error for a file that a library cannot read."""
    why = (str(error).splitlines() or [repr(error)])[0]
    return DataError(f"{path}: damaged ({why}); bring the file again")


def _is_damage(error: Exception) -> bool:
    """True for what the libraries raise for bad content; errors of the disk have a number."""
    known = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)
    without_number = isinstance(error, OSError) and error.errno is None
    is_zstd = type(error).__name__ == "ZstdError"  # of a library that may be missing
    return isinstance(error, known) or without_number or is_zstd


def _uncompressed(path: Path, raw: IO[bytes]) -> Any:
    match path.suffix.lower():
        case ".gz":
            return gzip.GzipFile(fileobj=raw)
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


def has_returns(path: Path) -> bool:
    """True if a line of a file of text ends with \\r or \\r\\n."""
    return any(b"\r" in block for block in blocks(path, "looking through"))


def lines_of(path: Path, task: str, *, one_line_end: bool = False) -> Iterator[bytes]:
    """The lines of a file of text with their line ends (\\n, \\r or \\r\\n). A line of more than
    `LONGEST` bytes comes in parts, see `parts_of`. Raises `DataError` if it cannot be read.

    Args:
        one_line_end: all lines end with \\n.
    """
    held = b""
    for block in blocks(path, task):
        if one_line_end and b"\r" in block:
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (held + block).splitlines(keepends=True)
        held = b""
        if not lines[-1].endswith((b"\n", b"\r")):
            held = lines.pop()
        yield from lines
        *parts, held = parts_of(held)
        yield from parts
    if held:
        yield held


def parts_of(content: bytes) -> list[bytes]:
    """Content in parts of at most `LONGEST` bytes: each ends after the last line end there is, else
    before the last space, else between two characters of UTF-8."""
    parts = []
    begin = 0
    while len(content) - begin > LONGEST:
        end = begin + _place_to_cut(content[begin : begin + LONGEST + 1])
        parts.append(content[begin:end])
        begin = end
    return [*parts, content[begin:]]


def _place_to_cut(content: bytes) -> int:
    if at := content.rfind(b"\n", 0, LONGEST) + 1:
        return at
    if (at := content.rfind(b" ", 0, LONGEST)) > 0:
        return at
    at = LONGEST
    while at > LONGEST - 4 and content[at] & 0xC0 == 0x80:
        at -= 1
    return at


def rows_of(path: Path, field: str, task: str) -> Iterator[bytes]:
    """The texts of a file of rows, each with a line end; rows without text are left out, and a note
    counts them. Raises `DataError` if it cannot be read, or has no such field of text."""
    read = {"parquet": parquet_rows, "table": _table_rows, "jsonl": _json_rows}
    n_row = n_without = 0
    for n, text in read[kind_of(path) or ""](path, field, task):
        if not isinstance(text, str | None):
            what = f"the field {field!r} holds no text; name another with --text_field"
            raise DataError(f"{path}, row {n}: {what}")
        n_row += 1
        if not text:
            n_without += 1
            continue
        try:
            content = text.encode()
        except UnicodeEncodeError:
            what = r"holds half of a surrogate pair (such as \ud83d), which is no character"
            advice = "write the character whole, or leave the row out"
            raise DataError(f"{path}, row {n}: {what} and cannot be UTF-8; {advice}") from None
        yield content if content.endswith(b"\n") else content + b"\n"
    if n_without:
        notice = "%s: %s of %s rows hold no text in %r (null, or empty) and are left out"
        _LOG.warning(notice, path, f"{n_without:,}", f"{n_row:,}", field)


def lines_or_rows(path: Path, field: str, task: str) -> Iterator[bytes]:
    """The rows of a file that has some, else its lines."""
    if has_rows(path):
        return rows_of(path, field, task)
    return lines_of(path, task)


def _whole_lines(path: Path, task: str) -> Iterator[bytes]:
    """The lines of a file, however long they are."""
    held: list[bytes] = []
    for block in blocks(path, task):
        for line in block.splitlines(keepends=True):
            held.append(line)
            if line.endswith((b"\n", b"\r")):
                yield b"".join(held)
                held.clear()
    if held:
        yield b"".join(held)


def _table_rows(path: Path, field: str, task: str) -> Iterator[tuple[int, Any]]:
    """The cells of a column of a table, whose first row names the columns, with their numbers from
    1 on. Cells in quotes may hold line ends."""
    csv.field_size_limit(_LONGEST_CELL)
    lines = _whole_lines(path, task)
    first = next(lines, b"")
    lines = itertools.chain([first], lines)
    rows = csv.DictReader(map(bytes.decode, lines), delimiter=_delimiter(path, first), strict=True)
    try:
        names = list(filter(None, rows.fieldnames or []))
        if not first:
            return
        _require_column(path, field, names)
        for n, row in enumerate(rows, 1):
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
        advice = "mend the quotes, or give plain text a name that ends in .txt"
        where = f"{path}, row {rows.line_num}"
        raise DataError(f"{where}: no table ({error}); {advice}") from None


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


def _delimiter(path: Path, names: bytes) -> str:
    """What stands between cells: the most frequent of the usual signs in the row of names."""
    if ".tsv" in map(str.lower, path.suffixes):
        return "\t"
    return max(",;\t|", key=names.decode(errors="replace").count)


def _json_rows(path: Path, field: str, task: str) -> Iterator[tuple[int, Any]]:
    lines = _whole_lines(path, task)
    for n, line in enumerate(lines, 1):
        if not line.strip():
            continue
        begins_array = n == 1 and line.lstrip()[:1] == b"["
        if begins_array:
            yield from _array_rows(path, field, b"".join([line, *lines]))
            return
        try:
            record = json.loads(line.decode())
        except UnicodeDecodeError as error:
            raise no_text(f"{path}, line {n}", line, error) from None
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}, line {n}: no JSON ({error}); each line must be a JSON object"
            ) from None
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
            _require_column(path, field, file.schema_arrow.names)
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
