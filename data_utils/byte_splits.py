"""enwik8 and text8 as train, valid and test: from the raw file, or from the files that the 2019 scripts write."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .documents import Piece, no_documents
from .file_formats import LONGEST
from .named_files import require_regular
from .raw_text import DataError, reading, require_text
from .store import Store
from .texts import SPLITS, Tagged, Texts
from .tokenizers.base import Tokenizer
from .uncompressed import COMPRESSED, opened

WHOLE = 100_000_000
"""Bytes of enwik8 and of text8."""
_NUMBERS = re.compile(rb"[0-9 \n]*")
_SPACED = re.compile(rb"(?:\S )*\S?")


class ByteSplits(Texts):
    """The bytes of enwik8 or text8. A raw file, compressed or not, is cut as published: the last 5 % are test, the 5 %
    before them valid. Each split is one document."""

    rule = "file"

    def require_data(self) -> None:
        """Find the three files of the splits, or the raw file."""
        name, given = self.config.dataset, self.config.data
        if not isinstance(given, str):
            raise DataError(f"--data {' '.join(given)}: --dataset {name} needs one folder or one file")
        path = Path(given)
        splits = [path / f"{split}.txt" for split in SPLITS]
        if path.exists() and not path.is_dir():
            require_regular(path)
            self._raw: Path | None = path
            return
        there = (path / f"{name}{suffix}" for suffix in ("", *COMPRESSED))
        self._raw = next((one for one in there if one.is_file()), None)
        if all(one.is_file() for one in splits):
            self._raw = None
        elif self._raw is None and not splits[0].is_file():
            advice = f"put {name} or {name}.zip there, or the three files of the 2019 scripts"
            raise DataError(f"{path / name}: no such file; {advice}, or load it: python -m data_utils.download {name}")

    def files(self, split: str) -> list[Path]:
        return [self._raw or self.home / f"{split}.txt"]

    def require(self, split: str) -> None:
        require_text(self.files(split)[0])

    def together(self, splits: Sequence[str]) -> Sequence[str]:
        return SPLITS if self._raw else splits

    def settings(self, split: str) -> list[Any]:
        return [self.config.dataset, self.config.data_convention, *([split] if self._raw else [])]

    def fingerprint(self, split: str) -> str | None:
        return None

    def pieces(self, splits: Sequence[str]) -> Iterator[Tagged]:
        raw = self._raw_splits() if self._raw else {}
        for split in splits:
            content = raw[split] if raw else self._unspaced(self.files(split)[0])
            if self.config.data_convention == "original":
                content = self.as_in_2019(content)
            if not content:
                raise DataError(
                    f"{self.files(split)[0]}: too short for a {split} split; it needs some 20 bytes of text"
                )
            for begin in range(0, len(content), LONGEST):
                part = content[begin : begin + LONGEST]
                yield Tagged(split, Piece(part, ends=begin + LONGEST >= len(content)))

    def as_in_2019(self, content: bytes) -> bytes:
        """A split as the 2019 code reads it: without line ends."""
        return content.replace(b"\n", b"")

    def unspaced(self, content: bytes) -> bytes:
        """The bytes of a split; undoes what the 2019 scripts do. Raises `ValueError` if it has something else."""
        raise NotImplementedError

    def _raw_splits(self) -> dict[str, bytes]:
        assert self._raw is not None
        with opened(self._raw, "reading") as (file, _):
            content = file.read()
        name = self.config.dataset
        if len(content) != WHOLE and not self.config.prefix:
            what = f"has {len(content):,} bytes, {name} has {WHOLE:,}"
            advice = "bring the file again, or say with --prefix that it is only a beginning"
            raise DataError(f"{self._raw}: {what}; {advice}")
        n_held = len(content) // 20
        n_train = len(content) - 2 * n_held
        parts = (content[:n_train], content[n_train : n_train + n_held], content[n_train + n_held :])
        return dict(zip(SPLITS, parts, strict=True))

    def _measured(self) -> str:
        assert self._raw is not None
        with opened(self._raw, "measuring") as (file, _):
            return str(sum(map(len, iter(lambda: file.read(LONGEST), b""))))

    def describe(self, n_document: Mapping[str, int]) -> None:
        if self._raw is None:
            return
        size = int(self.checks.result(self._raw, "size", self._measured))
        self.note = f"{self._raw.name}: {size:,} bytes, the last {size // 20:,} for test, those before for valid"
        if size != WHOLE:
            name = self.config.dataset
            other = f"this is not {name}, which has {WHOLE:,}: figures are not comparable with published ones"
            self.note += f"; {other}"

    def document_starts(self, split: str, store: Store, tokenizer: Tokenizer) -> np.ndarray:
        raise no_documents(f"{self.config.dataset} is one text without documents")

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
        return bytes(10 if word == b"\n" else int(word) for word in content.split(b" ") if word)


class Text8(ByteSplits):
    """text8, or what prep_text8.py makes of it: characters between spaces, of which `_` is a space."""

    def as_in_2019(self, content: bytes) -> bytes:
        return super().as_in_2019(content).strip()

    def unspaced(self, content: bytes) -> bytes:
        if not _SPACED.fullmatch(content[: 1 << 12].rstrip(b"\n")):
            return content
        return content.rstrip(b"\n")[::2].replace(b"_", b" ")
