"""Which part of a text is held out where no file names it: the end of each file, or whole files.

What stands before a held-out token is then the text that its author wrote before it, so that a
memory has something to remember.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .documents import MANY_FILES, Piece

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

    def to_text(self) -> str:
        """As it is kept."""
        return " ".join(map(str, (self.n_byte, *self.begins)))

    @classmethod
    def from_text(cls, text: str) -> "Extent":
        """Inverse of `to_text`."""
        n_byte, *begins = map(int, text.split())
        return cls(n_byte, tuple(begins))


def extent_of(pieces: Iterable[Piece]) -> Extent:
    """The extent of a file, given its documents."""
    n_byte = 0
    begins: deque[int] = deque(maxlen=3)
    is_between = True
    for piece in pieces:
        if is_between:
            begins.append(n_byte)
        n_byte += len(piece.content)
        is_between = piece.ends
    return Extent(n_byte, tuple(begins))


class HeldOut:
    """Deals a text to train and the splits that are held out, by bytes.

    The last documents of each file are held out, and of a document that is longer than a split the
    end. Of many files, each about one subject, whole ones from all over are held out.

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
        self.splits = list(splits)
        self._share = share
        self._extents = list(extents)
        self._n_byte = sum(extent.n_byte for extent in extents)
        self._whole: dict[int, str] = {}
        if len(extents) >= MANY_FILES and not has_rows:
            self._whole = self._from_all_over()
        self.are_whole_files = bool(self._whole)
        self._fullest: int | None = None
        if not self.are_whole_files and share * self._n_byte < _LITTLE:
            self._leave_no_split_empty()

    def _from_all_over(self) -> dict[int, str]:
        """Split by the number of a file; empty if no files are of the right sizes."""
        wanted = self._share * self._n_byte
        order = sorted(range(len(self._extents)), key=lambda i: i * _ALL_OVER % 1)
        chosen: dict[int, str] = {}
        for split in self.splits:
            size = 0
            for i in order:
                n_byte = self._extents[i].n_byte
                if i not in chosen and n_byte and size + n_byte <= 1.25 * wanted:
                    chosen[i] = split
                    size += n_byte
                if size >= 0.75 * wanted:
                    break
            if size < 0.5 * wanted:
                return {}
        return chosen

    def _leave_no_split_empty(self) -> None:
        """Choose the file whose last documents are held out, however large they are; or the last
        files, where each has too few documents for that."""
        n_split = len(self.splits)
        filled = [i for i, extent in enumerate(self._extents) if extent.n_byte]
        rich = [i for i in filled if len(self._extents[i].begins) > n_split]
        if rich:
            self._fullest = max(rich, key=lambda i: self._extents[i].n_byte)
        elif len(filled) > n_split:
            self._whole = dict(zip(filled[-n_split:], self.splits, strict=True))

    def text(self) -> "Dealing":
        """What deals the files, which must be read in order."""
        return Dealing(self, self._share, self._extents, self._whole, self._fullest)

    def describe(self) -> str:
        """How the splits were held out, for the log."""
        share = f"{100 * self._share:g} % each"
        if self.are_whole_files:
            return f"whole files, {share}"
        if len(self._extents) == 1:
            return f"the end of the text, {share}"
        return f"the end of each file, {share}"


class Dealing:
    """One pass over a text, see `HeldOut`. What a file has too little or too much of for a split is
    made up by the next."""

    def __init__(
        self,
        held_out: HeldOut,
        share: float,
        extents: Sequence[Extent],
        whole: dict[int, str],
        fullest: int | None,
    ) -> None:
        self._splits = held_out.splits
        self._share = share
        self._extents = extents
        self._whole = whole
        self._fullest = fullest
        filled = [extent for extent in extents if extent.n_byte]
        self._is_one_document = [len(extent.begins) for extent in filled] == [1]
        self._n_read = 0
        self._n_held = dict.fromkeys(self._splits, 0)

    def file(self, number: int, pieces: Iterable[Piece]) -> Iterator[tuple[str, Piece]]:
        """The documents of the next file, each piece with its split.

        Args:
            number: of the file, from 0.
        """
        self._n_read += self._extents[number].n_byte
        if number in self._whole:
            dealt = ((self._whole[number], piece) for piece in pieces)
        elif self._whole:
            dealt = (("train", piece) for piece in pieces)
        else:
            dealt = self._ends(self._cuts(number), pieces)
        for split, piece in dealt:
            if split in self._n_held:
                self._n_held[split] += len(piece.content)
            yield split, piece

    def _cuts(self, number: int) -> list[int]:
        """Where each held-out split begins in a file."""
        n_byte, begins = self._extents[number]
        most = n_byte / (len(self._splits) + 1)
        cuts: list[int] = []
        at = n_byte
        for i, split in enumerate(reversed(self._splits), 1):
            wanted = self._share * self._n_read - self._n_held[split]
            at -= round(min(max(0.0, wanted), most))
            if number == self._fullest:
                at = min(at, begins[-i])
            cuts.insert(0, at)
        return cuts

    def _ends(self, cuts: Sequence[int], pieces: Iterable[Piece]) -> Iterator[tuple[str, Piece]]:
        names = ["train", *self._splits]
        at = 0
        n_passed = 0
        begins = True
        longest = max(_FEW_BYTES, self._share * self._n_read)
        for piece in pieces:
            content = piece.content
            is_short = begins and piece.ends and len(content) <= longest
            while content and n_passed < len(cuts) and cuts[n_passed] < at + len(content):
                wanted = max(0, cuts[n_passed] - at)
                if is_short:
                    end = 0
                    if 2 * wanted >= len(content):
                        end = len(content)
                else:
                    end = place_to_cut(content, wanted, begins=begins)
                    if end == len(content) and piece.ends and self._is_one_document:
                        # nothing would be left for the last split
                        end = place_to_cut(content.rstrip(b"\r\n"), wanted, begins=begins)
                if end == len(content) and not piece.ends:
                    break  # the next piece has a better place
                if end:
                    yield names[n_passed], Piece(_with_line_end(content[:end]), ends=True)
                    begins = True
                n_passed += 1
                at += end
                content = content[end:]
            if content:
                yield names[n_passed], Piece(content, ends=piece.ends)
            at += len(content)
            begins = piece.ends


def place_to_cut(content: bytes, wanted: int, *, begins: bool) -> int:
    """Where to cut a document, in bytes from its beginning: after the next line end, if it is near,
    else before the next space, else between two characters of UTF-8.

    Args:
        wanted: the earliest place.
        begins: the document may begin behind the cut, so 0 is a place.
    """
    if begins and not wanted:
        return 0
    least = max(1, wanted)
    at = content.find(b"\n", least - 1, least + _NEAR_LINE_END) + 1
    if at:
        return at
    at = content.find(b" ", least, least + _NEAR_SPACE)
    if at > 0:
        return at
    at = least
    while at < len(content) and content[at] & 0xC0 == 0x80:
        at += 1
    return at


def _with_line_end(content: bytes) -> bytes:
    if content.endswith((b"\n", b"\r")):
        return content
    return content + b"\n"
