"""The store of a split: its ids and where its documents begin, in a folder named by the digest of
all that it is made from. It is written under another name and renamed, so that it is complete or
absent.

`Checks` keeps what was found in whole files, with their sizes and times: they are read again only
when these change.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl.files import discard, flush, lock, sha256, signals_raise

from .raw_text import read_record, reading, write_record
from .tokenizer import MEASURES, Batch, Block

CHECKED = "checked.json"
_SETTLED_NS = 2 * 10**9
"""A younger file may change again without a new modification time."""


class Checks:
    """The results of checks on files, kept in checked.json of a cache folder."""

    def __init__(self, cache: Path) -> None:
        self._path = cache / CHECKED
        self._known = read_record(self._path)
        self._new: dict[str, Any] = {}
        self._young: set[str] = set()

    def result(self, path: Path, what: str, find: Callable[[], str]) -> str:
        """The result of `find`, a check named `what` of the content of a file."""
        with reading(path):
            state = path.stat()
            stamp = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
            name = f"{what} {path.resolve()}"
            match self._known.get(name):
                case [then, str(answer)] if then == stamp:
                    return answer
            age = time.time_ns() - state.st_mtime_ns
            answer = find()
        self._known[name] = [stamp, answer]
        if age > _SETTLED_NS:
            self._new[name] = [stamp, answer]
        else:
            self._young.add(name)
        return answer

    def forget_young(self) -> None:
        """Find again, when asked, what was found in files so young that they may have changed
        without a new time."""
        for name in self._young:
            self._known.pop(name, None)
        self._young.clear()

    def digest(self, path: Path) -> str:
        """The SHA-256 of a file."""
        return self.result(path, "sha256", lambda: sha256(path))

    def save(self) -> None:
        """Keep the new results; a read-only folder is no error."""
        if self._new:
            with suppress(OSError):
                write_record(self._path, {**read_record(self._path), **self._new})
            self._new = {}


VERSION = 3
RECORD = "store.json"
_DRAFT = ".txl-draft."
"""Begins the name of a folder that may be removed unless it is locked; nothing else may begin
so."""
_TYPES = {
    "ids.bin": None,
    "documents.bin": np.int64,
    "places.bin": np.uint64,
    "sizes.bin": np.uint32,
}
_COUNTS = ("n_unknown", "n_eos", "n_document")
_SPECIAL = "special"
"""A field that stores made before version 0.3 do not have."""
_FIELDS = {"dtype", "files", "text", "sha256", *_COUNTS}
"""Of the record of a store."""
_BLOCK = 1 << 20


class Store(NamedTuple):
    """A split.

    Attributes:
        ids: (N,), memory-mapped and read-only.
        starts: indices into `ids` where documents begin; None: nothing is known of documents.
        files: indices where files begin, if the tokenizer tells them apart.
        places: of the documents, see `documents.Place`, in ascending order; empty if they
            are not asked for.
        sizes: what each token stands for, see `sizes_of`, (N, 4); empty if it was not
            measured.
        record: n_unknown, n_eos, `special` (see `Tokenizer.special_in`), and `text`, the digest of
            the text.
    """

    ids: np.ndarray
    starts: np.ndarray | None
    files: list[int]
    places: np.ndarray
    sizes: np.ndarray
    record: dict[str, Any]


def name_of(kind: str, made_from: object) -> str:
    """The name of the folder that holds what is made from this."""
    return f"{kind}-{hashlib.sha256(json.dumps([VERSION, made_from]).encode()).hexdigest()[:20]}"


def open_store(folder: Path, checks: Checks, n_token: int) -> Store | None:
    """The store in a folder, of ids below `n_token`; None if it is absent or damaged, also on
    purpose."""
    record = open_record(folder, checks)
    if record is None or not _is_of_store(record) or record["dtype"] != _dtype_of(n_token).name:
        return None
    try:
        held = {
            name: mapped(folder / name, kind or record["dtype"]) for name, kind in _TYPES.items()
        }
        sizes = held["sizes.bin"].reshape(-1, len(MEASURES))
    except ValueError:  # not so many bytes as numbers of this size have
        return None
    store = Store(
        held["ids.bin"], held["documents.bin"], record["files"], held["places.bin"], sizes, record
    )
    if not _is_consistent(store, n_token):
        return None
    return store


def _is_of_store(record: dict[str, Any]) -> bool:
    """True if a record has the fields of a store's, of their types."""
    return (
        record.keys() - {_SPECIAL} == _FIELDS
        and _counts_words(record.get(_SPECIAL, {}))
        and record["sha256"].keys() == _TYPES.keys()
        and isinstance(record["text"], str)
        and isinstance(record["files"], list)
        and all(
            type(n) is int and 0 <= n < 2**63
            for n in (*record["files"], *(record[name] for name in _COUNTS))
        )
    )


