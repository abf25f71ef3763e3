"""Where documents begin, and to which split each of them goes."""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import NamedTuple

from .formats import LONGEST, has_rows, lines_or_rows, parts_of, with_one_line_end
from .raw_text import DataError

MANY_FILES = 20
_LOOKED_AT = 4096, 1 << 23
"""Lines and bytes at the beginning of a file that tell how its documents begin."""


class Piece(NamedTuple):
    """A part of a document, of about a megabyte at most; most documents are one piece."""

    content: bytes
    ends: bool
    """It is the document's last."""


def pieces_in(
    path: Path,
    rule: str,
    text_field: str,
    *,
    one_line_end: bool = False,
    adds_line_end: bool = True,
) -> Iterator[Piece]:
    """The documents of a file in order. Raises `DataError` if the file cannot be read.

    Args:
        rule: blank, heading, file or row; a row of plain text is a line.
        text_field: of jsonl and parquet.
        one_line_end: lines of plain text end with \\n, as Python's text mode reads them; else as
            they are.
        adds_line_end: each document ends with a line end; where the file has none, one is added.
    """
    lines = lines_or_rows(path, text_field, task="reading")
    if one_line_end and not has_rows(path):
        lines = map(with_one_line_end, lines)
    if has_rows(path) and rule in ("blank", "heading"):
        lines = itertools.chain.from_iterable(map(_lines_in, lines))
    return _pieces(_RULES[rule](lines), adds_line_end=adds_line_end)


def whole(pieces: Iterable[Piece]) -> Iterator[bytes]:
    """The documents that pieces make up."""
    held: list[bytes] = []
    for piece in pieces:
        held.append(piece.content)
        if piece.ends:
            yield b"".join(held)
            held = []


def _lines_in(row: bytes) -> list[bytes]:
    return row.splitlines(keepends=True)


def _pieces(lines: Iterator[tuple[bool, bytes]], *, adds_line_end: bool) -> Iterator[Piece]:
    """Documents of lines, the first of which is marked."""
    held: list[bytes] = []
    size = 0
    for begins, line in lines:
        if begins and held:
            yield _last(held, adds_line_end=adds_line_end)
            held = []
            size = 0
        held.append(line)
        size += len(line)
        if size > LONGEST:
            *parts, content = parts_of(b"".join(held))
            for part in parts:
                yield Piece(part, ends=False)
            held = [content]
            size = len(content)
    if held:
        yield _last(held, adds_line_end=adds_line_end)


def _last(lines: list[bytes], *, adds_line_end: bool) -> Piece:
    content = b"".join(lines)
    if adds_line_end and not _ends_line(content):
        content += b"\n"
    return Piece(content, ends=True)


def _each(lines: Iterable[bytes]) -> Iterator[tuple[bool, bytes]]:
    """Every line is a document."""
    begins = True
    for line in lines:
        yield begins, line
        begins = _ends_line(line)


def _as_one(lines: Iterable[bytes]) -> Iterator[tuple[bool, bytes]]:
    for line in lines:
        yield False, line


def _after_blank_lines(lines: Iterable[bytes]) -> Iterator[tuple[bool, bytes]]:
    """Each document begins with its first line that is not blank, the first of all at the
    beginning."""
    blank_before = False
    has_text = False
    begins_line = True
    for line in lines:
        ends_line = _ends_line(line)
        blank = begins_line and ends_line and not line.strip()
        begins = blank_before and has_text and not blank
        yield begins, line
        if begins:
            has_text = False
        has_text = has_text or not blank
        blank_before = blank
        begins_line = ends_line


def _at_headings(lines: Iterable[bytes]) -> Iterator[tuple[bool, bytes]]:
    """Each document begins with a heading of level one; what stands before the first is one too. In
    a text with blank lines, a heading is between two of them, unlike formulas that begin and end
    with =."""
    before_is_blank = True
    blank_seen = False
    has_text = False
    lines, following = itertools.tee(lines)
    for line, after in itertools.zip_longest(
        lines, itertools.islice(following, 1, None), fillvalue=b""
    ):
        blank = not line.strip()
        blank_seen = blank_seen or blank
        begins = False
        if line.lstrip().startswith(b"=") and is_heading(line):
            begins = has_text and ((before_is_blank and not after.strip()) or not blank_seen)
        yield begins, line
        has_text = has_text or not blank
        before_is_blank = blank


_RULES: dict[str, Callable[[Iterable[bytes]], Iterator[tuple[bool, bytes]]]] = {
    "row": _each,
    "file": _as_one,
    "blank": _after_blank_lines,
    "heading": _at_headings,
}


def _ends_line(line: bytes) -> bool:
    """False for a part of a long line."""
    return line.endswith((b"\n", b"\r"))


def is_heading(line: bytes) -> bool:
    """True for a level-one heading: `= Title =`."""
    words = line.split()
    return (
        len(words) > 2 and words[0] == words[-1] == b"=" != words[1] and b"\n" not in line.strip()
    )


