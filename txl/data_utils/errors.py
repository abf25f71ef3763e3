"""Errors in a text that its user can fix, one line each: the file, what is wrong, what to do."""

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from txl.config import UsageError

_AS_LATIN_1 = tuple(mark.decode("latin1").encode() for mark in (BOM_UTF16_LE, BOM_UTF16_BE))
"""What begins a file of UTF-16 that was converted from Latin-1."""
_NO_ASCII = re.compile(rb"[\x80-\xff](?:[\x80-\xff]|(?<=[\x81-\xfe])[\x40-\x7e](?=[\x80-\xff]))*")
"""A run of bytes that are no ASCII; in Shift-JIS, Big5 and GB18030 the second byte of a character
may be."""
_FOLLOWING = 200
"""Lines after the first that is not UTF-8 that are looked at to tell its encoding."""


class DataError(UsageError):
    """An error in the text that the user can fix."""


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
        more: what follows the content, which may be too short to tell its encoding.
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
    advice = _conversion(content, error.start, more)
    return DataError(f"{where}: not UTF-8 ({error.reason}{at}); {advice}")


def line_without_text(path: Path, lines: Iterable[bytes], *, are_rows: bool) -> DataError | None:
    """The error for the first of a file's lines or rows that is no text; None if all are."""
    unit = "line"
    if are_rows:
        unit = "row"
    lines = iter(lines)
    for n, line in enumerate(lines, 1):
        try:
            text_of(line)
        except UnicodeDecodeError as error:
            more = b"".join(islice(lines, _FOLLOWING))
            return no_text(f"{path}, {unit} {n}", line, error, is_string=are_rows, more=more)
    return None


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


_LOOKED_AT = 1 << 16
"""Bytes."""
_FEWEST = 12
"""Bytes that are no ASCII, of fewer nothing is told."""
_NAMED = {
    "gb18030": "gb18030",
    "big5": "big5",
    "big5hkscs": "big5-hkscs",
    "cp932": "cp932",
    "euc_jp": "euc-jp",
    "euc_jis_2004": "euc-jp",
    "cp949": "cp949",
    "euc_kr": "euc-kr",
    "cp1251": "windows-1251",
    "koi8_r": "koi8-r",
    "koi8_u": "koi8-u",
    "mac_cyrillic": "maccyrillic",
    "cp1253": "windows-1253",
    "iso8859_7": "iso-8859-7",
    "cp1255": "windows-1255",
    "cp1256": "windows-1256",
    "cp874": "windows-874",
}
"""Names for iconv of what Python knows by another. Those of Latin letters are not among them: a
short text does not tell one of them from another."""


def looks_like(content: bytes) -> str:
    """The name of the encoding for iconv, of those of East Asia, of Cyrillic, Greek, Hebrew, Arabic
    and Thai; empty if the text does not tell."""
    from charset_normalizer import from_bytes  # few texts need it

    begin = content[:_LOOKED_AT]
    if len(begin) < len(content):  # half a character at the end misleads
        begin = begin[: 1 + max(begin.rfind(b" "), begin.rfind(b"\n"))] or begin
    if sum(byte >= 0x80 for byte in begin) < _FEWEST:
        return ""
    best = from_bytes(begin).best()
    if best is None or best.percent_coherence == 0:  # decodes, but into no language that it knows
        return ""
    return _NAMED.get(best.encoding, "")
