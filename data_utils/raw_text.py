"""Reading text files that may be missing, empty or not UTF-8."""

import json
import os
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from txl.config import UsageError
from txl.files import content_of, lock, written_whole

from .encodings import looks_like

_AS_LATIN_1 = tuple(mark.decode("latin1").encode() for mark in (BOM_UTF16_LE, BOM_UTF16_BE))
"""What begins a file of UTF-16 that was converted from Latin-1."""
_NO_ASCII = re.compile(rb"[\x80-\xff](?:[\x80-\xff]|(?<=[\x81-\xfe])[\x40-\x7e](?=[\x80-\xff]))*")
"""A run of bytes that are no ASCII; in Shift-JIS, Big5 and GB18030 the second byte of a character
may be."""
_FOLLOWING = 200
"""Lines after the first that is not UTF-8 that are looked at to tell its encoding."""


class DataError(UsageError):
    """An error in the text that the user can fix. The message names the file, what is wrong and
    what to do."""


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process of this host at a time work on `folder`. A folder that does not exist is not
    locked."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
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
            f"{path}: cannot be read ({error.strerror or error}); give a text that you may read"
        ) from error


def text_of(content: bytes) -> str:
    """The text of UTF-8 bytes. Raises `UnicodeDecodeError`, also at a NUL character."""
    if (begin := content.find(b"\0")) >= 0:
        raise UnicodeDecodeError(
            "utf-8", content, begin, begin + 1, "a NUL character: UTF-16, or no text"
        )
    return content.decode()


def no_text(
    where: str,
    content: bytes,
    error: UnicodeDecodeError,
    *,
    is_string: bool = False,
    at: str = "",
    more: bytes = b"",
) -> DataError:
    """The error for content that `text_of` refuses, which says what it is and what helps.

    Args:
        is_string: of JSON or parquet.
        at: where in the content.
        more: what follows the content, for it may be too short to tell its encoding.
    """
    if content.startswith(_AS_LATIN_1):
        what = "was UTF-16 and has been converted as if it were Latin-1"
        return DataError(
            f"{where}: not UTF-8: it {what}; bring the original file, and convert that from UTF-16"
        )
    encoding = _wide_encoding(content)
    if encoding and not is_string:
        advice = f"convert it with: iconv -f {encoding} -t utf-8"
        return DataError(f"{where}: not UTF-8 but {encoding.upper()}; {advice}")
    if content[error.start : error.end] == b"\0":
        advice = r"take it out, as with: tr -d '\000'"
        if is_string:
            advice = r"take \u0000 out of the string"
        return DataError(f"{where}: holds a NUL character{at}, which is no text; {advice}")
    return DataError(
        f"{where}: not UTF-8 ({error.reason}{at}); {_conversion(content, error.start, more)}"
    )


def half_a_pair(where: str) -> DataError:
    """The error for a string with a surrogate that has no partner."""
    what = (
        r"holds half of a surrogate pair (such as \ud83d), which is no character and cannot be "
        r"UTF-8"
    )
    return DataError(f"{where}: {what}; write the character whole, or leave the row out")


def _wide_encoding(content: bytes) -> str:
    """UTF-16 or UTF-32, by a byte-order mark or by every second byte; else empty."""
    if content.startswith((BOM_UTF32_LE, BOM_UTF32_BE)):
        return "utf-32"
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return "utf-16"
    for first, name in ((0, "utf-16be"), (1, "utf-16le")):
        zeros = content[first::2].count(0)
        others = content[1 - first :: 2].count(0)
        if zeros > len(content) / 4 and others < len(content) / 50:
            return name
    return ""


def _conversion(content: bytes, bad: int, more: bytes) -> str:
    """How to convert content that has no UTF-8 at index `bad`, which `more` follows. One letter
    among ASCII is Western; where letters of no ASCII stand together, Latin-1 would make nonsense of
    them without an error."""
    if encoding := looks_like(content + more):
        convert = f"convert it with: iconv -f {encoding} -t utf-8"
        return f"it looks like {encoding.upper()}: {convert}, and read what comes out"
    runs = _NO_ASCII.findall(content[max(0, bad - 2000) : bad + 2000])
    if sum(len(run) > 1 for run in runs) * 2 <= len(runs):
        return "it may be Western European: convert it with: iconv -f windows-1252 -t utf-8"
    names = "gb18030, big5, shift_jis, euc-kr, windows-1251, koi8-r"
    return (
        "convert it with: iconv -f ENCODING -t utf-8, where ENCODING is the one it was written in "
        f"({names}, ...)"
    )


def _how_to_download(folder: Path) -> str:
    """What brings the text of a folder that the scripts read; empty for others."""
    from .download import SETS  # for a message only

    for name, published in SETS.items():
        if Path(published.folder).name == folder.name:
            script = f"scripts/run_{name}.sh"
            if name == "wt103":
                script = "./run_wt103.sh"
            return (
                f", or download {name} there: {script} data (python -m data_utils.download {name}"
                f" --out {folder})"
            )
    return ""


def require_text(path: Path) -> None:
    """Raise `DataError` unless `path` is a file that is not empty."""
    with reading(path):
        if not path.parent.is_dir():
            raise DataError(
                f"{path.parent}: no such folder; give the folder of the text files with --data"
                f"{_how_to_download(path.parent)}"
            )
        if not path.is_file():
            raise DataError(
                f"{path}: no such file; a folder of text needs train.txt, valid.txt and test.txt;"
                " of other files give --dataset text"
            )
        if not path.stat().st_size:
            raise DataError(f"{path}: is empty; every split needs some text")


def line_without_text(path: Path, lines: Iterable[bytes], *, is_string: bool) -> DataError | None:
    """The error for the first of a file's lines that is no text; None if all are.

    Args:
        is_string: they are rows of JSON or parquet.
    """
    unit = "line"
    if is_string:
        unit = "row"
    lines = iter(lines)
    for n, line in enumerate(lines, 1):
        try:
            text_of(line)
        except UnicodeDecodeError as error:
            more = b"".join(islice(lines, _FOLLOWING))
            return no_text(f"{path}, {unit} {n}", line, error, is_string=is_string, more=more)
    return None


def read_record(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if it is missing or damaged."""
    try:
        return dict(json.loads(content_of(path)))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON file."""
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps(record), encoding="utf-8")
