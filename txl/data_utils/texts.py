"""Texts: which files a split is read from, and the documents in them."""

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .cache import Checks, Store
from .config import DataConfig
from .documents import (
    Document,
    Extent,
    HeldOut,
    dealt_by_place,
    documents_in,
    no_documents,
    placed,
    rule_of,
    signs_of,
)
from .errors import DataError, line_without_text, reading
from .formats import has_returns, has_rows, lines_or_rows
from .remote import with_copies
from .sources import CACHE, Sources, home_of, require_folder, sources_of
from .tokens import Tokenizer

_LOG = logging.getLogger(__name__)
SPLITS = ("train", "valid", "test")
_SUFFIXES_NAMED = 4


class Texts:
    """A folder with train.txt, valid.txt and test.txt, in articles."""

    rule = "heading"
    note = ""
    """How the texts of the splits were found, once they are all read; empty if there is nothing to
    tell."""
    dealt: Sequence[str] = ()
    """Splits that no file names; their documents are split off the training text."""

    def __init__(self, config: DataConfig, checks: Checks) -> None:
        self.config = config
        self.checks = checks
        self.home = home_of(config.data)
        self.require_data()

    def require_data(self) -> None:
        """Raise `DataError` if --data names another thing than this needs."""
        require_folder(self.config.data, self.config.dataset)

    def files(self, split: str) -> list[Path]:
        """The files that a split is read from, which need not be there."""
        return [self.home / f"{split}.txt"]

    def is_there(self, split: str) -> bool:
        """True if all of its files are there."""
        files = self.files(split)
        return bool(files) and all(map(Path.is_file, files))

    def name(self, split: str) -> str:
        """The files of a split, for messages."""
        first, *more = self.files(split)
        shown = str(first).encode(errors="backslashreplace").decode()  # a name need not be UTF-8
        if more:
            return f"{shown} and {len(more):,} more"
        return shown

    def defines_vocabulary(self, counted: Sequence[str]) -> bool:
        """True if what a vocabulary is made of, these splits, is there."""
        return all(map(self.is_there, counted))

    def require(self, split: str) -> None:
        """Raise `DataError` unless the text of a split is there."""
        for path in self.files(split):
            require_text(path)

    def together(self, splits: Sequence[str]) -> Sequence[str]:
        """These splits, and those that are read with them."""
        return splits

    def settings(self, split: str) -> list[Any]:
        """What the documents of a split depend on besides the content of its files."""
        return [self.rule]

    def fingerprint(self, split: str) -> str | None:
        """Hex digest of the text of a split; None: that of its documents, joined."""
        return self.checks.digest(self.files(split)[0])

    def documents(self, splits: Sequence[str]) -> Iterator[Document]:
        """The documents of these splits, in order; those of others may stand between them."""
        for split in splits:
            for path in self.files(split):
                found = documents_in(path, self.rule, self.config.text_field)
                yield from _of_file(found, split)

    def describe(self, n_document: Mapping[str, int]) -> None:
        """Set `note`, given the number of documents of each split."""

    def document_starts(self, split: str, store: Store, tokenizer: Tokenizer) -> np.ndarray:
        """Indices into the ids of a split where documents begin. Raises `DataError` if the text
        names none."""
        has_headings = any(self._signs_of(path) == "heading" for path in self.files(split))
        if self.needs_headings(tokenizer) and not has_headings:
            raise no_documents(
                "the text has no line like '= Title =' that begins a document; say what a document"
                " is with --documents blank, row or file, or"
            )
        return store.starts

    def needs_headings(self, tokenizer: Tokenizer) -> bool:
        """True if nothing else begins a document."""
        return self.rule == "heading"

    def _signs_of(self, path: Path) -> str:
        field = self.config.text_field
        return self.checks.result(path, f"documents {field}", lambda: signs_of(path, field))

    def ready(self, split: str, n_token: int) -> Store | None:
        """The ids of a split that somebody else made; None: they are to be made from text."""
        return None

    def fault(self, splits: Sequence[str]) -> DataError:
        """The error for texts that are not UTF-8, with the line."""
        for path, lines in self._lines(splits):
            if error := line_without_text(path, lines, are_rows=has_rows(path)):
                return error
        return self.changed(splits[0])  # every line is UTF-8 now

    def line_with(self, splits: Sequence[str], words: set[str]) -> tuple[Path, int, str]:
        """The first of these words in splits: its file, the number of its line or row, and the
        word."""
        for path, lines in self._lines(splits):
            for n, line in enumerate(lines, 1):
                for word in line.decode(errors="replace").split():
                    if word in words or word.lower() in words:
                        return path, n, word
        raise self.changed(splits[0])

    def _lines(self, splits: Sequence[str]) -> Iterator[tuple[Path, Iterator[bytes]]]:
        """The files of splits with their lines or rows."""
        for split in splits:
            for path in self.files(split):
                yield path, lines_or_rows(path, self.config.text_field, "searching")

    def changed(self, split: str) -> DataError:
        """The error for files that changed between two looks at them."""
        return DataError(f"{self.name(split)}: has changed while it was read; start again")


