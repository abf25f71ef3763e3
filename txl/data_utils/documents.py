"""Documents: where they begin in a file, and to which split each goes where no file names it."""

import hashlib
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import NamedTuple, Self

from . import formats
from .errors import DataError
from .formats import has_rows, lines_of, lines_or_rows, parts_of, rows_of

MANY_FILES = 20
_LOOKED_AT = 4096, 1 << 23
"""Lines and bytes at the beginning of a file that tell how its documents begin."""


class Document(NamedTuple):
    """A document of a split, or a part of one that is longer than about a megabyte.

    Attributes:
        text: in UTF-8, or any bytes.
        ends: it is the document's last part.
        place: of the document, if it ends here, see `Place`.
        begins_file: it is the beginning of a file.
    """

    text: bytes
    ends: bool = True
    split: str = "train"
    place: int | None = None
    begins_file: bool = False


def documents_in(
    path: Path,
    rule: str,
    text_field: str,
    *,
    one_line_end: bool = False,
    adds_line_end: bool = True,
) -> Iterator[Document]:
    """The documents of a file in order. Raises `DataError` if the file cannot be read.

    Args:
        rule: blank, heading, file or row; a row of plain text is a line.
        text_field: of jsonl, csv and parquet.
        one_line_end: lines of plain text end with \\n, as Python's text mode reads them; else as
            they are.
        adds_line_end: each document ends with a line end; where the file has none, one is added.
    """
    if not has_rows(path):
        lines = lines_of(path, "reading", one_line_end=one_line_end)
    else:
        lines = rows_of(path, text_field, "reading")
        if rule in ("blank", "heading"):
            lines = itertools.chain.from_iterable(row.splitlines(keepends=True) for row in lines)
    return _joined(_marked(lines, rule), adds_line_end=adds_line_end)


def whole(documents: Iterable[Document]) -> Iterator[bytes]:
    """The texts of documents, their parts joined."""
    held: list[bytes] = []
    for document in documents:
        held.append(document.text)
        if document.ends:
            yield b"".join(held)
            held = []


def documents_of(text: str, rule: str) -> tuple[list[str], str]:
    """The documents of a text, which make it up, and the rule by which they were found.

    Args:
        rule: as for `documents_in`; auto: headings or blank lines, where there are any, else each
            line is one.
    """
    lines = text.encode("utf-8", "surrogatepass").splitlines(keepends=True)
    if rule == "auto":
        rule = _signs_of(lines) or "row"
    found = whole(_joined(_marked(lines, rule), adds_line_end=False))
    return [document.decode("utf-8", "surrogatepass") for document in found], rule


def _marked(lines: Iterable[bytes], rule: str) -> Iterator[tuple[bool, bytes]]:
    """Lines, and whether each begins another document. After a blank line that is the first which
    is not blank. A heading of level one begins one between blank lines, unlike a formula that
    begins and ends with =, and anywhere in a text without blank lines."""
    has_text = blank_before = blank_seen = False
    begins_line = True  # False behind a part of a long line
    for line, after in itertools.pairwise(itertools.chain(lines, (b"",))):
        ends_line = _ends_line(line)
        is_blank = not line.strip()
        begins = False
        if rule == "row":
            begins = begins_line
        elif rule == "blank":
            is_blank = is_blank and begins_line and ends_line
            begins = blank_before and not is_blank and has_text
        elif rule == "heading" and has_text and is_heading(line):
            begins = not blank_seen or (blank_before and not after.strip())
        yield begins, line
        has_text = has_text or not is_blank
        blank_seen = blank_seen or is_blank
        blank_before = is_blank
        begins_line = ends_line


def _joined(lines: Iterable[tuple[bool, bytes]], *, adds_line_end: bool) -> Iterator[Document]:
    """Documents of lines, those that begin one marked, in parts of about a megabyte."""
    held: list[bytes] = []
    size = 0
    for begins, line in lines:
        if begins and held:
            yield _last(held, adds_line_end=adds_line_end)
            held = []
            size = 0
        held.append(line)
        size += len(line)
        if size > formats.LONGEST:
            *parts, rest = parts_of(b"".join(held))
            for part in parts:
                yield Document(part, ends=False)
            held = [rest]
            size = len(rest)
    if held:
        yield _last(held, adds_line_end=adds_line_end)


def _last(lines: list[bytes], *, adds_line_end: bool) -> Document:
    text = b"".join(lines)
    if adds_line_end:
        text = _with_line_end(text)
    return Document(text)


