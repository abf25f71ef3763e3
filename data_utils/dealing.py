"""Documents dealt to train, valid and test by a hash of their text, in which white space at line ends and blank lines
around the document do not count."""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from tempfile import SpooledTemporaryFile

from .documents import Piece

_IN_MEMORY = 1 << 25
"""Bytes of a document that are held until its hash is known; of a longer one the rest waits on the disk."""
_LEADING_BLANK = re.compile(rb"\A\s*[\r\n]")
_LINE_ENDS = {"blank": (b"\n", b"\n\n"), "heading": (b" \n", b" \n \n")}
"""How texts of a rule are mostly written: the end of a line, and of a document. Of these the hash is that of the bytes,
as it was in version 0.2."""


class Place:
    """The hash of a document, from 0 to 2^64. Equal text has an equal place, whatever white space ends its lines and
    whatever blank lines surround it.

    Args:
        rule: how documents are found.
        seed: another seed gives other places.
    """

    def __init__(self, rule: str, seed: int) -> None:
        self._line_end, self._end = _LINE_ENDS.get(rule, (b"\n", b"\n"))
        self._hash = hashlib.blake2b(digest_size=8, key=str(seed).encode())
        self._held, self._begins = b"", True

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
    """The documents of a text: what tells the place of each, and its pieces, which must be read before the next one.

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
                for one in itertools.chain((piece,), _noted(pieces, place)):
                    file.write(one.content)
                    lengths.append(len(one.content))
                file.seek(0)
                parts = (Piece(file.read(n), ends=i == len(lengths)) for i, n in enumerate(lengths, 1))
                yield place.number, parts


def _noted(pieces: Iterator[Piece], place: Place) -> Iterator[Piece]:
    """The rest of a document, added to its place."""
    for piece in pieces:
        place.add(piece.content)
        yield piece
        if piece.ends:
            return
