"""Bytes as tokens; enwik8 and text8."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from .any_files import AnyFiles
from .datasets import DataSet
from .documents import Piece, no_documents
from .files import require_regular
from .formats import COMPRESSED, LONGEST, opened
from .raw_text import DataError, reading, require_text
from .store import Store
from .texts import SPLITS, Tagged, Texts
from .tokenizer import (
    Batch,
    Block,
    Encoded,
    Numbering,
    RunningTokenizer,
    Tokenizer,
    byte_lengths,
    codes_of,
    sizes_of,
)

ALL_BYTES = tuple(map(str, range(256)))


class Symbols(RunningTokenizer):
    """Bytes by their number, `32` is a space. A text begins after a line end or a space. What is
    not UTF-8 is shown as U+FFFD."""

    takes_words = keeps_line_ends = True
    unit = "bytes"

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)
        codes = [self.byte_of(word) for word in words]
        if not all(0 <= code < 256 for code in codes):
            raise ValueError("a word is no byte")
        if len(set(codes)) != len(codes):
            raise ValueError("a byte is in the vocabulary twice")
        self.code_V = np.array(codes, dtype=np.uint8)
        self.id_of_byte = np.full(256, -1, dtype=np.int16)
        self.id_of_byte[self.code_V] = np.arange(len(words))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`. Raises `ValueError` if it is damaged."""
        return cls(text.removesuffix("\n").split("\n"))

    @staticmethod
    def byte_of(word: str) -> int:
        """The byte that a word of the vocabulary names."""
        return int(word)

    @staticmethod
    def name_of(byte: int) -> str:
        """Inverse of `byte_of`."""
        return str(byte)

    @property
    def eos_id(self) -> int:
        for byte in (ord("\n"), ord(" ")):
            if self.id_of_byte[byte] >= 0:
                return int(self.id_of_byte[byte])
        return 0

    def ids(self, content: bytes) -> np.ndarray:
        """The ids of bytes. Raises `DataError` at a byte that is not in the vocabulary."""
        id_N = self.id_of_byte[np.frombuffer(content, dtype=np.uint8)]
        if (id_N < 0).any():  # where in its file is not known here: this may be one of many batches
            raise DataError(
                f"byte {content[np.argmax(id_N < 0)]} of the text is not in the vocabulary; take "
                "it out"
            )
        return id_N

    def encode(self, text: str) -> Encoded:
        return Encoded(self.ids(text.encode("utf-8", "surrogateescape")), ends_of_bytes(text))

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        for batch in batches:
            yield Block(
                self.ids(batch.content),
                np.array(batch.ends, dtype=np.int64),
                sizes=_sizes_of(batch),
            )

    def text_of(self, ids: Sequence[int]) -> str:
        return self.code_V[np.asarray(ids, dtype=np.int64)].tobytes().decode("utf-8", "replace")


class Text8Symbols(Symbols):
    """Characters; `_` is a space, and what text8 does not have is named by its number."""

    @staticmethod
    def byte_of(word: str) -> int:
        if len(word) == 1:
            if word == "_":
                return 32
            return ord(word)
        return int(word.removeprefix("<").removesuffix(">"))

    @staticmethod
    def name_of(byte: int) -> str:
        if byte == 32:
            return "_"
        if chr(byte).isalnum() and byte < 128:
            return chr(byte)
        return f"<{byte}>"


