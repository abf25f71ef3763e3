"""A folder of text as memory-mapped token files with a vocabulary.

A token file has a header and the ids as uint16 or uint32. The header holds fingerprints of the text and the vocabulary
and a checksum of the ids; stale or damaged files are rewritten from the text. RAM does not grow with the corpus.

checked.json keeps the result of each check that reads a whole file, with the size and times of the file: it is read
again only when these have changed.
"""

import hashlib
import json
import logging
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from txl.config import Checked, option
from txl.files import sha256, written_whole

from .files import DataError, one_at_a_time, read_lines, reading, require_text
from .pydoc_corpus import write_pydoc_corpus
from .spelling import pieces, sizes_of
from .vocabulary import EOS, UNK, Vocab, count_words

VERSION = 2
SPLITS = ("train", "valid", "test")
_HEADER_BYTES = 4096
_SETTLED_NS = 2 * 10**9
"""A younger file may change again without a new modification time."""
_LOG = logging.getLogger(__name__)


class Recipe(NamedTuple):
    """How the vocabulary of a data set is made."""

    counted: tuple[str, ...]  # the splits whose words make the vocabulary
    special: tuple[str, ...]


RECIPES = {
    "wt103": Recipe(counted=("train",), special=(EOS,)),
    "wt2": Recipe(counted=SPLITS, special=(EOS,)),
    "text": Recipe(counted=("train",), special=(EOS, UNK)),
    "pydoc": Recipe(counted=("train",), special=(EOS, UNK)),
}


@dataclass(frozen=True, kw_only=True)
class DataConfig(Checked):
    """Which text is read, and how it is tokenised."""

    data: str = option("data/wikitext-103", "folder of train.txt, valid.txt and test.txt; pydoc writes them itself")
    dataset: Literal["wt103", "wt2", "text", "pydoc"] = option(
        "wt103", "kind of text: WikiText-103, WikiText-2, any folder of text, or the documentation of this Python"
    )
    cache_dir: str | None = option(None, "folder of the token files (not given: txl-cache inside --data)")
    min_freq: int = option(0, "dataset text: words seen less often become <unk>", minimum=0)
    max_size: int | None = option(
        None, "dataset text: largest number of words in the vocabulary, the rest become <unk>", minimum=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.min_freq or self.max_size is not None) and self.dataset != "text":
            raise DataError(f"--min_freq and --max_size: the vocabulary of {self.dataset} is fixed; use --dataset text")


