"""Ids that somebody else made: files of integers, and the documents among them."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np

from .cache import Store
from .config import DataSet
from .errors import DataError, reading
from .texts import SPLITS, Texts
from .tokens import RunningTokenizer, Tokenizer, Tokens

LARGEST = 2**24
"""Tokens of a vocabulary."""


class Integers(RunningTokenizer):
    """Numbers from 0 on; as text, between spaces. A text begins after the number 0."""

    unit = "ids"

    def __init__(self, n_token: int) -> None:
        super().__init__(list(map(str, range(n_token))))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`. Raises `ValueError` if it is damaged."""
        n_token = text.count("\n")
        if not text.endswith(f"{n_token - 1}\n") or not text.startswith("0\n"):
            raise ValueError("holds something else than the numbers from 0 on")
        return cls(n_token)

    @property
    def eos_id(self) -> int:
        return 0

    def encode(self, text: str) -> Tokens:
        numbers: list[int] = []
        ends: list[int] = []
        for word in re.finditer(r"\S+", text):
            if word[0] not in self:
                what = f"no number from 0 to {len(self) - 1}; give ids separated by white space"
                raise DataError(f"{word[0]!r}: {what}")
            numbers.append(int(word[0]))
            ends.append(word.end())
        return Tokens(np.array(numbers, dtype=np.int64), np.array(ends, dtype=np.int64))

    def text_of(self, ids: Iterable[int]) -> str:
        return "".join(f" {i}" for i in ids)

    def decoder(self) -> Callable[[int], str]:
        return lambda token: f" {token}"


_BLOCK = 1 << 22
_HEADS_OF_LLM_C = (20240520, 20240801)
"""What llm.c's files of ids begin with, of GPT-2's and of Llama 3's."""
_FEWEST = 16
"""Fewer ids tell nothing of their type."""


def open_ids(path: Path) -> np.ndarray:
    """The integers of a file, (N,), read-only. Raises `DataError` if it is missing, damaged, empty,
    or holds something else."""
    with reading(path):
        if not path.is_file():
            raise DataError(
                f"{path}: no such file; --dataset ids needs a file of each split, .npy or .bin"
            )
        if path.suffix == ".npy":
            return _npy(path)
        foreign = _foreign(path)
        if foreign:
            raise DataError(
                f"{path}: {foreign}; a .bin file holds uint16 and nothing else, as nanoGPT writes"
                f" it; write other ids with numpy.save as {path.stem}.npy"
            )
        return np.memmap(path, dtype="<u2", mode="r")


def _npy(path: Path) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # of sizes that a header claims
            ids = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # numpy reads the header as Python, and raises whatever that gives
        why = (str(error).splitlines() or [type(error).__name__])[0]
        if "Python objects" in why:
            why = "holds Python objects, such as rows of different lengths"
        raise DataError(f"{path}: no array of numpy ({why}); use np.save") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
        raise DataError(
            f"{path}: holds {ids.dtype} of shape {ids.shape}; it needs integers of shape (n,)"
        )
    return ids


def _foreign(path: Path) -> str:
    """What tells that a .bin file is none of nanoGPT's; empty: nothing does."""
    size = path.stat().st_size
    if path.with_suffix(".idx").is_file():
        return "is a file of Megatron-LM or fairseq, as the .idx beside it says"
    if not size or size % 2:
        return f"has {size} bytes, which are no ids of 2 bytes"
    first = np.fromfile(path, dtype="<u2", count=_BLOCK)
    head = first[:4].tobytes()
    if head.startswith(b"\x93NUMPY"):
        return "holds an array of numpy and has another name"
    if int.from_bytes(head[:4], "little") in _HEADS_OF_LLM_C:
        return "begins with a header of llm.c"
    if len(first) >= _FEWEST and first[::2].any() and not first[1::2].any():
        return "every second id is 0, as in ids of 4 or 8 bytes"
    return ""


def extremes_of(ids: np.ndarray) -> tuple[int, int, int]:
    """The least and the largest of all ids, and how many distinct ones there are of those that a
    vocabulary can have. A block is read at a time."""
    seen = np.zeros(LARGEST + 1, dtype=bool)
    lows = []
    highs = []
    for begin in range(0, len(ids), _BLOCK):
        block = np.asarray(ids[begin : begin + _BLOCK])
        lows.append(int(block.min()))
        highs.append(int(block.max()))
        if lows[-1] < 0 or highs[-1] > LARGEST:
            block = block[(block >= 0) & (block <= LARGEST)]
        seen[block] = True
    return min(lows), max(highs), int(seen.sum())