def _of_file(documents: Iterable[Document], split: str | None = None) -> Iterator[Document]:
    """The documents of a file, the first marked; all of a split, where there is one."""
    begins_file = True
    for document in documents:
        yield document._replace(split=split or document.split, begins_file=begins_file)
        begins_file = False


def require_text(path: Path) -> None:
    """Raise `DataError` unless `path` is a file that is not empty."""
    with reading(path):
        if not path.parent.is_dir():
            raise DataError(
                f"{path.parent}: no such folder; give the folder of the text files with --data"
                f"{_how_to_download(path.parent)}"
            )
        if not path.is_file():
            raise DataError(
                f"{path}: no such file; a folder of text needs train.txt, valid.txt and test.txt;"
                " of other files give --dataset text"
            )
        if not path.stat().st_size:
            raise DataError(f"{path}: is empty; every split needs some text")


def _how_to_download(folder: Path) -> str:
    """What brings the text of a folder that the scripts read; empty for others."""
    from .download import SETS  # for a message only

    for name, published in SETS.items():
        if Path(published.folder).name == folder.name:
            script = f"scripts/run_{name}.sh"
            if name == "wt103":
                script = "./run_wt103.sh"
            command = f"python -m data_utils.download {name} --out {folder}"
            return f", or download {name} there: {script} data ({command})"
    return ""