def _with_line_end(text: bytes) -> bytes:
    if _ends_line(text):
        return text
    return text + b"\n"


def _ends_line(line: bytes) -> bool:
    """False for a part of a long line."""
    return line.endswith((b"\n", b"\r"))


def is_heading(line: bytes) -> bool:
    """True for a level-one heading: `= Title =`."""
    if not line.lstrip().startswith(b"="):
        return False
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
    signs = _signs_of(lines_or_rows(path, text_field, "looking at"))
    if signs == "blank" and has_rows(path):
        return ""
    return signs


def _signs_of(lines: Iterable[bytes]) -> str:
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

    def add(self, text: bytes) -> None:
        """Go on with a document."""
        text = self._held + text
        black = text.rstrip()
        self._held = text[len(black) :]
        if not black:
            return
        if self._begins:
            black = _LEADING_BLANK.sub(b"", black)
            self._begins = False
        self._hash.update(self._line_end.join(line.rstrip() for line in black.splitlines()))

    def number(self) -> int:
        """The place of the document that was added."""
        ended = self._hash.copy()
        ended.update(self._end)
        return int.from_bytes(ended.digest())


def placed(documents: Iterable[Document], rule: str, seed: int) -> Iterator[Document]:
    """Documents with their places."""
    place = Place(rule, seed)
    for document in documents:
        place.add(document.text)
        if document.ends:
            document = document._replace(place=place.number())
            place = Place(rule, seed)
        yield document


def dealt_by_place(
    documents: Iterable[Document], split_of: Callable[[int], str]
) -> Iterator[Document]:
    """Documents with places, each in the split that its place gives. A long document waits until
    all of it is read."""
    documents = iter(documents)
    for document in documents:
        if document.place is not None:
            yield document._replace(split=split_of(document.place))
            continue
        with SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
            lengths = []
            while document.place is None:
                file.write(document.text)
                lengths.append(len(document.text))
                document = next(documents)
            split = split_of(document.place)
            file.seek(0)
            for n in lengths:
                yield Document(file.read(n), ends=False, split=split)
        yield document._replace(split=split)


_FEW_BYTES = 500
"""A document of so many is not cut, whatever the share."""
_LITTLE = 10_000
"""Bytes of a split below which each split gets one document at least."""
_NEAR_LINE_END = 2000
_NEAR_SPACE = 200
"""How far a cut inside a document looks for them, in bytes."""
_ALL_OVER = 0.6180339887
"""Multiples of it, without their whole parts, lie evenly between 0 and 1."""


class Extent(NamedTuple):
    """The size of a file in bytes, and where its last documents begin, three at most."""

    n_byte: int
    begins: tuple[int, ...]

    @classmethod
    def of(cls, documents: Iterable[Document]) -> Self:
        """That of a file, given its documents."""
        n_byte = 0
        begins: deque[int] = deque(maxlen=3)
        is_between = True
        for document in documents:
            if is_between:
                begins.append(n_byte)
            n_byte += len(document.text)
            is_between = document.ends
        return cls(n_byte, tuple(begins))


