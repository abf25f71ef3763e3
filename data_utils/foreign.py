"""Ids that somebody else made: .npy files, nanoGPT's .bin, Megatron's .bin with its .idx. They are memory-mapped."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .raw_text import DataError, reading
from .store import Store
from .texts import Texts
from .tokenizers.base import Tokenizer
from .tokenizers.integers import LARGEST, Integers

_NAMES = {"valid": ("valid", "val")}
_MAGIC = b"MMIDIDX\0\0"
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Megatron's numbers of integer types."""


class _Ids(NamedTuple):
    ids: np.ndarray
    starts: np.ndarray | None


class Streams(Texts):
    """A folder of train, valid (or val) and test, each .npy or .bin. Beside valid.npy, valid.documents.npy holds where
    documents begin; an .idx beside a .bin says so too."""

    rule = "row"

    def files(self, split: str) -> list[Path]:
        names = _NAMES.get(split, (split,))
        there = [self.home / f"{name}{suffix}" for suffix in (".npy", ".bin") for name in names]
        return [next((path for path in there if path.is_file()), there[0])]

    def require(self, split: str) -> None:
        _open(self.files(split)[0])

    def ready(self, split: str, n_token: int) -> Store | None:
        """Raises `DataError` if ids are outside the vocabulary."""
        (path,) = self.files(split)
        ids, starts = _open(path)
        least, largest = self._range(split)
        if least < 0 or largest >= n_token:
            held = f"holds ids from {least} to {largest}, outside the vocabulary of {n_token}"
            raise DataError(f"{path}: {held}; give a larger --vocab_size, or other ids")
        nothing = np.zeros(0, dtype=np.uint64)
        return Store(ids, starts, [0], nothing, nothing, {"n_unknown": 0, "n_eos": 0, "n_document": 0})

    def fingerprint(self, split: str) -> str:
        """Hex digest of the ids of a split, and of files that say what they are and where documents begin, if any."""
        (path,) = self.files(split)
        beside = [other for other in (_index_of(path), _documents_of(path)) if other is not None and other.is_file()]
        digests = [self.checks.digest(file) for file in (path, *beside)]
        return digests[0] if not beside else hashlib.sha256("".join(digests).encode()).hexdigest()

    def document_starts(self, split: str, store: Store, tokenizer: Tokenizer) -> np.ndarray:
        if store.starts is not None:
            return store.starts
        (path,) = self.files(split)
        beside = _documents_of(path)
        if not beside.is_file():
            needs = "documents of --dataset ids need the index where each begins there"
            raise DataError(f"{beside}: no such file; {needs}")
        starts = _open(beside).ids.astype(np.int64)
        if (np.diff(starts) <= 0).any() or starts[0] < 0 or starts[-1] >= len(store.ids):
            what = f"holds no ascending indices below {len(store.ids)}, the number of ids in {path.name}"
            raise DataError(f"{beside}: {what}")
        return starts

    def vocabulary(self) -> Integers:
        """Numbers up to --vocab_size, else up to the largest of the ids."""
        if self.config.vocab_size is not None:
            return Integers(self.config.vocab_size)
        for split in ("train", "valid", "test"):
            if self.is_there(split) and self._range(split)[1] >= LARGEST:
                (path,), largest = self.files(split), self._range(split)[1]
                hint = " (-1 as an unsigned number)" if largest in (2**32 - 1, 2**64 - 1) else ""
                raise DataError(f"{path}: holds the id {largest}{hint}; a vocabulary has at most {LARGEST} tokens")
        there = [split for split in ("train", "valid", "test") if self.is_there(split)]
        return Integers(1 + max(0, *(self._range(split)[1] for split in there)))

    def _range(self, split: str) -> list[int]:
        """The least and the largest id of a split."""
        (path,) = self.files(split)

        def found() -> str:
            ids = _open(path).ids
            return f"{ids.min()} {ids.max()}"

        index = _index_of(path)  # says of which type the integers are
        what = "range" if index is None else f"range {self.checks.digest(index)}"
        return [int(n) for n in self.checks.result(path, what, found).split()]


def _documents_of(path: Path) -> Path:
    return path.with_name(f"{path.stem}.documents.npy")


def _index_of(path: Path) -> Path | None:
    """Megatron's index of a .bin file; None where there is none."""
    index = path.with_suffix(".idx")
    return index if path.suffix == ".bin" and index.is_file() else None


def _open(path: Path) -> _Ids:
    """The integers of a file, read-only, and where documents begin. Raises `DataError` if it is missing, damaged,
    empty, or holds something else."""
    with reading(path):
        if not path.is_file():
            raise DataError(f"{path}: no such file; --dataset ids needs train, valid and test, each .npy or .bin")
        if path.suffix == ".bin":
            return _bin(path)
        try:
            ids = np.lib.format.open_memmap(path, mode="r")
        except (ValueError, EOFError) as error:
            raise DataError(f"{path}: no array of numpy ({str(error).splitlines()[0]}); use np.save") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
        raise DataError(f"{path}: holds {ids.dtype} of shape {ids.shape}; it needs integers of shape (n,)")
    return _Ids(ids, None)


def _bin(path: Path) -> _Ids:
    index, size = _index_of(path), path.stat().st_size
    dtype, starts, n_token = _megatron(index) if index else (np.dtype("<u2"), None, size // 2)
    if not n_token or size != n_token * dtype.itemsize:
        named = f"not the {n_token} ids of {dtype} that {index.name} names" if index else "which are no ids of 2 bytes"
        what = f"has {size} bytes, {named}"
        raise DataError(f"{path}: {what}; write it again")
    return _Ids(np.memmap(path, dtype=dtype, mode="r"), starts)


def _megatron(path: Path) -> tuple[np.dtype, np.ndarray, int]:
    """What an .idx file of Megatron-LM (MMapIndexedDataset, version 1) says: the type of the ids, where documents
    begin, the number of ids."""
    with reading(path):
        content = path.read_bytes()
    n_sequence, n_document = np.frombuffer(content[18:34], dtype="<u8").tolist() if len(content) >= 34 else (0, 0)
    kind = _TYPES.get(content[17]) if len(content) > 17 else None
    fits = len(content) == 34 + 12 * n_sequence + 8 * n_document
    if content[:9] != _MAGIC or kind is None or not fits:
        raise DataError(f"{path}: no index of Megatron-LM of integers, or a cut one; write it again")
    ends_S = np.cumsum(np.frombuffer(content, "<i4", n_sequence, offset=34).astype(np.int64))
    first_D = np.frombuffer(content, "<i8", n_document, offset=34 + 12 * n_sequence)
    if (first_D < 0).any() or (first_D > n_sequence).any():
        raise DataError(f"{path}: names documents that are not there; write it again")
    begins_S = np.append(0, ends_S)
    starts = np.unique(begins_S[first_D])
    n_token = int(begins_S[-1])
    return np.dtype(kind), starts[starts < n_token], n_token