def _counts_words(special: object) -> bool:
    """True for counts by word."""
    return isinstance(special, dict) and all(
        type(count) is int and 0 <= count < 2**63 for count in special.values()
    )


def _is_consistent(store: Store, n_token: int) -> bool:
    """True if the ids are of the vocabulary, and what is known of them is of so many."""
    n_id = len(store.ids)
    borders = (np.asarray(store.starts), np.array(store.files, dtype=np.int64))
    return (
        len(store.sizes) in (0, n_id)
        and all(block.max() < n_token for block in _blocks(store.ids))
        and all(_is_ascending(border_D, n_id) for border_D in borders)
    )


def _is_ascending(border_D: np.ndarray, end: int) -> bool:
    """True for ascending indices from 0 to `end`."""
    if not len(border_D):
        return True
    if border_D[0] < 0 or border_D[-1] > end:
        return False
    return all((block[1:] >= block[:-1]).all() for block in _blocks(border_D, overlap=1))


def _blocks(array: np.ndarray, overlap: int = 0) -> Iterator[np.ndarray]:
    """Parts of an array that are small enough for the memory; each with the first `overlap` numbers
    of the next."""
    for begin in range(0, len(array), _BLOCK):
        yield array[begin : begin + _BLOCK + overlap]


def open_record(folder: Path, checks: Checks) -> dict[str, Any] | None:
    """The record of a folder that `keep` wrote; None if it is absent, or a file is damaged. Whoever
    changes a record can renew its digest, so each field is checked too."""
    record = read_record(folder / RECORD)
    if record.pop("digest", None) != _digest(record):
        return None
    if not isinstance(record.get("sha256"), dict):
        return None
    for name, digest in record["sha256"].items():
        path = folder / name
        if path.name != name:
            return None
        if (
            not path.is_file()
            or checks.result(path, "sha256", lambda path=path: sha256(path)) != digest
        ):
            return None
    return record


def keep(draft: Path, folder: Path, record: dict[str, Any]) -> None:
    """Give the files in `draft` their name, with a record. What was there, which is damaged,
    goes."""
    record = {**record, "sha256": {path.name: sha256(path) for path in sorted(draft.iterdir())}}
    (draft / RECORD).write_text(json.dumps({**record, "digest": _digest(record)}), encoding="utf-8")
    for path in (*draft.iterdir(), draft):
        flush(path)
    discard(folder)
    draft.replace(folder)
    flush(folder.parent)


@contextmanager
def draft_folder(cache: Path) -> Iterator[Path]:
    """A folder in `cache` for what is not complete yet; it is removed at the end, as are those of
    killed processes."""
    cache.mkdir(parents=True, exist_ok=True)
    for left in cache.glob(f"{_DRAFT}*"):
        if left.is_dir():
            with _locked(left) as is_mine:
                if is_mine:
                    shutil.rmtree(left, ignore_errors=True)
    with signals_raise():
        folder = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=cache))
        try:
            with _locked(folder):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield lock(descriptor, wait=False)
    finally:
        os.close(descriptor)