def rule_of(files: Sequence[Path], look: Callable[[Path], str]) -> tuple[str, str]:
    """How the documents of files are found, and why. The order of the files does not matter.

    Args:
        look: `signs_of` a file.
    """
    filled = [path for path in files if path.stat().st_size]
    signs = list(map(look, filled))
    if "heading" in signs:
        return "heading", "there are headings"
    rows = next(filter(has_rows, filled), None)
    if rows is not None:
        return "row", f"{rows.name} has rows"
    if len(files) >= MANY_FILES:
        return "file", f"there are {len(files)} files"
    if "blank" in signs:
        return "blank", "there are blank lines"
    if len(files) > 1:
        return "file", "there are several files"
    return "row", "it is one file without blank lines"


def signs_of(path: Path, text_field: str) -> str:
    """What the beginning of a file tells of its documents: heading, blank, or nothing."""
    signs = _signs_of_lines(lines_or_rows(path, text_field, task="looking at"))
    if signs == "blank" and has_rows(path):
        return ""
    return signs


def _signs_of_lines(lines: Iterable[bytes]) -> str:
    n_line, n_byte = _LOOKED_AT
    blank_seen = blank_before = False  # the last line of all does not count
    for line in itertools.islice(lines, n_line):
        if is_heading(line):
            return "heading"
        blank_seen = blank_seen or blank_before
        blank_before = not line.strip()
        n_byte -= len(line)
        if n_byte < 0:
            break
    if blank_seen:
        return "blank"
    return ""


def documents_of(text: str, rule: str) -> tuple[list[str], str]:
    """The documents of a text, which make it up, and the rule by which they were found.

    Args:
        rule: as for `pieces_in`; auto: headings or blank lines, where there are any, else each line
            is one.
    """
    lines = text.encode("utf-8", "surrogatepass").splitlines(keepends=True)
    if rule == "auto":
        rule = _signs_of_lines(lines) or "row"
    documents = whole(_pieces(_RULES[rule](lines), adds_line_end=False))
    return [document.decode("utf-8", "surrogatepass") for document in documents], rule


def no_documents(what: str) -> DataError:
    """The error for a text whose documents are asked for."""
    return DataError(f"--reset document: {what} leave the flag out")


_IN_MEMORY = 1 << 25
"""Bytes of a document that are held until its hash is known; of a longer one the rest waits on the
disk."""
_LEADING_BLANK = re.compile(rb"\A\s*[\r\n]")
_LINE_ENDS = {"blank": (b"\n", b"\n\n"), "heading": (b" \n", b" \n \n")}
"""How texts of a rule are mostly written: the end of a line, and of a document. Of these the hash
is that of the bytes, as it was in version 0.2."""


class Place:
    """The hash of a document, from 0 to 2^64. Equal text has an equal place, whatever white space
    ends its lines and whatever blank lines surround it.

    Args:
        rule: how documents are found.
        seed: another seed gives other places.
    """

    def __init__(self, rule: str, seed: int) -> None:
        self._line_end, self._end = _LINE_ENDS.get(rule, (b"\n", b"\n"))
        self._hash = hashlib.blake2b(digest_size=8, key=str(seed).encode())
        self._held = b""
        self._begins = True

    def add(self, content: bytes) -> None:
        """Go on with a document."""
        content = self._held + content
        text = content.rstrip()
        self._held = content[len(text) :]
        if not text:
            return
        if self._begins:
            text = _LEADING_BLANK.sub(b"", text)
            self._begins = False
        self._hash.update(self._line_end.join(line.rstrip() for line in text.splitlines()))

    def number(self) -> int:
        """The place of the document that was added."""
        whole = self._hash.copy()
        whole.update(self._end)
        return int.from_bytes(whole.digest())


def documents(
    pieces: Iterable[Piece], rule: str, seed: int, *, waits: bool
) -> Iterator[tuple[Callable[[], int], Iterable[Piece]]]:
    """The documents of a text: what tells the place of each, and its pieces, which must be read
    before the next one.

    Args:
        waits: the place is known before the pieces are read; else with the last of them.
    """
    pieces = iter(pieces)
    for piece in pieces:
        place = Place(rule, seed)
        place.add(piece.content)
        if piece.ends:
            yield place.number, (piece,)
        elif not waits:
            rest = _noted(pieces, place)
            yield place.number, itertools.chain((piece,), rest)
        else:
            with SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
                lengths = []
                for part in itertools.chain((piece,), _noted(pieces, place)):
                    file.write(part.content)
                    lengths.append(len(part.content))
                file.seek(0)
                parts = (
                    Piece(file.read(n), ends=i == len(lengths)) for i, n in enumerate(lengths, 1)
                )
                yield place.number, parts


def _noted(pieces: Iterator[Piece], place: Place) -> Iterator[Piece]:
    """The rest of a document, added to its place."""
    for piece in pieces:
        place.add(piece.content)
        yield piece
        if piece.ends:
            return
