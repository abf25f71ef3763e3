"""Ids that somebody else made: files of integers, what they tell of themselves, and the documents
among them."""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from .datasets import DataSet
from .raw_text import DataError, reading
from .store import Store
from .texts import SPLITS, Texts
from .tokenizer import Batch, Block, Encoded, RunningTokenizer, Tokenizer

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

    def encode(self, text: str) -> Encoded:
        numbers: list[int] = []
        ends: list[int] = []
        for word in re.finditer(r"\S+", text):
            if word[0] not in self:
                what = f"no number from 0 to {len(self) - 1}; give ids separated by white space"
                raise DataError(f"{word[0]!r}: {what}")
            numbers.append(int(word[0]))
            ends.append(word.end())
        return Encoded(np.array(numbers, dtype=np.int64), np.array(ends, dtype=np.int64))

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        raise NotImplementedError("ids are read as they are")

    def text_of(self, ids: Iterable[int]) -> str:
        return "".join(f" {i}" for i in ids)

    def decoder(self) -> Callable[[int], str]:
        return lambda token: f" {token}"


TYPES = {
    "uint8": "u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "int32": "<i4",
    "int64": "<i8",
    "uint16_be": ">u2",
    "int32_be": ">i4",
    "int64_be": ">i8",
}
"""The types that --ids_dtype names; be: big-endian."""
PLAIN = "uint16"
"""What a .bin file holds of which nothing says what it holds: nanoGPT's has no header."""
_MEGATRON = b"MMIDIDX\0\0"
_FAIRSEQ = b"TNTIDX\0\0"
_NUMBERED_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
"""Megatron's and fairseq's numbers of integer types."""
_LLM_C = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
"""The magic number and version at the beginning of llm.c's files, of GPT-2's ids and of Llama
3's."""
_LLM_C_HEADER = 1024


class Ids(NamedTuple):
    """The integers of a file, read-only.

    Attributes:
        starts: indices where documents begin; None: the file does not say.
        is_plain: nothing says of which type the integers are.
    """

    ids: np.ndarray
    starts: np.ndarray | None = None
    is_plain: bool = False


class _Index(NamedTuple):
    dtype: np.dtype
    starts: np.ndarray
    n_token: int


def open_ids(path: Path, dtype: str) -> Ids:
    """The integers of a file. Raises `DataError` if it is missing, damaged, empty, or holds
    something else.

    Args:
        dtype: a key of `TYPES`, of a .bin file that does not say it itself; auto: `PLAIN`.
    """
    with reading(path):
        if not path.is_file():
            raise DataError(
                f"{path}: no such file; --dataset ids needs a file of each split, .npy or .bin"
            )
        if path.suffix == ".bin":
            return _bin(path, dtype)
        return _npy(path)


def index_of(path: Path) -> Path | None:
    """The index of Megatron-LM or fairseq of a .bin file; None where there is none."""
    index = path.with_suffix(".idx")
    if path.suffix != ".bin" or not index.is_file():
        return None
    return index


def _npy(path: Path) -> Ids:
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
    return Ids(ids)


def _bin(path: Path, dtype: str) -> Ids:
    size = path.stat().st_size
    index = index_of(path)
    if index is not None:
        held = _index(index)
        _require_size(path, size, held.n_token, held.dtype, index.name)
        return Ids(np.memmap(path, dtype=held.dtype, mode="r"), held.starts)
    with path.open("rb") as file:
        head = file.read(_LLM_C_HEADER)
    if head.startswith(b"\x93NUMPY"):
        raise DataError(f"{path}: holds an array of numpy; name it {path.stem}.npy")
    if len(head) == _LLM_C_HEADER:
        magic, version, n_token = np.frombuffer(head, "<i4", 3).tolist()
        if kind := _LLM_C.get((magic, version)):
            _require_size(path, size - _LLM_C_HEADER, n_token, np.dtype(kind), "its header")
            return Ids(np.memmap(path, dtype=kind, mode="r", offset=_LLM_C_HEADER))
    if dtype == "auto":
        kind = np.dtype(TYPES[PLAIN])
    else:
        kind = np.dtype(TYPES[dtype])
    if not size or size % kind.itemsize:
        advice = "write it again, or name another type with --ids_dtype"
        raise DataError(
            f"{path}: has {size} bytes, which are no ids of {kind.itemsize} bytes; {advice}"
        )
    return Ids(np.memmap(path, dtype=kind, mode="r"), is_plain=dtype == "auto")


def _require_size(path: Path, size: int, n_token: int, dtype: np.dtype, who: str) -> None:
    """Raise `DataError` unless the ids of a file fill it."""
    if n_token < 1 or size != n_token * dtype.itemsize:
        what = f"has {size} bytes, not the {n_token} ids of {dtype} that {who} names"
        raise DataError(f"{path}: {what}; write it again")