class Corpus:
    """The splits of a data set as ids.

    Args:
        vocab: None: counted on the text, or read from the cache.
    Raises:
        DataError: if the text is missing, empty or not UTF-8.
    """

    def __init__(self, config: DataConfig, vocab: Vocab | None = None) -> None:
        self.config = config
        self.folder = Path(config.data)
        self.cache = Path(config.cache_dir) if config.cache_dir else self.folder / "txl-cache"
        self.recipe = RECIPES[config.dataset]
        self._fingerprints: dict[str, str] = {}
        self._splits: dict[str, np.ndarray] = {}
        with one_at_a_time(self.folder):
            if config.dataset == "pydoc" and not any(self._text(split).exists() for split in SPLITS):
                with self._writing():
                    write_pydoc_corpus(self.folder)
            self.vocab = vocab or self._load_vocab()

    @property
    def defines_vocabulary(self) -> bool:
        """True if the text that the vocabulary is counted on is there."""
        return all(self._text(split).is_file() for split in self.recipe.counted)

    def split(self, name: str) -> np.ndarray:
        """The ids of a split, with an `<eos>` per line, memory-mapped and read-only."""
        if name not in self._splits:
            with one_at_a_time(self.folder):
                self._splits[name] = self._open(name)
        return self._splits[name]

    def sizes(self, name: str) -> dict[str, np.ndarray]:
        """Words, characters, bytes, ... of each token of a split, (N,) each; see `sizes_of`. Reads the text.

        A token includes the white space before it, and `<eos>` the rest of the line, so that characters and bytes sum
        to those of the file.
        """
        lines = read_lines(self._text(name), task="measuring")
        return sizes_of((piece for line in lines for piece in pieces(line, line.split())), self.split(name), self.vocab)

    def _open(self, name: str) -> np.ndarray:
        text = self._text(name)
        fingerprint = {"version": VERSION, "text": self.fingerprint(name), "vocabulary": self.vocab.fingerprint()}
        path = self.cache / f"{self.config.dataset}.{name}.tokens"
        header = self._header(path, fingerprint)
        if header is None:
            self._tokenise(text, path, fingerprint)
            header = self._header(path, fingerprint)
            if header is None:
                raise DataError(f"{path}: was just written and reads differently; the disk of --cache_dir is faulty")
        n_unknown, n_eos, n_token = header["n_unknown"], header["n_eos"], header["n_token"]
        if n_unknown:
            _LOG.warning(
                "%s: %d of %d words are not in the vocabulary and are read as %s", text, n_unknown, n_token, UNK
            )
        if n_eos:
            _LOG.warning("%s: %d of %d words are %s itself and are read as line ends", text, n_eos, n_token, EOS)
        return _ids(path, header)

    def fingerprint(self, name: str) -> str:
        """Hex digest of the text of a split."""
        if name not in self._fingerprints:
            path = self._text(name)
            require_text(path)
            with reading(path):
                self._fingerprints[name] = self._checked(path, lambda: sha256(path))
        return self._fingerprints[name]

    def _header(self, path: Path, fingerprint: dict[str, Any]) -> dict[str, Any] | None:
        """The header of a token file, or None if it is missing, damaged or made from something else."""
        header = _read_header(path, fingerprint)
        if header is None or self._checked(path, lambda: _fault(path, header, len(self.vocab))):
            return None
        return header

    def _checked(self, path: Path, find: Callable[[], str]) -> str:
        """The result of `find` on the content of a file, from checked.json if the file has not changed since."""
        store = self.cache / "checked.json"
        state = path.stat()
        stamp = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
        try:
            known = dict(json.loads(store.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError):
            known = {}
        match known.get(name := str(path.resolve())):
            case [then, str(answer)] if then == stamp:
                return answer
        answer = find()
        if time.time_ns() - state.st_mtime_ns > _SETTLED_NS:
            with suppress(OSError), written_whole(store) as temporary:  # a read-only cache folder is no error
                temporary.write_text(json.dumps(known | {name: [stamp, answer]}), encoding="utf-8")
        return answer

    def require_splits(self, *names: str) -> None:
        """Raise `DataError` unless the text of all these splits is there."""
        for name in names:
            require_text(self._text(name))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn write errors into a `DataError` that names --cache_dir."""
        try:
            yield
        except OSError as error:
            where = error.filename or self.cache
            raise DataError(
                f"{where}: {error.strerror or error}; make room, or name another folder with --cache_dir"
            ) from error

    def _text(self, split: str) -> Path:
        return self.folder / f"{split}.txt"

    def _load_vocab(self) -> Vocab:
        self.require_splits(*self.recipe.counted)
        fingerprint = {
            "version": VERSION,
            "texts": [self.fingerprint(split) for split in self.recipe.counted],
            "special": list(self.recipe.special),
            "min_freq": self.config.min_freq,
            "max_size": self.config.max_size,
        }
        path = self.cache / f"{self.config.dataset}.vocab.json"
        if path.is_file():
            try:
                saved = json.loads(path.read_text(encoding="utf-8"))
                if saved["fingerprint"] == fingerprint:
                    vocab = Vocab(saved["words"])
                    if vocab.fingerprint() == saved["checksum"]:
                        return vocab
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                pass
            _LOG.warning("%s: stale or damaged, rewritten", path)
        vocab = self._count(fingerprint)
        with self._writing(), written_whole(path) as temporary:
            content = {"fingerprint": fingerprint, "checksum": vocab.fingerprint(), "words": vocab.words}
            temporary.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        return vocab

    def _count(self, fingerprint: dict[str, Any]) -> Vocab:
        counts: Counter[str] = Counter()
        for split in self.recipe.counted:
            counts.update(count_words(read_lines(self._text(split), task="counting")))
        return Vocab.build(
            counts,
            special=fingerprint["special"],
            min_freq=fingerprint["min_freq"],
            max_size=fingerprint["max_size"],
        )

    def _tokenise(self, text: Path, path: Path, fingerprint: dict[str, Any]) -> None:
        if path.is_file():
            _LOG.warning("%s: stale or damaged, rewritten", path)
        wide = len(self.vocab) > 2**16
        eos, unk = self.vocab.index[EOS], self.vocab.index.get(UNK, -1)
        n_token = n_unknown = n_eos = 0
        checksum = hashlib.sha256()
        with self._writing(), written_whole(path) as temporary, temporary.open("wb") as file:
            file.write(bytes(_HEADER_BYTES))
            n = 0
            for n, line in enumerate(read_lines(text, task="tokenising"), 1):
                words = line.split()
                ids = self._encode(words, text, n)
                n_unknown += ids.count(unk) - words.count(UNK)
                n_eos += ids.count(eos)
                ids.append(eos)
                n_token += len(ids)
                block = array("I" if wide else "H", ids).tobytes()
                checksum.update(block)
                file.write(block)
            if n_token == n:
                raise DataError(f"{text}: holds white space only; every split needs some words")
            header = {
                "fingerprint": fingerprint,
                "dtype": "uint32" if wide else "uint16",
                "n_token": n_token,
                "n_unknown": n_unknown,
                "n_eos": n_eos,
                "checksum": checksum.hexdigest(),
            }
            file.seek(0)
            file.write(json.dumps(header).encode())

    def _encode(self, words: list[str], text: Path, n: int) -> list[int]:
        try:
            return self.vocab.encode(words)
        except KeyError as error:
            raise DataError(
                f"{text}, line {n}: the word {error.args[0]!r} is not in the vocabulary, which has no {UNK} to stand "
                f"for it; use --dataset text, where unknown words are allowed"
            ) from None


def _read_header(path: Path, fingerprint: dict[str, Any]) -> dict[str, Any] | None:
    """The header of a token file, or None if it is missing, made from something else, or does not fit the file."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(_HEADER_BYTES).rstrip(b"\0"))
        counts = [header[name] for name in ("n_token", "n_unknown", "n_eos")]
        # no other dtype: np.memmap would accept "O" and use the bytes of the file as addresses
        fits = header["dtype"] in ("uint16", "uint32") and all(type(n) is int and n >= 0 for n in counts)
        n_byte = _HEADER_BYTES + header["n_token"] * np.dtype(header["dtype"]).itemsize if fits else -1
        fits = fits and header["n_token"] > 0 and path.stat().st_size == n_byte
        return header if fits and header["fingerprint"] == fingerprint else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _ids(path: Path, header: dict[str, Any]) -> np.ndarray:
    return np.memmap(path, dtype=header["dtype"], mode="r", offset=_HEADER_BYTES, shape=(header["n_token"],))


def _fault(path: Path, header: dict[str, Any], n_word: int) -> str:
    """What is wrong with the ids of a token file; empty if nothing."""
    if sha256(path, start=_HEADER_BYTES) != header.get("checksum"):
        return "damaged"
    return "" if _ids(path, header).max() < n_word else "ids outside the vocabulary"