class AnyFiles(Texts):
    """The files of --data. Those that name no split are training text; valid and test are split off
    it where no files name them: the end of each file, or whole files, see `HeldOut`. With
    --held_out_by document, a document goes where the hash of its text and the seed says, so that
    neither shards nor their order matter, and equal documents stay together. A folder of train.txt
    and valid.txt, or of valid.txt and test.txt, is read as it is."""

    one_line_end = False
    """Lines of plain text end with \\n, however they end in the file."""

    def __init__(self, config: DataConfig, checks: Checks) -> None:
        super().__init__(config, checks)
        self.is_plain = _is_plain(config.data)
        self._sources = Sources({}, [], [])
        if self.is_plain:
            for split in SPLITS:
                path = self.home / f"{split}.txt"
                if path.is_file():
                    self._sources.splits[path] = split
        else:
            self._sources = sources_of(config.data)
        self._files: dict[str, list[Path]] = {}
        for path, split in self._sources.splits.items():
            self._files.setdefault(split or "train", []).append(path)
        if "train" in self._files and not self.is_plain:
            self.dealt = [split for split in SPLITS if split not in self._files]
        self.rule = config.documents
        self._why = "as asked"
        if self.rule == "auto":
            first = self._files.get("train") or next(iter(self._files.values()), [])
            self.rule, self._why = self.auto_rule(first)
        self._chosen: dict[int, str] | None = None

    def auto_rule(self, files: list[Path]) -> tuple[str, str]:
        """How the documents of files are found where --documents does not say it, and why."""
        return rule_of(files, self._signs_of)

    def require_data(self) -> None:
        pass

    def files(self, split: str) -> list[Path]:
        if split in self.dealt:
            return self._files["train"]
        if self.is_plain:
            return super().files(split)
        return self._files.get(split, [])

    def name(self, split: str) -> str:
        if split in self.dealt:
            return f"the {split} documents of {super().name('train')}"
        return super().name(split)

    def require(self, split: str) -> None:
        if self.is_plain:
            super().require(split)
        elif not self.files(split):
            named = self._by_name(self._files)
            advice = "give a file of it too, or one whose name is that of no split"
            raise DataError(f"{self.home}: has no {split} text; by name: {named}; {advice}")

    def together(self, splits: Sequence[str]) -> Sequence[str]:
        if self.is_plain:
            return splits
        return list(filter(self.files, SPLITS))

    def settings(self, split: str) -> list[Any]:
        config = self.config
        settings = [self.rule, config.text_field, config.split_seed, config.held_out_by]
        if split == "train" or split in self.dealt:
            settings += [config.held_out, self.dealt]
        suffixes = [path.suffixes for path in self.files(split)]
        return [*settings, suffixes, self._has_returns(split)]

    def fingerprint(self, split: str) -> str | None:
        if not self.is_plain:
            return None
        digest = super().fingerprint(split)
        if digest is None or not self._has_returns(split):
            return digest
        return hashlib.sha256(f"{digest}, one line end".encode()).hexdigest()

    def _has_returns(self, split: str) -> bool:
        """True if lines of a split are read with another line end than they have."""
        files = self.files(split)
        return self.one_line_end and any(
            self.checks.result(path, "returns", partial(has_returns, path))
            for path in files
            if not has_rows(path)
        )

    @property
    def _cuts_ends(self) -> bool:
        """True if the ends of files are held out, or whole files."""
        return bool(self.dealt) and self.config.held_out_by == "end"

    def _held_out(self) -> HeldOut:
        files = self._files["train"]
        extents = list(map(self.extent_of, files))
        are_rows = any(map(has_rows, files)) or self.rule == "row"
        return HeldOut(self.dealt, self.config.held_out, extents, has_rows=are_rows)

    def extent_of(self, path: Path) -> Extent:
        """The size of a file, and where its last documents begin."""
        what = f"extent {self.rule} {self.config.text_field} {self.one_line_end}"
        n_byte, begins = self.checks.result(
            path, what, lambda: list(Extent.of(self.documents_in(path)))
        )
        return Extent(n_byte, tuple(begins))

    def documents_in(self, path: Path) -> Iterator[Document]:
        """The documents of a file, of no split yet."""
        return documents_in(path, self.rule, self.config.text_field, one_line_end=self.one_line_end)

    def _placed_in(self, path: Path) -> Iterator[Document]:
        return placed(self.documents_in(path), self.rule, self.config.split_seed)

    def documents(self, splits: Sequence[str]) -> Iterator[Document]:
        held_out = None
        if self._cuts_ends:
            held_out = self._held_out()
        elif self.dealt and self._chosen is None:
            self._chosen = self._choose()
        for named in SPLITS:
            is_dealt = named == "train" and bool(self.dealt)
            if named not in splits and (not is_dealt or set(self.dealt).isdisjoint(splits)):
                continue
            for number, path in enumerate(self._files.get(named, [])):
                if not path.stat().st_size:
                    _LOG.warning("%s: is empty, left out", path)
                if not is_dealt:
                    yield from _of_file(self._placed_in(path), named)
                elif held_out is None:
                    yield from _of_file(dealt_by_place(self._placed_in(path), self._split_of))
                else:
                    dealt = held_out.deal(number, self.documents_in(path))
                    yield from _of_file(placed(dealt, self.rule, self.config.split_seed))

    def _split_of(self, place: int) -> str:
        if self._chosen and place in self._chosen:
            return self._chosen[place]
        i = int(place / 2**64 / self.config.held_out)
        if i < len(self.dealt):
            return self.dealt[i]
        return "train"

    def _choose(self) -> dict[int, str]:
        """Splits for the documents of the lowest places, where a split would stay empty."""
        least: list[int] = []
        missing = set(self.dealt)
        for path in self._files["train"]:
            for document in self._placed_in(path):
                if document.place is not None:
                    least = sorted({*least, document.place})[: len(SPLITS)]
                    missing.discard(self._split_of(document.place))
                if not missing:
                    return {}
        if len(least) <= len(self.dealt):
            return {}
        return dict(zip(least, self.dealt, strict=False))

    def needs_headings(self, tokenizer: Tokenizer) -> bool:
        """Plain files of words are WikiText's kind, unless --documents says something else."""
        is_open = self.config.documents in ("auto", "heading")
        return self.is_plain and tokenizer.is_of_words and is_open

    def describe(self, n_document: Mapping[str, int]) -> None:
        if self.is_plain:
            return
        splits = [split for split in SPLITS if split in n_document]
        empty = [split for split in splits if not n_document[split]]
        if empty:
            first = next(iter(self._files.values()))[0]
            n_all = sum(n_document.values())
            raise DataError(
                f"{first}: the text has {n_all} document(s), found by {self.rule}, too few for "
                f"{' and '.join(empty)}; choose --documents, or give files with these names"
            )
        counts = ", ".join(f"{n_document[split]:,} {split}" for split in splits)
        note = f"documents by {self.rule} ({self._why}): {counts}"
        if list(self._files) != ["train"]:
            note += f"; by name: {self._by_name(filter(self._files.__contains__, splits))}"
        if self.dealt:
            note += f"; {' and '.join(self.dealt)}: {self._how_held_out()}"
        if self._sources.not_read:
            note += f"; not read unless named: {_suffixes_of(self._sources.not_read)}"
        ours = [path for path in self._sources.left_out if path.name != CACHE]
        if ours:
            note += f"; left out, written by txl: {_first_of(ours)}"
        self.note = note

    def _how_held_out(self) -> str:
        """How documents were dealt, and what that does to figures of memory."""
        if self._cuts_ends:
            return f"{self._held_out().describe()}, so that memory sees what stands before"
        hashed = f"{self.config.held_out:g} each, seed {self.config.split_seed}"
        scattered = "documents from all over, so that memory sees nothing related beyond a document"
        return f"{hashed}, {scattered}"

    def _by_name(self, splits: Iterable[str]) -> str:
        """The files that name these splits, for messages."""
        return ", ".join(f"{split} {_first_of(self._files[split])}" for split in splits)