def _index(path: Path) -> _Index:
    """What an .idx file says: of Megatron-LM (version 1), or of fairseq (mmap), where each sequence
    is a document.

    Both begin with a magic number, a version, the number of the type and that of sequences, S; then
    come, of Megatron-LM, the number of documents, D; of both, S lengths and S places; of
    Megatron-LM, D sequences."""
    with reading(path):
        content = path.read_bytes()
    if content.startswith(_FAIRSEQ):
        advice = "binarise with --dataset-impl mmap"
        raise DataError(f"{path}: an index of fairseq's older kind, which is not read; {advice}")
    kind = None
    if len(content) > 17:
        kind = _NUMBERED_TYPES.get(content[17])
    numbers = np.frombuffer(content[18:34].ljust(16, b"\0"), dtype="<u8").tolist()
    n_sequence, n_document = numbers
    is_fairseq = len(content) == 26 + 12 * n_sequence
    is_megatron = len(content) == 34 + 12 * n_sequence + 8 * n_document
    if content[:9] != _MEGATRON or kind is None or not (is_fairseq or is_megatron):
        what = "no index of Megatron-LM or fairseq of integers, or a cut one"
        raise DataError(f"{path}: {what}; write it again")
    begin = 26
    if is_megatron:
        begin = 34
    ends_S = np.cumsum(np.frombuffer(content, "<i4", n_sequence, offset=begin).astype(np.int64))
    begins_S = np.append(0, ends_S)
    first_D = np.arange(n_sequence)
    if is_megatron:
        first_D = np.frombuffer(content, "<i8", n_document, offset=begin + 12 * n_sequence)
    if (first_D < 0).any() or (first_D > n_sequence).any():
        raise DataError(f"{path}: names documents that are not there; write it again")
    n_token = int(begins_S[-1])
    starts = np.unique(begins_S[first_D])
    return _Index(np.dtype(kind), starts[starts < n_token], n_token)


_BLOCK = 1 << 22
_FEWEST = 16
"""Fewer numbers tell nothing of their type."""
_HIGH = 16
_LOW = 4096

"""Numbers whose upper halves lie below the one and some lower half above the other are of 32
bits."""
_FAR_ABOVE = 4


class Signs(NamedTuple):
    """What was found in ids.

    Attributes:
        least, largest, n_distinct: of the ids; those that no vocabulary has do not count as
            distinct.
        first_negative: the index of the first id below 0; -1: there is none.
        type: the name of a type that ids which are read as uint16 seem to be of; empty: they are
            what they seem.
    """

    least: int
    largest: int
    n_distinct: int
    first_negative: int
    type: str

    @property
    def is_sparse(self) -> bool:
        """The largest id lies far above the number of distinct ids."""
        return self.largest + 1 >= _FAR_ABOVE * self.n_distinct


def signs_of(ids: np.ndarray, *, is_plain: bool) -> Signs:
    """Read all ids, a block at a time.

    Args:
        is_plain: nothing says of which type they are.
    """
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
    type_ = ""
    if is_plain and len(ids) >= _FEWEST:
        type_ = _wider_type(ids)
    return Signs(least, largest, int(seen.sum()), first_negative, type_)


def _wider_type(ids: np.ndarray) -> str:
    """The type that ids which are read as uint16 seem to be of; empty if none."""
    is_float32 = len(ids) % 2 == 0
    is_float64 = len(ids) % 4 == 0
    is_swapped = True
    most_4 = np.zeros(4, dtype=np.int64)
    most_swapped_4 = np.zeros(4, dtype=np.int64)
    for begin in range(0, len(ids), _BLOCK):
        block = np.asarray(ids[begin : begin + _BLOCK])
        is_float32 = is_float32 and _are_whole(block.view("<f4"))
        is_float64 = is_float64 and _are_whole(block.view("<f8"))
        is_swapped = is_swapped and not (block & 0xFF).any()
        for i in range(4):
            most_4[i] = max(most_4[i], block[i::4].max(initial=0))
            most_swapped_4[i] = max(most_swapped_4[i], block[i::4].byteswap().max(initial=0))
    if not most_4.any():
        return ""
    if is_float32:
        return "float32"
    if is_float64:
        return "float64"
    wider = _of_halves(most_4, "") or _of_halves(most_swapped_4[::-1], "_be")
    if not wider and is_swapped:
        return "uint16_be"
    return wider


def _of_halves(most_4: np.ndarray, suffix: str) -> str:
    """The type of numbers of which these are the largest parts of 16 bits, the lowest part
    first."""
    is_small = most_4 < _HIGH
    if not most_4[2:].any() and is_small[1]:
        return f"int64{suffix}"
    if not most_4[1::2].any() or (is_small[1::2].all() and (most_4[0::2] > _LOW).any()):
        return f"int32{suffix}"
    if not most_4[3]:
        return f"int64{suffix}"
    return ""


def _are_whole(numbers: np.ndarray) -> bool:
    """True for whole numbers that may be ids."""
    with np.errstate(invalid="ignore"):
        return bool(((numbers >= 0) & (numbers <= LARGEST) & (numbers == np.floor(numbers))).all())