class ByteNumbers(Numbering):
    """Bytes of splits, counted, with the place of the first of each."""

    def __init__(self, kind: type[Symbols]) -> None:
        self._kind = kind
        self._counts: dict[str, np.ndarray] = {}
        self._first: dict[str, np.ndarray] = {}

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        for batch in batches:
            codes = np.frombuffer(batch.content, dtype=np.uint8)
            counts_V = self._counts.setdefault(batch.split, np.zeros(256, dtype=np.int64))
            first_V = self._first.setdefault(batch.split, np.full(256, -1, dtype=np.int64))
            n_before = int(counts_V.sum())
            counts_V += np.bincount(codes, minlength=256)
            for byte in np.flatnonzero((counts_V > 0) & (first_V < 0)).tolist():
                first_V[byte] = n_before + batch.content.index(byte)
            yield Block(codes, np.array(batch.ends, dtype=np.int64), sizes=_sizes_of(batch))

    def tokenizer(self, splits: Sequence[str], **limits: Any) -> Tokenizer:
        """The most frequent first, ties by first occurrence."""
        counts_V = np.zeros(256, dtype=np.int64)
        first_V = np.full(256, -1, dtype=np.int64)
        n_before = 0
        for split in splits:
            new_V = (first_V < 0) & (self._first[split] >= 0)
            first_V[new_V] = n_before + self._first[split][new_V]
            counts_V += self._counts[split]
            n_before += int(self._counts[split].sum())
        codes = np.flatnonzero(counts_V)
        ordered = codes[np.lexsort((first_V[codes], -counts_V[codes]))]
        return self._kind(list(map(self._kind.name_of, ordered.tolist())))

    def table(self, split: str, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
        return tokenizer.id_of_byte.astype(np.uint32), np.zeros(256, dtype=bool)


def _sizes_of(batch: Batch) -> np.ndarray | None:
    if not batch.measured:
        return None
    text = batch.content.decode(errors="surrogateescape")
    return sizes_of(text, ends_of_bytes(text))


def ends_of_bytes(text: str) -> np.ndarray:
    """The number of characters of a text up to the end of each of its bytes, (N,): a character ends
    with its last."""
    if text.isascii():
        return np.arange(1, len(text) + 1)
    lengths_C = byte_lengths(codes_of(text))
    last_N = np.zeros(lengths_C.sum(), dtype=bool)
    last_N[np.cumsum(lengths_C) - 1] = True
    return np.cumsum(last_N)


WHOLE = 100_000_000
"""Bytes of enwik8 and of text8."""
_NUMBERS = re.compile(rb"[0-9 \n]*")
_SPACED = re.compile(rb"(?:\S )*\S?")


class ByteSplits(Texts):
    """The bytes of enwik8 or text8. A raw file, compressed or not, is cut as published: the last 5
    % are test, the 5 % before them valid. Each split is one document."""

    rule = "file"

    def require_data(self) -> None:
        """Find the three files of the splits, or the raw file."""
        name = self.config.dataset
        given = self.config.data
        if not isinstance(given, str):
            raise DataError(
                f"--data {' '.join(given)}: --dataset {name} needs one folder or one file"
            )
        path = Path(given)
        splits = [path / f"{split}.txt" for split in SPLITS]
        if path.exists() and not path.is_dir():
            require_regular(path)
            self._raw: Path | None = path
            return
        raw = [path / f"{name}{suffix}" for suffix in ("", *COMPRESSED)]
        self._raw = next(filter(Path.is_file, raw), None)
        if all(map(Path.is_file, splits)):
            self._raw = None
        elif self._raw is None and not splits[0].is_file():
            advice = f"put {name} or {name}.zip there, or the three files of the 2019 scripts"
            raise DataError(
                f"{path / name}: no such file; {advice}, "
                f"or load it: python -m data_utils.download {name}"
            )

    def files(self, split: str) -> list[Path]:
        return [self._raw or self.home / f"{split}.txt"]

    def require(self, split: str) -> None:
        require_text(self.files(split)[0])

    def together(self, splits: Sequence[str]) -> Sequence[str]:
        if self._raw:
            return SPLITS
        return splits

    def settings(self, split: str) -> list[Any]:
        settings: list[Any] = [self.config.dataset, self.config.data_convention]
        if self._raw:
            settings.append(split)
        return settings

    def fingerprint(self, split: str) -> str | None:
        return None

    def pieces(self, splits: Sequence[str]) -> Iterator[Tagged]:
        raw = {}
        if self._raw:
            raw = self._raw_splits()
        for split in splits:
            content = raw.get(split)
            if content is None:
                content = self._unspaced(self.files(split)[0])
            if self.config.data_convention == "original":
                content = self.as_in_2019(content)
            if not content:
                what = f"too short for a {split} split; it needs some 20 bytes of text"
                raise DataError(f"{self.files(split)[0]}: {what}")
            for begin in range(0, len(content), LONGEST):
                part = content[begin : begin + LONGEST]
                yield Tagged(split, Piece(part, ends=begin + LONGEST >= len(content)))

    def as_in_2019(self, content: bytes) -> bytes:
        """A split as the 2019 code reads it: without line ends."""
        return content.replace(b"\n", b"")

    def unspaced(self, content: bytes) -> bytes:
        """The bytes of a split; undoes what the 2019 scripts do. Raises `ValueError` if it has
        something else."""
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
        parts = (
            content[:n_train],
            content[n_train : n_train + n_held],
            content[n_train + n_held :],
        )
        return dict(zip(SPLITS, parts, strict=True))

    def _measured(self) -> str:
        assert self._raw is not None
        with opened(self._raw, "measuring") as (file, _):
            return str(sum(map(len, iter(lambda: file.read(LONGEST), b""))))

    def describe(self, n_document: Mapping[str, int]) -> None:
        if self._raw is None:
            return
        size = int(self.checks.result(self._raw, "size", self._measured))
        self.note = (
            f"{self._raw.name}: {size:,} bytes, the last {size // 20:,} for test, "
            "those before for valid"
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
ENWIK8 = DataSet(Enwik8, Symbols, SPLITS, partial(ByteNumbers, Symbols), as_in_2019=_AS_IN_2019)
TEXT8 = DataSet(
    Text8, Text8Symbols, SPLITS, partial(ByteNumbers, Text8Symbols), as_in_2019=_AS_IN_2019
)
ANY_BYTES = DataSet(AnyFiles, Symbols, known=lambda texts: Symbols(ALL_BYTES))
