"""A folder of text as memory-mapped token files with their vocabulary.

A token file is a header and the ids as uint16 or uint32. Its header holds a fingerprint of all it was made from; when
text, settings or version have changed since, it is made anew. Files are written whole or not at all, and RAM does not
grow with the corpus.
"""

import json
import logging
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from .files import DataError, read_lines, require_text, sha256, written_whole
from .pydoc_corpus import write_pydoc_corpus
from .vocabulary import EOS, UNK, Vocab, count_words

VERSION = 1
SPLITS = ("train", "valid", "test")
_HEADER_BYTES = 4096
_LOG = logging.getLogger(__name__)


class Recipe(NamedTuple):
    """What is particular to a data set."""

    counted: tuple[str, ...]  # the splits whose words make the vocabulary
    special: tuple[str, ...]


RECIPES = {
    "wt103": Recipe(counted=("train",), special=(EOS,)),
    "wt2": Recipe(counted=SPLITS, special=(EOS,)),
    "text": Recipe(counted=("train",), special=(EOS, UNK)),
    "pydoc": Recipe(counted=("train",), special=(EOS, UNK)),
}


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which text is read, and how it becomes words."""

    data: str = _option("data/wikitext-103", "folder of train.txt, valid.txt and test.txt; pydoc writes them itself")
    dataset: Literal["wt103", "wt2", "text", "pydoc"] = _option(
        "wt103", "kind of text: WikiText-103, WikiText-2, any folder, or the documentation of this Python"
    )
    cache_dir: str | None = _option(None, "folder of the token files (not given: txl-cache inside --data)")
    min_freq: int = _option(0, "dataset text: words seen less often become <unk>")
    max_size: int | None = _option(None, "dataset text: so many words at most, the rest become <unk>")

    def __post_init__(self) -> None:
        if self.dataset not in RECIPES:
            raise DataError(f"--dataset {self.dataset}: not known; one of {', '.join(RECIPES)}")
        if (self.min_freq or self.max_size is not None) and self.dataset != "text":
            raise DataError(f"--min_freq and --max_size: the vocabulary of {self.dataset} is fixed; use --dataset text")
        if self.min_freq < 0 or (self.max_size is not None and self.max_size < 1):
            raise DataError("--min_freq must not be negative and --max_size must be at least 1")


class Corpus:
    """The splits of a data set as ids.

    Args:
        vocab: words and ids; made from the text, or read from the cache, where not given.
    Raises:
        DataError: if the text is missing, empty or not UTF-8.
    """

    def __init__(self, config: DataConfig, vocab: Vocab | None = None) -> None:
        self.config = config
        self.folder = Path(config.data)
        self.cache = Path(config.cache_dir) if config.cache_dir else self.folder / "txl-cache"
        self.recipe = RECIPES[config.dataset]
        self._fingerprints: dict[str, str] = {}
        if config.dataset == "pydoc" and not any(self._text(split).exists() for split in SPLITS):
            with self._writing():
                write_pydoc_corpus(self.folder)
        self.vocab = vocab or self._load_vocab()

    @property
    def defines_vocabulary(self) -> bool:
        """True if the text that the vocabulary is counted on is there."""
        return all(self._text(split).is_file() for split in self.recipe.counted)

    def split(self, name: str) -> np.ndarray:
        """The ids of a split, one `<eos>` a line, memory-mapped and read-only."""
        text = self._text(name)
        fingerprint = {"version": VERSION, "text": self.fingerprint(name), "vocabulary": self.vocab.fingerprint()}
        path = self.cache / f"{self.config.dataset}.{name}.tokens"
        header = _read_header(path, fingerprint)
        if header is None:
            self._tokenise(text, path, fingerprint)
            header = _read_header(path, fingerprint)
            assert header is not None, f"{path} was just written"
        if header["n_unknown"]:
            _LOG.warning(
                "%s: %d of %d words are not in the vocabulary and are read as %s",
                text, header["n_unknown"], header["n_token"], UNK,
            )  # fmt: skip
        return np.memmap(path, dtype=header["dtype"], mode="r", offset=_HEADER_BYTES, shape=(header["n_token"],))

    def fingerprint(self, name: str) -> str:
        """Hex digest of the text of a split."""
        if name not in self._fingerprints:
            require_text(self._text(name))
            self._fingerprints[name] = sha256(self._text(name))
        return self._fingerprints[name]

    def require_splits(self, *names: str) -> None:
        """Raise `DataError` unless the text of all these splits is there, before hours are spent on one of them."""
        for name in names:
            require_text(self._text(name))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Let a cache that cannot be written to be known by the flag that moves it."""
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
                    return Vocab(saved["words"])
            except (ValueError, KeyError, TypeError):
                pass
            _LOG.warning("%s: stale, the text or the settings have changed; made anew", path)
        vocab = self._count(fingerprint)
        with self._writing(), written_whole(path) as file:
            file.write(json.dumps({"fingerprint": fingerprint, "words": vocab.words}, ensure_ascii=False).encode())
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
            _LOG.warning("%s: stale, the text, the vocabulary or the settings have changed; made anew", path)
        wide = len(self.vocab) > 2**16
        eos, unk = self.vocab.index[EOS], self.vocab.index.get(UNK, -1)
        n_token = n_unknown = 0
        with self._writing(), written_whole(path) as file:
            file.write(bytes(_HEADER_BYTES))
            n = 0
            for n, line in enumerate(read_lines(text, task="tokenising"), 1):
                words = line.split()
                ids = self._encode(words, text, n)
                n_unknown += ids.count(unk) - words.count(UNK)
                ids.append(eos)
                n_token += len(ids)
                array("I" if wide else "H", ids).tofile(file)
            if n_token == n:
                raise DataError(f"{text}: holds white space only; every split needs some words")
            header = {
                "fingerprint": fingerprint,
                "dtype": "uint32" if wide else "uint16",
                "n_token": n_token,
                "n_unknown": n_unknown,
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
    """The header of a token file, or None if it is missing, made from something else, or not whole."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        try:
            header = json.loads(file.read(_HEADER_BYTES).rstrip(b"\0"))
            n_byte = _HEADER_BYTES + header["n_token"] * np.dtype(header["dtype"]).itemsize
        except (ValueError, KeyError, TypeError):
            return None
    return header if header["fingerprint"] == fingerprint and path.stat().st_size == n_byte else None