class HeldOut:
    """Deals the files of a text, in order, to train and the splits that are held out, by bytes.

    The last documents of each file are held out, and of a document that is longer than a split the
    end; what a file has too little or too much of for a split is made up by the next. Of many
    files, each about one subject, whole ones from all over are held out. What stands before a
    held-out token is then what its author wrote before it, so that a memory has something to
    remember.

    Args:
        splits: those that are held out, in the order in which they stand in a file.
        share: of the bytes, for each.
        extents: of the files, in order.
        has_rows: rows are short and many, so they are taken from the end of each file, however many
            files there are.
    """

    def __init__(
        self, splits: Sequence[str], share: float, extents: Sequence[Extent], *, has_rows: bool
    ) -> None:
        self._splits = list(splits)
        self._share = share
        self._extents = list(extents)
        self._wanted = share * sum(extent.n_byte for extent in extents)
        self._whole: dict[int, str] = {}
        if len(extents) >= MANY_FILES and not has_rows:
            self._whole = self._from_all_over()
        self.are_whole_files = bool(self._whole)
        filled = [i for i, extent in enumerate(self._extents) if extent.n_byte]
        self._fullest: int | None = None
        if not self.are_whole_files and self._wanted < _LITTLE:
            self._leave_no_split_empty(filled)
        self._is_one_document = [len(self._extents[i].begins) for i in filled] == [1]
        self._n_read = 0
        self._n_held = dict.fromkeys(self._splits, 0)

    def _from_all_over(self) -> dict[int, str]:
        """Split by the number of a file; empty if no files are of the right sizes."""
        order = sorted(range(len(self._extents)), key=lambda i: i * _ALL_OVER % 1)
        chosen: dict[int, str] = {}
        for split in self._splits:
            size = 0
            for i in order:
                n_byte = self._extents[i].n_byte
                if i not in chosen and n_byte and size + n_byte <= 1.25 * self._wanted:
                    chosen[i] = split
                    size += n_byte
                if size >= 0.75 * self._wanted:
                    break
            if size < 0.5 * self._wanted:
                return {}
        return chosen

    def _leave_no_split_empty(self, filled: Sequence[int]) -> None:
        """Choose the file whose last documents are held out, however large they are; or the last
        files, where each has too few documents for that."""
        n_split = len(self._splits)
        rich = [i for i in filled if len(self._extents[i].begins) > n_split]
        if rich:
            self._fullest = max(rich, key=lambda i: self._extents[i].n_byte)
        elif len(filled) > n_split:
            self._whole = dict(zip(filled[-n_split:], self._splits, strict=True))

    def describe(self) -> str:
        """How the splits are held out, for the log."""
        where = "the end of each file"
        if self.are_whole_files:
            where = "whole files"
        elif len(self._extents) == 1:
            where = "the end of the text"
        return f"{where}, {100 * self._share:g} % each"

    def deal(self, number: int, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents of the next file, each in its split.

        Args:
            number: of the file, from 0.
        """
        self._n_read += self._extents[number].n_byte
        if self._whole:
            split = self._whole.get(number, "train")
            dealt = (document._replace(split=split) for document in documents)
        else:
            dealt = self._cut(self._borders(number), documents)
        for document in dealt:
            if document.split in self._n_held:
                self._n_held[document.split] += len(document.text)
            yield document

    def _borders(self, number: int) -> list[int]:
        """Where each held-out split begins in a file."""
        n_byte, begins = self._extents[number]
        most = n_byte / (len(self._splits) + 1)
        borders: list[int] = []
        at = n_byte
        for i, split in enumerate(reversed(self._splits), 1):
            wanted = self._share * self._n_read - self._n_held[split]
            at -= round(min(max(0.0, wanted), most))
            if number == self._fullest:
                at = min(at, begins[-i])
            borders.insert(0, at)
        return borders

    def _cut(self, borders: Sequence[int], documents: Iterable[Document]) -> Iterator[Document]:
        """Documents in their splits, cut at borders where they are longer than a split."""
        names = ["train", *self._splits]
        at = 0
        n_passed = 0
        begins = True
        longest = max(_FEW_BYTES, self._share * self._n_read)
        for document in documents:
            text = document.text
            is_short = begins and document.ends and len(text) <= longest
            while text and n_passed < len(borders) and borders[n_passed] < at + len(text):
                wanted = max(0, borders[n_passed] - at)
                if is_short:
                    end = 0
                    if 2 * wanted >= len(text):
                        end = len(text)
                else:
                    end = place_to_cut(text, wanted, begins=begins)
                    if end == len(text) and document.ends and self._is_one_document:
                        # nothing would be left for the last split
                        end = place_to_cut(text.rstrip(b"\r\n"), wanted, begins=begins)
                if end == len(text) and not document.ends:
                    break  # the next part has a better place
                if end:
                    yield Document(_with_line_end(text[:end]), split=names[n_passed])
                    begins = True
                n_passed += 1
                at += end
                text = text[end:]
            if text:
                yield Document(text, ends=document.ends, split=names[n_passed])
            at += len(text)
            begins = document.ends


def place_to_cut(text: bytes, wanted: int, *, begins: bool) -> int:
    """Where to cut a document, in bytes from its beginning: after the next line end, if it is near,
    else before the next space, else between two characters of UTF-8.

    Args:
        wanted: the earliest place.
        begins: the document may begin behind the cut, so 0 is a place.
    """
    if begins and not wanted:
        return 0
    least = max(1, wanted)
    at = text.find(b"\n", least - 1, least + _NEAR_LINE_END) + 1
    if at:
        return at
    at = text.find(b" ", least, least + _NEAR_SPACE)
    if at > 0:
        return at
    at = least
    while at < len(text) and text[at] & 0xC0 == 0x80:
        at += 1
    return at
