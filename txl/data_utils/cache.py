"""What is kept of a text: for each split a store of its ids, in a folder named by the digest of all
that it is made from, written under another name and renamed, so that it is complete or absent; and
what was found in whole files, which are read again only when their sizes or times change."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from txl.files import content_of, discard, flush, lock, sha256, signals_raise, write_whole

from .documents import Document
from .errors import reading
from .tokens import MEASURES, Encoder, Tokens, sizes_of


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process of this host at a time work on `folder`. A folder that does not exist is not
    locked."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def read_record(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if it is missing or damaged."""
    try:
        return dict(json.loads(content_of(path)))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON file."""
    write_whole(path, json.dumps(record))


VERSION = 4
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

    def result(self, path: Path, what: str, find: Callable[[], Any]) -> Any:
        """The result of `find`, a check named `what` of a file's content; it must be what JSON can hold."""
        with reading(path):
            state = path.stat()
            stamp = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
            name = f"{VERSION} {what} {path.resolve()}"
            match self._known.get(name):
                case [then, answer] if then == stamp:
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


RECORD = "store.json"
_DRAFT = ".txl-draft."
"""Begins the name of a folder that may be removed unless it is locked; nothing else may begin
so."""
_ARRAYS = {
    "ids.bin": None,
    "documents.bin": np.int64,
    "files.bin": np.int64,
    "places.bin": np.uint64,
    "sizes.bin": np.uint32,
}
_BLOCK = 1 << 20


class Store(NamedTuple):
    """A split.

    Attributes:
        ids: (N,), memory-mapped and read-only.
        starts: indices into `ids` where documents begin; empty: nothing is known of documents.
        files: indices where files begin.
        places: of the documents, see `documents.Place`, in ascending order; empty if they
            are not asked for.
        sizes: what each token stands for, see `sizes_of`, (N, 4); empty if it was not
            measured.
        n_unknown: ids that stand for unknown words.
        named: tokens that the text names and does not mean, see `Encoder.named_in`.
        text: digest of the text.
    """

    ids: np.ndarray
    starts: np.ndarray = np.zeros(0, dtype=np.int64)
    files: np.ndarray = np.zeros(1, dtype=np.int64)
    places: np.ndarray = np.zeros(0, dtype=np.uint64)
    sizes: np.ndarray = np.zeros((0, len(MEASURES)), dtype=np.uint32)
    n_unknown: int = 0
    named: Mapping[str, int] = MappingProxyType({})
    text: str = ""


def name_of(kind: str, made_from: object) -> str:
    """The name of the folder that holds what is made from this."""
    return f"{kind}-{hashlib.sha256(json.dumps([VERSION, made_from]).encode()).hexdigest()[:20]}"


