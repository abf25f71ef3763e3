"""Files of text as people have them: plain, compressed, jsonl and parquet, in folders, lists and globs."""

import gzip
import io
import itertools
import json
import lzma
import os
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from glob import glob, has_magic
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from .files import DataError, not_utf8, reading

CACHE = "txl-cache"
COMPRESSED = (".gz", ".xz", ".zst")
_TEXT = (".txt", ".text", ".md", ".tokens", ".raw")
_LINES_OF_JSON = (".jsonl", ".ndjson", ".json")
_SPLIT = re.compile(r"(?:^|[^a-z])(train|validation|valid|val|dev|test)(?:[^a-z]|$)")
_GIVEN = 1 << 13  # bytes of zstd at once, of which a megabyte of text may come
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
_NAMES = {"validation": "valid", "val": "valid", "dev": "valid"}


def splits_of(data: tuple[str, ...] | str) -> dict[Path, str]:
    """The files that --data names, and the split of each by its name, such as valid.txt, wiki.test.tokens or
    validation-00000.parquet, or by those of its folders; empty if they name none. Raises `DataError` without files.

    --data names a folder: its files with a known suffix, in it and below, in the order of their names; a file; those
    that a glob matches; or several of these. Folders count below a folder, or below the part of a glob before its first
    wildcard. Of several arguments a folder's own name counts too, and so do the folders of files and globs if all
    name a split, or several of them two splits. Whether paths are absolute does not matter.
    """
    names = (data,) if isinstance(data, str) else data
    found = [_named(name) for name in names]
    if not any(files for _, files in found):
        known = " ".join((*_TEXT, *_LINES_OF_JSON[:1], ".parquet"))
        missing = isinstance(data, str) and not Path(data).exists()
        what = "no such folder" if missing else f"no files of text ({known}, or compressed: {' '.join(COMPRESSED)})"
        advice = "give the folder of the text files with --data, a file of text or a glob"
        raise DataError(f"{' '.join(names)}: {what}; {advice}")
    roots = [folder for folder, _ in found]
    common = os.path.commonpath(roots)
    splits = {_split_below(common, folder) for folder in roots}
    if "" not in splits or len(splits) > 2:
        roots = [common] * len(roots)
    elif len(names) > 1:
        roots = [os.path.dirname(f) if Path(name).is_dir() else f for name, f in zip(names, roots, strict=True)]
    return {path: _split_below(root, path) for root, (_, files) in zip(roots, found, strict=True) for path in files}


def _named(name: str) -> tuple[str, list[Path]]:
    """What an argument of --data names: a folder, that of a file, or that before a glob's first wildcard; the files."""
    path = Path(name)
    if path.is_dir():
        files = _of_others(path, (file for file in sorted(path.rglob("*")) if file.is_file() and _kind(file)))
        if any(map(has_rows, files)):
            files = [file for file in files if not file.name.lower().startswith("readme.")]
        return os.path.abspath(path), files
    if path.exists():
        return os.path.dirname(os.path.abspath(path)), [path]
    fixed = Path(*itertools.takewhile(lambda part: not has_magic(part), path.parts))
    return os.path.abspath(fixed), _of_others(fixed, filter(Path.is_file, _matching(name)))


def _of_others(top: Path, files: Iterable[Path]) -> list[Path]:
    """The files that are neither hidden below `top` nor written by txl: to a cache, a run folder."""

    @cache
    def is_left_out(path: Path) -> bool:
        if path in (top, path.parent):
            return False
        is_own = path.name in (CACHE, "checked.json") or (path / "prepared.json").is_file()
        is_run = (path / "metrics.jsonl").is_file() and any(path.glob("step_*"))
        return path.name.startswith(".") or is_own or is_run or is_left_out(path.parent)

    return [file for file in files if not is_left_out(file)]


def _split_below(root: str, path: Path | str) -> str:
    """The split that a path below `root` names last; empty if it names none."""
    for part in reversed(Path(os.path.abspath(path)).relative_to(root).parts):
        if found := _SPLIT.search(part.lower()):
            return _NAMES.get(found[1], found[1])
    return ""


def _matching(name: str) -> list[Path]:
    """The file of this name, or those that a glob matches."""
    return [Path(name)] if Path(name).exists() else [Path(one) for one in sorted(glob(name, recursive=True))]


def home_of(data: tuple[str, ...] | str) -> Path:
    """The folder that --data names or whose files it names."""
    first = data if isinstance(data, str) else data[0]
    if Path(first).is_dir():
        return Path(first)
    _, files = _named(first)
    return files[0].parent if files else Path(first)


def require_folder(data: tuple[str, ...] | str, dataset: str) -> None:
    """Raise `DataError` if --data names files, which are no data set."""
    if not isinstance(data, str) or (not Path(data).is_dir() and _matching(data)):
        given = data if isinstance(data, str) else " ".join(data)
        advice = "give the folder, or --dataset text for words of any files"
        raise DataError(f"--data {given}: --dataset {dataset} needs one folder, with a file for each split; {advice}")


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
            return io.BufferedReader(_Zstd(raw, zstandard.ZstdDecompressor().decompressobj), 1 << 20)
    return raw


class _Zstd(io.RawIOBase):
    """The text of zstd frames. Raises `EOFError` where the last one is cut, which zstandard's own reader does not."""

    def __init__(self, raw: IO[bytes], new_frame: Callable[[], Any]) -> None:
        self._raw, self._new_frame, self._frame = raw, new_frame, new_frame()
        self._given = self._text = b""
        self._within = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            self._given = self._given or self._raw.read(_GIVEN)
            if not self._given:
                if self._within:
                    raise EOFError("it ends within a frame")
                return 0
            self._text = self._frame.decompress(self._given)
            self._within, self._given = not self._frame.eof, self._frame.unused_data
            if self._frame.eof:
                self._frame = self._new_frame()
        n = min(len(buffer), len(self._text))
        buffer[:n], self._text = self._text[:n], self._text[n:]
        return n
