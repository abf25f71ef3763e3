"""Texts: which files a split is read from, and the documents in them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .datasets import DataConfig
from .documents import Piece, no_documents, pieces_in, signs_of
from .files import home_of, require_folder
from .formats import has_rows, lines_or_rows
from .raw_text import DataError, line_without_text, require_text
from .store import Checks, Store
from .tokenizer import Batch, Tokenizer

SPLITS = ("train", "valid", "test")


class Tagged(NamedTuple):
    """A piece of a document with its split, and the document's place where the piece ends it, see
    `dealing`."""

    split: str
    piece: Piece
    place: int | None = None
    begins_file: bool = False


class Texts:
    """A folder with train.txt, valid.txt and test.txt, in articles."""

    rule = "heading"
    note = ""
    """How the texts of the splits were found, once they are all read; empty if there is nothing to
    tell."""
    dealt: Sequence[str] = ()
    """Splits that no file names; their documents are split off the training text."""

    def __init__(self, config: DataConfig, checks: Checks) -> None:
        self.config = config
        self.checks = checks
        self.home = home_of(config.data)
        self.require_data()

    def require_data(self) -> None:
        """Raise `DataError` if --data names another thing than this needs."""
        require_folder(self.config.data, self.config.dataset)

    def files(self, split: str) -> list[Path]:
        """The files that a split is read from, which need not be there."""
        return [self.home / f"{split}.txt"]

    def is_there(self, split: str) -> bool:
        """True if all of its files are there."""
        files = self.files(split)
        return bool(files) and all(map(Path.is_file, files))

    def name(self, split: str) -> str:
        """The files of a split, for messages."""
        first, *more = self.files(split)
        shown = str(first).encode(errors="backslashreplace").decode()  # a name need not be UTF-8
        if more:
            return f"{shown} and {len(more):,} more"
        return shown

    def defines_vocabulary(self, counted: Sequence[str]) -> bool:
        """True if what a vocabulary is made of, these splits, is there."""
        return all(map(self.is_there, counted))

    def require(self, split: str) -> None:
        """Raise `DataError` unless the text of a split is there."""
        for path in self.files(split):
            require_text(path)

    def together(self, splits: Sequence[str]) -> Sequence[str]:
        """These splits, and those that are read with them."""
        return splits

    def settings(self, split: str) -> list[Any]:
        """What the documents of a split depend on besides the content of its files."""
        return [self.rule]

    def fingerprint(self, split: str) -> str | None:
        """Hex digest of the text of a split; None: that of its documents, joined."""
        return self.checks.digest(self.files(split)[0])

    def pieces(self, splits: Sequence[str]) -> Iterator[Tagged]:
        """The documents of these splits, in order."""
        for split in splits:
            for path in self.files(split):
                begins = True
                for piece in pieces_in(path, self.rule, self.config.text_field):
                    yield Tagged(split, piece, None, begins)
                    begins = False

    def describe(self, n_document: Mapping[str, int]) -> None:
        """Set `note`, given the number of documents of each split."""

    def document_starts(self, split: str, store: Store, tokenizer: Tokenizer) -> np.ndarray:
        """Indices into the ids of a split where documents begin. Raises `DataError` if the text
        names none."""
        has_headings = any(self._signs_of(path) == "heading" for path in self.files(split))
        if self.needs_headings(tokenizer) and not has_headings:
            raise no_documents(
                "the text has no line like '= Title =' that begins a document; say what a document"
                " is with --documents blank, row or file, or"
            )
        assert store.starts is not None
        return store.starts

    def needs_headings(self, tokenizer: Tokenizer) -> bool:
        """True if nothing else begins a document."""
        return self.rule == "heading"

    def _signs_of(self, path: Path) -> str:
        field = self.config.text_field
        return self.checks.result(path, f"documents {field}", lambda: signs_of(path, field))

    def ready(self, split: str, n_token: int) -> Store | None:
        """The ids of a split that somebody else made; None: they are to be made from text."""
        return None

    def fault(self, split: str) -> DataError:
        """The error for a text that is not UTF-8, with its line."""
        for path in self.files(split):
            lines = lines_or_rows(path, self.config.text_field, task="searching")
            if error := line_without_text(path, lines, is_string=has_rows(path)):
                return error
        return self.changed(split)  # every line is UTF-8 now

    def changed(self, split: str) -> DataError:
        """The error for files that changed between two looks at them."""
        return DataError(f"{self.name(split)}: has changed while it was read; start again")

    def line_with(self, split: str, words: set[str]) -> tuple[Path, int, str]:
        """The first of these words in a split: its file, the number of its line or row, and the
        word."""
        for path in self.files(split):
            lines = lines_or_rows(path, self.config.text_field, task="searching")
            for n, line in enumerate(lines, 1):
                for word in line.decode(errors="replace").split():
                    if word in words or word.lower() in words:
                        return path, n, word
        raise self.changed(split)


def batches(
    tagged: Iterator[Tagged], *, n_byte: int, cuts_words: bool, by_file: bool
) -> Iterator[Batch]:
    """Pieces joined to batches of one split each.

    Args:
        cuts_words: a batch may end anywhere; else at white space or the end of a document.
        by_file: no batch has pieces of two files.
    """
    held: dict[str, list[Tagged]] = {}
    sizes: Counter[str] = Counter()

    def taken(split: str) -> Batch:
        del sizes[split]
        contents: list[bytes] = []
        ends: list[int] = []
        places: list[int] = []
        begins_file = False
        size = 0
        for part in held.pop(split):
            contents.append(part.piece.content)
            size += len(part.piece.content)
            if part.piece.ends:
                ends.append(size)
            if part.place is not None:
                places.append(part.place)
            begins_file = begins_file or part.begins_file
        content = b"".join(contents)
        return Batch(content, ends, split, places, begins_file, measured=split != "train")

    for part in tagged:
        split = part.split
        piece = part.piece
        if by_file and part.begins_file and split in held:
            yield taken(split)
        if sizes[split] >= n_byte and piece.content[:1].isspace():
            yield taken(split)
        held.setdefault(split, []).append(part)
        sizes[split] += len(piece.content)
        if sizes[split] >= n_byte and (piece.ends or cuts_words or piece.content[-1:].isspace()):
            yield taken(split)
    for split in list(held):
        yield taken(split)