class AnyText(AnyFiles):
    """Any files, whose line ends do not matter: those of plain text are \\n. Texts in jsonl, csv
    and parquet stay as they are."""

    one_line_end = True


def _first_of(paths: list[Path]) -> str:
    if len(paths) == 1:
        return str(paths[0])
    return f"{paths[0]} and {len(paths) - 1:,} more"


def _suffixes_of(paths: list[Path]) -> str:
    """How many files have which suffix, the most frequent first."""
    counts = Counter(path.suffix or "without a suffix" for path in paths)
    first = counts.most_common(_SUFFIXES_NAMED)
    said = [f"{n:,} {suffix}" for suffix, n in first]
    if n_more := counts.total() - sum(n for _, n in first):
        said.append(f"{n_more:,} more")
    return ", ".join(said)


def _is_plain(data: tuple[str, ...] | str) -> bool:
    """True if --data is a folder with a plain valid.txt, or with test.txt and no training text,
    where no other file is the only one of a split; a README.md or eval.json is no training text."""
    if not isinstance(data, str) or not Path(data).is_dir():
        return False
    plain = {split for split in SPLITS if (Path(data) / f"{split}.txt").is_file()}
    if plain == set(SPLITS):
        return True
    if not plain or ("train" in plain and "valid" not in plain):
        return False
    for path, split in sources_of(data).splits.items():
        is_training_text = path.suffix.lower() not in (".md", ".json")
        if (split or is_training_text) and (split or "train") not in plain:
            return False
    return True


_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
)
"""Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_MANY_UNSPACED = 0.2
_FEW_SPACES = 0.05
"""Shares of the characters of a text."""
_FILES_LOOKED_AT = 20
_BYTES_LOOKED_AT = 100_000


class Survey(NamedTuple):
    """A text at a first look.

    Attributes:
        n_byte: of the training text, that which will be held out of it included.
        n_char: characters of it, estimated from its beginnings.
        n_file: its files.
        has_spaces: words stand between spaces.
        is_held_out: valid or test are held out of it; else files name them.
    """

    n_byte: int
    n_char: int
    n_file: int
    has_spaces: bool
    is_held_out: bool


def survey(config: DataConfig) -> Survey:
    """Look at the text of --data, which may be any files. Raises `DataError` if there is none, or
    it cannot be read."""
    here = with_copies(config)
    checks = Checks(Path(config.cache_dir or home_of(here.data) / CACHE))
    texts = AnyText(here, checks)
    texts.require("train")
    files = texts.files("train")
    n_byte = sum(texts.extent_of(path).n_byte for path in files)
    checks.save()
    step = -(-len(files) // _FILES_LOOKED_AT)
    beginnings = b"".join(_beginning(texts, path) for path in files[:: max(1, step)])
    sample = beginnings.decode(errors="replace")
    n_char = round(n_byte * len(sample) / max(1, len(beginnings)))
    return Survey(n_byte, n_char, len(files), has_spaces(sample), bool(texts.dealt))


def _beginning(texts: AnyFiles, path: Path) -> bytes:
    """The beginning of a file."""
    content = b""
    for document in texts.documents_in(path):
        content += document.text
        if len(content) >= _BYTES_LOOKED_AT:
            break
    return content[:_BYTES_LOOKED_AT]


def has_spaces(text: str) -> bool:
    """True if words stand between spaces, as in most scripts."""
    n_unspaced = len(_UNSPACED.findall(text))
    n_space = sum(map(str.isspace, text))
    return n_unspaced < _MANY_UNSPACED * len(text) and n_space >= _FEW_SPACES * len(text)
