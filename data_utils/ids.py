"""Ids that somebody else made: files of integers, and the documents among them."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

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

    def encode(self, text: str, *, with_ends: bool = True) -> Tokens:
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


_HEADS_OF_LLM_C = (20240520, 20240801)
"""What llm.c's files of ids begin with, of GPT-2's and of Llama 3's."""
_BLOCK = 1 << 22
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
        if path.suffix == ".bin":
            return _bin(path)
        return _npy(path)


def _npy(path: Path) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # of sizes that a header claims
            ids = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except (
        Exception
    ) as error:  # numpy reads the header as Python, and raises whatever that and the sizes give
        if "Python objects" in str(error):
            advice = "join rows with np.concatenate and save one array of integers"
            raise DataError(
                f"{path}: holds Python objects, such as rows of different lengths; {advice}"
            ) from None
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: no array of numpy ({why}); use np.save") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
        raise DataError(
            f"{path}: holds {ids.dtype} of shape {ids.shape}; it needs integers of shape (n,)"
        )
    return ids


def _bin(path: Path) -> np.ndarray:
    """The ids of a file as nanoGPT writes it: uint16, without a header."""
    with path.open("rb") as file:
        head = file.read(8)
    size = path.stat().st_size
    if head.startswith(b"\x93NUMPY"):
        raise DataError(f"{path}: holds an array of numpy; name it {path.stem}.npy")
    if path.with_suffix(".idx").is_file():
        raise _not_read(path, "is a file of Megatron-LM or fairseq, as the .idx beside it says")
    if int.from_bytes(head[:4], "little") in _HEADS_OF_LLM_C:
        raise _not_read(path, "begins with a header of llm.c")
    if not size or size % 2:
        raise _not_read(path, f"has {size} bytes, which are no ids of 2 bytes")
    ids = np.memmap(path, dtype="<u2", mode="r")
    first = ids[:_BLOCK]
    if len(first) >= _FEWEST and first[::2].any() and not first[1::2].any():
        raise _not_read(path, "every second id is 0, as in ids of 4 or 8 bytes")
    return ids


def _not_read(path: Path, what: str) -> DataError:
    read = "a .bin file holds uint16 and nothing else, as nanoGPT writes it"
    convert = f"write other ids with numpy.save as {path.stem}.npy"
    return DataError(f"{path}: {what}; {read}; {convert}")


class Extremes(NamedTuple):
    """What was found in ids.

    Attributes:
        least, largest, n_distinct: of the ids; those that no vocabulary has do not count as
            distinct.
        first_negative: the index of the first id below 0; -1: there is none.
    """

    least: int
    largest: int
    n_distinct: int
    first_negative: int


def extremes_of(ids: np.ndarray) -> Extremes:
    """Read all ids, a block at a time."""
    seen = np.zeros(LARGEST + 1, dtype=bool)
    least = int(ids[0])
    largest = least
    first_negative = -1
    for begin in range(0, len(ids), _BLOCK):
        block = np.asarray(ids[begin : begin + _BLOCK])
        low = int(block.min())
        high = int(block.max())
        if low < 0 and first_negative < 0:
            first_negative = begin + int(np.argmax(block < 0))
        least = min(least, low)
        largest = max(largest, high)
        if low < 0 or high > LARGEST:
            block = block[(block >= 0) & (block <= LARGEST)]
        seen[block] = True
    return Extremes(least, largest, int(seen.sum()), first_negative)


_NAMES = {"valid": ("valid", "val")}


