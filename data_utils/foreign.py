"""Ids that somebody else made, and the documents among them."""

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from .id_files import PLAIN, TYPES, Ids, index_of, open_ids
from .id_signs import Signs, signs_of
from .raw_text import DataError
from .store import Store
from .texts import SPLITS, Texts
from .tokenizers.base import Tokenizer
from .tokenizers.integers import LARGEST, Integers

_LOG = logging.getLogger(__name__)
_NAMES = {"valid": ("valid", "val")}
_SPARSE = (
    "%s: its largest id is %d, but only %d are distinct: a short text in a large vocabulary, or ids that are not %s; "
    "their type can be named with --ids_dtype"
)


class Streams(Texts):
    """A folder of train, valid (or val) and test, each .npy or .bin. Beside valid.npy, valid.documents.npy holds where
    documents begin; an .idx beside a .bin says so too."""

    rule = "row"

    def files(self, split: str) -> list[Path]:
        names = _NAMES.get(split, (split,))
        there = [self.home / f"{name}{suffix}" for suffix in (".npy", ".bin") for name in names]
        return [next((path for path in there if path.is_file()), there[0])]

    def require(self, split: str) -> None:
        self._open(split)

    def ready(self, split: str, n_token: int) -> Store | None:
        """Raises `DataError` if ids are outside the vocabulary."""
        (path,) = self.files(split)
        found, signs = self._open(split), self._signs(split)
        if signs.first_negative >= 0:
            what = f"holds the id {signs.least}, first at index {signs.first_negative}; ids count from 0"
            raise DataError(f"{path}: {what}: take out what marks padding or no target")
        if signs.largest >= n_token:
            held = f"holds ids from {signs.least} to {signs.largest}, outside the vocabulary of {n_token}"
            raise DataError(f"{path}: {held}; give a larger --vocab_size, or other ids")
        if found.is_plain and signs.is_sparse:
            _LOG.warning(_SPARSE, path, signs.largest, signs.n_distinct, PLAIN)
        nothing = np.zeros(0, dtype=np.uint64)
        return Store(found.ids, found.starts, [0], nothing, nothing, {"n_unknown": 0, "n_eos": 0, "n_document": 0})

    def fingerprint(self, split: str) -> str:
        """Hex digest of the ids of a split, and of what says what they are and where documents begin, if anything."""
        (path,) = self.files(split)
        beside = [other for other in (index_of(path), _documents_of(path)) if other is not None and other.is_file()]
        digests = [self.checks.digest(file) for file in (path, *beside)]
        if self._open(split).ids.dtype != np.dtype(TYPES[PLAIN]) and path.suffix == ".bin" and index_of(path) is None:
            digests.append(self.config.ids_dtype)
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def describe(self, n_document: Mapping[str, int]) -> None:
        described = []
        for split in filter(self.is_there, SPLITS):
            with suppress(DataError):  # a damaged split is refused once it is read
                ids, signs = self._open(split).ids, self._signs(split)
                counts = f"{len(ids):,} ids of {ids.dtype.name}, {signs.n_distinct:,} distinct"
                described.append(f"{self.files(split)[0].name}: {counts}, the largest {signs.largest:,}")
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
            what = f"holds no ascending indices below {len(store.ids)}, the number of ids in {path.name}"
            raise DataError(f"{beside}: {what}")
        return starts

    def vocabulary(self) -> Integers:
        """Numbers up to --vocab_size, else up to the largest of the ids."""
        if self.config.vocab_size is not None:
            return Integers(self.config.vocab_size)
        there = {split: self._signs(split) for split in SPLITS if self.is_there(split)}
        for split, signs in there.items():
            if signs.largest >= LARGEST:
                hint = " (-1 as an unsigned number)" if signs.largest in (2**32 - 1, 2**64 - 1) else ""
                what = f"holds the id {signs.largest}{hint}; a vocabulary has at most {LARGEST} tokens"
                raise DataError(f"{self.files(split)[0]}: {what}")
        return Integers(1 + max(0, *(signs.largest for signs in there.values())))

    def _open(self, split: str) -> Ids:
        return open_ids(self.files(split)[0], self.config.ids_dtype)

    def _signs(self, split: str) -> Signs:
        """What the ids of a split tell of themselves. Raises `DataError` if they are of another type than they are read
        as."""
        (path,), index = self.files(split), index_of(self.files(split)[0])
        what = f"signs {self.config.ids_dtype} {'' if index is None else self.checks.digest(index)}"
        found = self.checks.result(path, what, lambda: _measured(self._open(split)))
        signs = Signs(*json.loads(found))
        if signs.type:
            raise DataError(f"{path}: {_seem(signs.type)}")
        return signs


def _measured(found: Ids) -> str:
    return json.dumps(signs_of(found.ids, is_plain=found.is_plain))


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