class Writer(ExitStack):
    """Writes the blocks of a split into a folder, in files that are closed in the end. (Not by
    `ndarray.tofile`, which does not notice that a disk is full.)

    Args:
        n_token: of the vocabulary; None: not known yet, the ids are numbers that `translate` gets.
    """

    def __init__(self, folder: Path, n_token: int | None) -> None:
        super().__init__()
        folder.mkdir()
        self.folder = folder
        self._dtype = _dtype_of(n_token)
        self._files = {name: self.enter_context((folder / name).open("wb")) for name in _TYPES}
        self._n_token = self._n_before = self.n_unknown = self.n_eos = 0
        self._begins: list[int] = []
        self._places: list[np.ndarray] = []
        self._text = hashlib.sha256()
        self._ends_line = True
        self.n_document = 0
        self._special: Counter[str] = Counter()

    def add(self, batch: Batch, block: Block) -> None:
        """Write the tokens of a batch."""
        self._text.update(batch.content)
        self._ends_line = batch.content.endswith((b"\n", b"\r"))
        if batch.begins_file:
            self._begins.append(self._n_token)
        starts = block.ends
        if len(block.ends):
            starts = np.append(self._n_before, self._n_token + block.ends[:-1])
        self._files["documents.bin"].write(starts.astype(np.int64).tobytes())
        self.n_document += len(starts)
        if len(block.ends):
            self._n_before = self._n_token + int(block.ends[-1])
        self._files["ids.bin"].write(block.ids.astype(self._dtype).tobytes())
        self._n_token += len(block.ids)
        self._places.append(np.array(batch.places, dtype=np.uint64))
        if block.sizes is not None:
            self._files["sizes.bin"].write(block.sizes.astype(np.uint32).tobytes())
        self.n_unknown += block.n_unknown
        self.n_eos += block.n_eos
        self._special.update(block.special)

    def translate(self, id_V: np.ndarray, unknown_V: np.ndarray, n_token: int) -> None:
        """Turn numbers into the ids of a vocabulary of `n_token`."""
        self._files["ids.bin"].close()
        numbers = (self.folder / "ids.bin").rename(self.folder / "numbers")
        self._dtype = _dtype_of(n_token)
        with numbers.open("rb") as source, (self.folder / "ids.bin").open("wb") as target:
            while len(number_N := np.fromfile(source, dtype=np.uint32, count=1 << 20)):
                target.write(id_V[number_N].astype(self._dtype).tobytes())
                self.n_unknown += int(unknown_V[number_N].sum())
        numbers.unlink()

    def finish(self) -> dict[str, Any]:
        """Close the files; the record of the store."""
        places = np.concatenate([np.zeros(0, dtype=np.uint64), *self._places])
        self._files["places.bin"].write(np.sort(places).tobytes())
        self.close()
        if (
            not self._ends_line and (self.folder / "sizes.bin").stat().st_size
        ):  # a last line without a line end counts
            sizes = np.memmap(self.folder / "sizes.bin", dtype=np.uint32, mode="r+")
            sizes[-len(MEASURES) + MEASURES.index("lines")] += 1
            sizes.flush()
        counts = {"n_unknown": self.n_unknown, "n_eos": self.n_eos, "n_document": self.n_document}
        return {
            "dtype": self._dtype.name,
            "files": self._begins,
            "text": self._text.hexdigest(),
            "special": dict(self._special),
            **counts,
        }

    def holds_only(self, token: int) -> bool:
        """True if all ids that were written are this one."""
        if not self._files["ids.bin"].closed:
            self._files["ids.bin"].flush()
        with (self.folder / "ids.bin").open("rb") as file:
            while len(ids := np.fromfile(file, dtype=self._dtype, count=1 << 20)):
                if (ids != token).any():
                    return False
        return True


def _dtype_of(n_token: int | None) -> np.dtype:
    """Of the ids of a vocabulary; None: of a number that is not known."""
    if n_token is None or n_token > 2**16:
        return np.dtype(np.uint32)
    return np.dtype(np.uint16)


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def mapped(path: Path, dtype: Any) -> np.ndarray:
    """The numbers in a file, memory-mapped and read-only."""
    if not path.stat().st_size:
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")
