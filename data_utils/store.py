"""The store of a split: its ids and where its documents begin, in a folder named by the digest of all that it is made
from. It is written under another name and renamed, so that it is complete or absent."""

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl.files import flush, lock, sha256, sigterm_raises

from .checks import Checks
from .raw_text import read_record
from .sizes import MEASURES
from .tokenizers.base import Batch, Block

VERSION = 3
RECORD = "store.json"
_DRAFT = ".txl-draft."
"""Begins the name of a folder that may be removed unless it is locked; nothing else may begin so."""
_TYPES = {"ids.bin": None, "documents.bin": np.int64, "places.bin": np.uint64, "sizes.bin": np.uint32}


class Store(NamedTuple):
    """A split.

    Attributes:
        ids: (N,), memory-mapped and read-only.
        starts: indices into `ids` where documents begin; None: nothing is known of documents.
        files: indices where files begin, if the tokenizer tells them apart.
        places: of the documents, see `txl.data_utils.dealing`, in ascending order; empty if they are not asked for.
        sizes: what each token stands for, see `txl.data_utils.sizes`, (N, 4); empty if it was not measured.
        record: n_unknown, n_eos, `special` (see `Tokenizer.special_in`), and `text`, the digest of the text.
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


def open_store(folder: Path, checks: Checks) -> Store | None:
    """The store in a folder; None if it is absent or damaged."""
    record = open_record(folder, checks)
    if record is None:
        return None
    held = {name: mapped(folder / name, kind or record["dtype"]) for name, kind in _TYPES.items()}
    return Store(
        held["ids.bin"],
        held["documents.bin"],
        record["files"],
        held["places.bin"],
        held["sizes.bin"].reshape(-1, len(MEASURES)),
        record,
    )


def open_record(folder: Path, checks: Checks) -> dict[str, Any] | None:
    """The record of a folder that `keep` wrote; None if it is absent, or a file is damaged."""
    record = read_record(folder / RECORD)
    if record.pop("digest", None) != _digest(record):
        return None
    for name, digest in record["sha256"].items():
        path = folder / name
        if not path.is_file() or checks.result(path, "sha256", lambda path=path: sha256(path)) != digest:
            return None
    return record


def keep(draft: Path, folder: Path, record: dict[str, Any]) -> None:
    """Give the files in `draft` their name, with a record. What was there, which is damaged, goes."""
    record = {**record, "sha256": {path.name: sha256(path) for path in sorted(draft.iterdir())}}
    (draft / RECORD).write_text(json.dumps({**record, "digest": _digest(record)}), encoding="utf-8")
    for path in (*draft.iterdir(), draft):
        flush(path)
    shutil.rmtree(folder, ignore_errors=True)
    draft.replace(folder)
    flush(folder.parent)


@contextmanager
def draft_folder(cache: Path) -> Iterator[Path]:
    """A folder in `cache` for what is not complete yet; it is removed at the end, as are those of killed processes."""
    cache.mkdir(parents=True, exist_ok=True)
    for left in cache.glob(f"{_DRAFT}*"):
        if left.is_dir():
            with _locked(left) as is_mine:
                if is_mine:
                    shutil.rmtree(left, ignore_errors=True)
    with sigterm_raises():
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
    """Writes the blocks of a split into a folder, in files that are closed in the end. (Not by `ndarray.tofile`, which
    does not notice that a disk is full.)

    Args:
        n_token: of the vocabulary; None: not known yet, the ids are numbers that `translate` gets.
    """

    def __init__(self, folder: Path, n_token: int | None) -> None:
        super().__init__()
        folder.mkdir()
        self.folder = folder
        self._dtype = np.dtype(np.uint32 if n_token is None or n_token > 2**16 else np.uint16)
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
        starts = np.append(self._n_before, self._n_token + block.ends[:-1]) if len(block.ends) else block.ends
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
        self._dtype = np.dtype(np.uint32 if n_token > 2**16 else np.uint16)
        with numbers.open("rb") as source, (self.folder / "ids.bin").open("wb") as target:
            while len(number_N := np.fromfile(source, dtype=np.uint32, count=1 << 20)):
                target.write(id_V[number_N].astype(self._dtype).tobytes())
                self.n_unknown += int(unknown_V[number_N].sum())
        numbers.unlink()

    def finish(self) -> dict[str, Any]:
        """Close the files; the record of the store."""
        places = np.concatenate(self._places) if self._places else np.zeros(0, dtype=np.uint64)
        self._files["places.bin"].write(np.sort(places).tobytes())
        self.close()
        if not self._ends_line and (self.folder / "sizes.bin").stat().st_size:  # a last line without a line end counts
            sizes = np.memmap(self.folder / "sizes.bin", dtype=np.uint32, mode="r+")
            sizes[-len(MEASURES) + MEASURES.index("lines")] += 1
            sizes.flush()
        counts = {"n_unknown": self.n_unknown, "n_eos": self.n_eos, "n_document": self.n_document}
        found = {"text": self._text.hexdigest(), "special": dict(self._special), **counts}
        return {"dtype": self._dtype.name, "files": self._begins, **found}

    def blocks(self) -> Iterator[np.ndarray]:
        """The ids that were written."""
        if not self._files["ids.bin"].closed:
            self._files["ids.bin"].flush()
        with (self.folder / "ids.bin").open("rb") as file:
            while len(ids := np.fromfile(file, dtype=self._dtype, count=1 << 20)):
                yield ids


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def mapped(path: Path, dtype: Any) -> np.ndarray:
    """The numbers in a file, memory-mapped and read-only."""
    return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype=dtype)