def open_store(folder: Path, checks: Checks, n_token: int) -> Store | None:
    """The store in a folder, of ids below `n_token`; None if it is absent or damaged, also on
    purpose."""
    record = open_record(folder, checks)
    if record is None:
        return None
    try:
        ids, starts, files, places, sizes = (
            _mapped(folder / name, kind or _dtype_of(n_token)) for name, kind in _ARRAYS.items()
        )
        sizes = sizes.reshape(-1, len(MEASURES))
        named = {str(word): int(n) for word, n in record["named"].items()}
        n_unknown = int(record["n_unknown"])
        store = Store(ids, starts, files, places, sizes, n_unknown, named, str(record["text"]))
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return None
    is_whole = len(sizes) in (0, len(ids)) and all(block.max() < n_token for block in _blocks(ids))
    if not is_whole or not _is_ascending(starts, len(ids)) or not _is_ascending(files, len(ids)):
        return None
    return store


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
    changes a record can renew its digest, so nothing in it is believed."""
    record = read_record(folder / RECORD)
    if record.pop("digest", None) != _digest(record):
        return None
    if not isinstance(record.get("sha256"), dict):
        return None
    for name, digest in record["sha256"].items():
        path = folder / name
        if path.name != name or not path.is_file() or checks.digest(path) != digest:
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
    """Writes the tokens of a split into a folder, in files that are closed in the end. (Not by
    `ndarray.tofile`, which does not notice that a disk is full.)

    Args:
        n_token: of the vocabulary; None: not known yet, the ids are numbers that `translate` gets.
        measured: the sizes of tokens are written too.
    """

    def __init__(self, folder: Path, n_token: int | None, *, measured: bool) -> None:
        super().__init__()
        folder.mkdir()
        self.folder = folder
        self.named: Counter[str] = Counter()
        self.n_document = 0
        self._dtype = _dtype_of(n_token)
        self._measured = measured
        self._files = {name: self.enter_context((folder / name).open("wb")) for name in _ARRAYS}
        self._n_token = self._n_unknown = 0
        self._places: list[np.ndarray] = []
        self._text = hashlib.sha256()
        self._begins = True
        self._last = b"\n"

    def add(
        self, encoder: Encoder, documents: Sequence[Document], tokens: Sequence[Tokens]
    ) -> None:
        """Write documents, or parts of them, with the tokens of each."""
        starts: list[int] = []
        files: list[int] = []
        places: list[int] = []
        for document, one in zip(documents, tokens, strict=True):
            self._text.update(document.text)
            if named := encoder.named_in(document.text):
                self.named.update(named)
            if document.begins_file:
                files.append(self._n_token)
            if self._begins:
                starts.append(self._n_token)
            if document.place is not None:
                places.append(document.place)
            self._begins = document.ends
            self._n_token += len(one.ids)
            self._n_unknown += one.n_unknown
        self._last = documents[-1].text[-1:]
        self.n_document += len(starts)
        self._places.append(np.array(places, dtype=np.uint64))
        self._write("ids.bin", np.concatenate([one.ids for one in tokens]))
        self._write("documents.bin", np.array(starts))
        self._write("files.bin", np.array(files))
        if self._measured:
            self._write("sizes.bin", _sizes_of(documents, tokens))

    def _write(self, name: str, numbers: np.ndarray) -> None:
        self._files[name].write(numbers.astype(_ARRAYS[name] or self._dtype).tobytes())

    def counts(self, n_number: int) -> np.ndarray:
        """How often each number was written, (V,)."""
        counts_V = np.zeros(n_number, dtype=np.int64)
        for block in self._written():
            counts_V += np.bincount(block, minlength=n_number)
        return counts_V

    def translate(self, id_V: np.ndarray, unknown_V: np.ndarray, n_token: int) -> None:
        """Turn numbers into the ids of a vocabulary of `n_token`."""
        translated = self.folder / "translated"
        dtype = _dtype_of(n_token)
        with translated.open("wb") as target:
            for block in self._written():
                target.write(id_V[block].astype(dtype).tobytes())
                self._n_unknown += int(unknown_V[block].sum())
        self._dtype = dtype
        translated.replace(self.folder / "ids.bin")

    def holds_only(self, token: int) -> bool:
        """True if all ids that were written are this one."""
        return all((block == token).all() for block in self._written())

    def _written(self) -> Iterator[np.ndarray]:
        self._files["ids.bin"].flush()
        with (self.folder / "ids.bin").open("rb") as file:
            while len(block := np.fromfile(file, dtype=self._dtype, count=_BLOCK)):
                yield block

    def finish(self) -> dict[str, Any]:
        """Close the files; the record of the store."""
        self._write("places.bin", np.sort(np.concatenate([np.zeros(0, np.uint64), *self._places])))
        self.close()
        if self._last not in (b"\n", b"\r") and (self.folder / "sizes.bin").stat().st_size:
            # a last line without a line end counts
            sizes = np.memmap(self.folder / "sizes.bin", dtype=np.uint32, mode="r+")
            sizes[-len(MEASURES) + MEASURES.index("lines")] += 1
            sizes.flush()
        return {
            "text": self._text.hexdigest(),
            "named": dict(self.named),
            "n_unknown": self._n_unknown,
        }


def _sizes_of(documents: Sequence[Document], tokens: Sequence[Tokens]) -> np.ndarray:
    """What each token stands for. What follows the last token of a part belongs to it."""
    texts = []
    ends = []
    n_character = 0
    for document, one in zip(documents, tokens, strict=True):
        text = document.text.decode(errors="surrogateescape")
        texts.append(text)
        ends.append(n_character + one.ends)
        n_character += len(text)
        if len(one.ends):
            ends[-1][-1] = n_character
    return sizes_of("".join(texts), np.concatenate(ends))


def _dtype_of(n_token: int | None) -> np.dtype:
    """Of the ids of a vocabulary; None: of a number that is not known."""
    if n_token is None or n_token > 2**16:
        return np.dtype(np.uint32)
    return np.dtype(np.uint16)


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def _mapped(path: Path, dtype: Any) -> np.ndarray:
    """The numbers in a file, memory-mapped and read-only."""
    if not path.stat().st_size:
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")