class Streams(Texts):
    """A folder of train, valid (or val) and test, each .npy or .bin. Beside valid.npy,
    valid.documents.npy holds where documents begin."""

    rule = "row"

    def files(self, split: str) -> list[Path]:
        paths = self._may_be(split)
        return [next(filter(Path.is_file, paths), paths[0])]

    def _may_be(self, split: str) -> list[Path]:
        names = _NAMES.get(split, (split,))
        return [self.home / f"{name}{suffix}" for suffix in (".npy", ".bin") for name in names]

    def require(self, split: str) -> None:
        there = list(filter(Path.is_file, self._may_be(split)))
        if len(there) > 1:
            both = f"{there[0]} and {there[1].name}: both hold the {split} split"
            raise DataError(f"{both}; remove one, or name it otherwise")
        self._open(split)

    def ready(self, split: str, n_token: int) -> Store | None:
        """Raises `DataError` if ids are outside the vocabulary."""
        (path,) = self.files(split)
        ids = self._open(split)
        extremes = self._extremes(split)
        if extremes.first_negative >= 0:
            what = (
                f"holds the id {extremes.least}, first at index {extremes.first_negative}; ids count "
                "from 0"
            )
            raise DataError(f"{path}: {what}: take out what marks padding or no target")
        if extremes.largest >= n_token:
            held = (
                f"holds ids from {extremes.least} to {extremes.largest}, outside the vocabulary of "
                f"{n_token}"
            )
            raise DataError(f"{path}: {held}; give a larger --vocab_size, or other ids")
        return Store(ids)

    def fingerprint(self, split: str) -> str:
        """Hex digest of the ids of a split, and of where documents begin, if anything says so."""
        (path,) = self.files(split)
        digest = self.checks.digest(path)
        beside = _documents_of(path)
        if not beside.is_file():
            return digest
        both = digest + self.checks.digest(beside)
        return hashlib.sha256(both.encode()).hexdigest()

    def describe(self, n_document: Mapping[str, int]) -> None:
        described = []
        for split in filter(self.is_there, SPLITS):
            with suppress(DataError):  # a damaged split is refused once it is read
                ids = self._open(split)
                extremes = self._extremes(split)
                counts = f"{len(ids):,} ids of {ids.dtype.name}, {extremes.n_distinct:,} distinct"
                name = self.files(split)[0].name
                described.append(f"{name}: {counts}, the largest {extremes.largest:,}")
        self.note = "; ".join(described)

    def document_starts(self, split: str, store: Store, tokenizer: Tokenizer) -> np.ndarray:
        (path,) = self.files(split)
        beside = _documents_of(path)
        if not beside.is_file():
            needs = "documents of --dataset ids need the index where each begins there"
            raise DataError(f"{beside}: no such file; {needs}")
        starts = open_ids(beside).astype(np.int64)
        if (np.diff(starts) <= 0).any() or starts[0] < 0 or starts[-1] >= len(store.ids):
            n_id = f"{len(store.ids)}, the number of ids in {path.name}"
            what = f"holds no ascending indices below {n_id}"
            raise DataError(f"{beside}: {what}")
        return starts

    def vocabulary(self) -> Integers:
        """Numbers up to --vocab_size, else up to the largest of the ids."""
        if self.config.vocab_size is not None:
            return Integers(self.config.vocab_size)
        largest = 0
        for split in filter(self.is_there, SPLITS):
            number = self._extremes(split).largest
            if number >= LARGEST:
                shown = str(number)
                if number in (2**32 - 1, 2**64 - 1):
                    shown = f"{number} (-1 as an unsigned number)"
                what = f"holds the id {shown}; a vocabulary has at most {LARGEST} tokens"
                raise DataError(f"{self.files(split)[0]}: {what}")
            largest = max(largest, number)
        return Integers(1 + largest)

    def _open(self, split: str) -> np.ndarray:
        return open_ids(self.files(split)[0])

    def _extremes(self, split: str) -> Extremes:
        (path,) = self.files(split)
        what = "extremes of ids"
        return Extremes(*self.checks.result(path, what, lambda: extremes_of(self._open(split))))


def _documents_of(path: Path) -> Path:
    return path.with_name(f"{path.stem}.documents.npy")


IDS = DataSet(Streams, Integers, ("train", "valid"), known=lambda texts: texts.vocabulary())