class Streams(Texts):
    """A folder of train, valid (or val) and test, each .npy or .bin. Beside valid.npy,
    valid.documents.npy holds where documents begin."""

    rule = "row"

    def files(self, split: str) -> list[Path]:
        there = self._there(split)
        return there[:1] or [self.home / f"{split}.npy"]

    def _there(self, split: str) -> list[Path]:
        names = [split]
        if split == "valid":
            names.append("val")
        paths = [self.home / f"{name}{suffix}" for suffix in (".npy", ".bin") for name in names]
        return list(filter(Path.is_file, paths))

    def require(self, split: str) -> None:
        there = self._there(split)
        if len(there) > 1:
            both = f"{there[0]} and {there[1].name}: both hold the {split} split"
            raise DataError(f"{both}; remove one, or name it otherwise")
        self._open(split)

    def ready(self, split: str, n_token: int) -> Store | None:
        """Raises `DataError` if ids are outside the vocabulary."""
        ids = self._open(split)
        least, largest, _ = self._extremes(split)
        path = self.files(split)[0]
        if least < 0:
            advice = "ids count from 0: take out what marks padding or no target"
            raise DataError(f"{path}: holds the id {least}; {advice}")
        if largest >= n_token:
            what = f"holds ids from {least} to {largest}, outside the vocabulary of {n_token}"
            raise DataError(f"{path}: {what}; give a larger --vocab_size, or other ids")
        return Store(ids)

    def fingerprint(self, split: str) -> str:
        """Hex digest of the ids of a split, and of where documents begin, if anything says so."""
        digest = self.checks.digest(self.files(split)[0])
        beside = self._beside(split)
        if not beside.is_file():
            return digest
        both = digest + self.checks.digest(beside)
        return hashlib.sha256(both.encode()).hexdigest()

    def describe(self, n_document: Mapping[str, int]) -> None:
        described = []
        for split in filter(self.is_there, SPLITS):
            with suppress(DataError):  # a damaged split is refused once it is read
                ids = self._open(split)
                _, largest, n_distinct = self._extremes(split)
                counts = f"{len(ids):,} ids of {ids.dtype.name}, {n_distinct:,} distinct"
                name = self.files(split)[0].name
                described.append(f"{name}: {counts}, the largest {largest:,}")
        self.note = "; ".join(described)

    def document_starts(self, split: str, store: Store, tokenizer: Tokenizer) -> np.ndarray:
        beside = self._beside(split)
        if not beside.is_file():
            needs = "documents of --dataset ids need the index where each begins there"
            raise DataError(f"{beside}: no such file; {needs}")
        starts = open_ids(beside).astype(np.int64)
        if (np.diff(starts) <= 0).any() or starts[0] < 0 or starts[-1] >= len(store.ids):
            what = f"holds no ascending indices below {len(store.ids)}, the number of ids"
            raise DataError(f"{beside}: {what}")
        return starts

    def vocabulary(self) -> Integers:
        """Numbers up to --vocab_size, else up to the largest of the ids."""
        if self.config.vocab_size is not None:
            return Integers(self.config.vocab_size)
        largest = 0
        for split in filter(self.is_there, SPLITS):
            number = self._extremes(split)[1]
            if number >= LARGEST:
                what = f"holds the id {number}; a vocabulary has at most {LARGEST} tokens"
                raise DataError(f"{self.files(split)[0]}: {what}")
            largest = max(largest, number)
        return Integers(1 + largest)

    def _beside(self, split: str) -> Path:
        path = self.files(split)[0]
        return path.with_name(f"{path.stem}.documents.npy")

    def _open(self, split: str) -> np.ndarray:
        return open_ids(self.files(split)[0])

    def _extremes(self, split: str) -> list[int]:
        path = self.files(split)[0]
        return self.checks.result(path, "extremes", lambda: list(extremes_of(open_ids(path))))


IDS = DataSet(Streams, Integers, ("train", "valid"), known=lambda texts: texts.vocabulary())
