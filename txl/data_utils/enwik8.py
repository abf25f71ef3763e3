"""enwik8 and text8: bytes that are cut into splits by their number."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .cache import Store
from .config import DataSet
from .documents import Document, no_documents
from .errors import DataError, reading
from .formats import COMPRESSED, LONGEST, blocks
from .sources import require_regular
from .texts import SPLITS, Texts, require_text
from .tokens import Symbols, Tokenizer

WHOLE = 100_000_000
"""Bytes of enwik8 and of text8."""
_NUMBERS = re.compile(rb"[0-9 \n]*")
_SPACED = re.compile(rb"(?:\S )*\S?")


class Text8Symbols(Symbols):
    """Characters; `_` is a space, and what text8 does not have is named by its number."""

    @staticmethod
    def byte_of(word: str) -> int:
        if len(word) == 1:
            return ord(word.replace("_", " "))
        return int(word.removeprefix("<").removesuffix(">"))

    @staticmethod
    def name_of(code: int) -> str:
        if code == 32:
            return "_"
        if chr(code).isalnum() and code < 128:
            return chr(code)
        return f"<{code}>"


class ByteSplits(Texts):
    """The bytes of enwik8 or text8. A raw file, compressed or not, is cut as published: the last 5
    % are test, the 5 % before them valid. Each split is one document."""

    rule = "file"
    _raw: Path | None = None

    def require_data(self) -> None:
        """Find the three files of the splits, or the raw file."""
        name = self.config.dataset
        given = self.config.data
        if not isinstance(given, str):
            raise DataError(
                f"--data {' '.join(given)}: --dataset {name} needs one folder or one file"
            )
        path = Path(given)
        if path.exists() and not path.is_dir():
            require_regular(path)
            self._raw = path
            return
        splits = [path / f"{split}.txt" for split in SPLITS]
        if all(map(Path.is_file, splits)):
            return
        raw = (path / f"{name}{suffix}" for suffix in ("", *COMPRESSED))
        self._raw = next(filter(Path.is_file, raw), None)
        if self._raw is None and not splits[0].is_file():
            advice = f"put {name} or {name}.zip there, or the three files of the 2019 scripts"
            raise DataError(
                f"{path / name}: no such file; {advice}, "
                f"or load it: python -m data_utils.download {name}"
            )

    def files(self, split: str) -> list[Path]:
        return [self._raw or self.home / f"{split}.txt"]

    def together(self, splits: Sequence[str]) -> Sequence[str]:
        if self._raw:
            return SPLITS
        return splits

    def settings(self, split: str) -> list[Any]:
        return [self.config.dataset, self.config.data_convention, self._raw and split]

    def fingerprint(self, split: str) -> str | None:
        return None

    def documents(self, splits: Sequence[str]) -> Iterator[Document]:
        contents = self._raw_splits()
        for split in splits:
            content = contents.get(split)
            if content is None:
                content = self._unspaced(self.files(split)[0])
            if self.config.data_convention == "original":
                content = self.as_in_2019(content)
            if not content:
                what = f"too short for a {split} split; it needs some 20 bytes of text"
                raise DataError(f"{self.files(split)[0]}: {what}")
            for begin in range(0, len(content), LONGEST):
                end = begin + LONGEST
                yield Document(content[begin:end], end >= len(content), split, None, not begin)

    def as_in_2019(self, content: bytes) -> bytes:
        """A split as the 2019 code reads it: without line ends."""
        return content.replace(b"\n", b"")

    def unspaced(self, content: bytes) -> bytes:
        """The bytes of a split; undoes what the 2019 scripts do. Raises `ValueError` if it has
        something else."""
        raise NotImplementedError

    def _raw_splits(self) -> dict[str, bytes]:
        """The splits of the raw file; none where there is no such file."""
        if self._raw is None:
            return {}
        content = b"".join(blocks(self._raw, "reading"))
        name = self.config.dataset
        if len(content) != WHOLE and not self.config.prefix:
            what = f"has {len(content):,} bytes, {name} has {WHOLE:,}"
            advice = "bring the file again, or say with --prefix that it is only a beginning"
            raise DataError(f"{self._raw}: {what}; {advice}")
        n_held = len(content) // 20
        train, held = content[: len(content) - 2 * n_held], content[len(content) - 2 * n_held :]
        return {"train": train, "valid": held[:n_held], "test": held[n_held:]}

    def describe(self, n_document: Mapping[str, int]) -> None:
        raw = self._raw
        if raw is None:
            return
        size = self.checks.result(raw, "size", lambda: sum(map(len, blocks(raw, "measuring"))))
        self.note = (
            f"{raw.name}: {size:,} bytes, the last {size // 20:,} for test, those before for valid"
        )
        if size != WHOLE:
            name = self.config.dataset
            self.note += (
                f"; this is not {name}, which has {WHOLE:,}: "
                "figures are not comparable with published ones"
            )

    def document_starts(self, split: str, store: Store, tokenizer: Tokenizer) -> np.ndarray:
        raise no_documents(f"{self.config.dataset} is one text without documents;")

    def _unspaced(self, path: Path) -> bytes:
        require_text(path)
        with reading(path):
            content = path.read_bytes()
        try:
            return self.unspaced(content)
        except ValueError:
            what = f"has something else than numbers of bytes; give {self.config.dataset} itself"
            raise DataError(f"{path}: {what}") from None


class Enwik8(ByteSplits):
    """enwik8, or what prep_enwik8.py makes of it: the numbers of bytes, between spaces."""

    def unspaced(self, content: bytes) -> bytes:
        if not _NUMBERS.fullmatch(content[: 1 << 12]):
            return content
        words = content.split(b" ")
        return bytes(10 if word == b"\n" else int(word) for word in words if word)


class Text8(ByteSplits):
    """text8, or what prep_text8.py makes of it: characters between spaces, of which `_` is a
    space."""

    def as_in_2019(self, content: bytes) -> bytes:
        return super().as_in_2019(content).strip()

    def unspaced(self, content: bytes) -> bytes:
        if not _SPACED.fullmatch(content[: 1 << 12].rstrip(b"\n")):
            return content
        return content.rstrip(b"\n")[::2].replace(b"_", b" ")


_AS_IN_2019 = {"data_convention": "original"}
ENWIK8 = DataSet(Enwik8, Symbols, SPLITS, as_in_2019=_AS_IN_2019)
TEXT8 = DataSet(Text8, Text8Symbols, SPLITS, as_in_2019=_AS_IN_2019)