_LOG = logging.getLogger(__name__)
_NAMES = {"valid": ("valid", "val")}
_SPARSE = (
    "%s: its largest id is %d, but only %d are distinct: a short text in a large vocabulary, or "
    "ids that are not %s; "
    "their type can be named with --ids_dtype"
)


class Streams(Texts):
    """A folder of train, valid (or val) and test, each .npy or .bin. Beside valid.npy,
    valid.documents.npy holds where documents begin; an .idx beside a .bin says so too."""

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
        signs = self._signs(split)
        if signs.first_negative >= 0:
            what = (
                f"holds the id {signs.least}, first at index {signs.first_negative}; ids count "
                "from 0"
            )
            raise DataError(f"{path}: {what}: take out what marks padding or no target")
        if signs.largest >= n_token:
            held = (
                f"holds ids from {signs.least} to {signs.largest}, outside the vocabulary of "
                f"{n_token}"
            )
            raise DataError(f"{path}: {held}; give a larger --vocab_size, or other ids")
        if ids.is_plain and signs.is_sparse:
            _LOG.warning(_SPARSE, path, signs.largest, signs.n_distinct, PLAIN)
        nothing = np.zeros(0, dtype=np.uint64)
        counts = {"n_unknown": 0, "n_eos": 0, "n_document": 0}
        return Store(ids.ids, ids.starts, [0], nothing, nothing, counts)

    def fingerprint(self, split: str) -> str:
        """Hex digest of the ids of a split, and of what says what they are and where documents
        begin, if anything."""
        (path,) = self.files(split)
        digests = [self.checks.digest(path)]
        for beside in (index_of(path), _documents_of(path)):
            if beside is not None and beside.is_file():
                digests.append(self.checks.digest(beside))
        is_wide = self._open(split).ids.dtype != np.dtype(TYPES[PLAIN])
        if is_wide and path.suffix == ".bin" and index_of(path) is None:
            digests.append(self.config.ids_dtype)
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    def describe(self, n_document: Mapping[str, int]) -> None:
        described = []
        for split in filter(self.is_there, SPLITS):
            with suppress(DataError):  # a damaged split is refused once it is read
                ids = self._open(split).ids
                signs = self._signs(split)
                counts = f"{len(ids):,} ids of {ids.dtype.name}, {signs.n_distinct:,} distinct"
                name = self.files(split)[0].name
                described.append(f"{name}: {counts}, the largest {signs.largest:,}")
        self.note = "; ".join(described)

    def document_starts(self, split: str, store: Store, tokenizer: Tokenizer) -> np.ndarray:
        if store.starts is not None:
            return store.starts
        (path,) = self.files(split)
        beside = _documents_of(path)
        if not beside.is_file():
            needs = "documents of --dataset ids need the index where each begins there"
            raise DataError(f"{beside}: no such file; {needs}")
        starts = open_ids(beside, "auto").ids.astype(np.int64)
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
            number = self._signs(split).largest
            if number >= LARGEST:
                shown = str(number)
                if number in (2**32 - 1, 2**64 - 1):
                    shown = f"{number} (-1 as an unsigned number)"
                what = f"holds the id {shown}; a vocabulary has at most {LARGEST} tokens"
                raise DataError(f"{self.files(split)[0]}: {what}")
            largest = max(largest, number)
        return Integers(1 + largest)

    def _open(self, split: str) -> Ids:
        return open_ids(self.files(split)[0], self.config.ids_dtype)

    def _signs(self, split: str) -> Signs:
        """What the ids of a split tell of themselves. Raises `DataError` if they are of another
        type than they are read as."""
        (path,) = self.files(split)
        index = index_of(path)
        digest = ""
        if index is not None:
            digest = self.checks.digest(index)
        what = f"signs {self.config.ids_dtype} {digest}"
        measured = self.checks.result(path, what, lambda: _measured(self._open(split)))
        signs = Signs(*json.loads(measured))
        if signs.type:
            raise DataError(f"{path}: {_seem(signs.type)}")
        return signs


def _measured(ids: Ids) -> str:
    return json.dumps(signs_of(ids.ids, is_plain=ids.is_plain))


def _seem(name: str) -> str:
    """What is said of ids that seem to be of another type."""
    if name not in TYPES:
        return f"its numbers are {name}; write integers: ids.astype(numpy.{PLAIN}).tofile(...)"
    what = f"its numbers are {name}, read as {PLAIN} every second or fourth is 0 or small"
    if name == "uint16_be":
        what = f"its numbers are {name} (big-endian), read as {PLAIN} all are multiples of 256"
    return f"{what}; give --ids_dtype {name}, or, if they are what they seem, --ids_dtype {PLAIN}"


def _documents_of(path: Path) -> Path:
    return path.with_name(f"{path.stem}.documents.npy")


IDS = DataSet(Streams, Integers, ("train", "valid"), known=lambda texts: texts.vocabulary())
