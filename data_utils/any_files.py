"""Any files of text: their documents are found, and valid and test split off where no file names
them; and a first look at them: how large, and whether words stand between spaces.
"""

import hashlib
import logging
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from .datasets import DataConfig
from .documents import Piece, Place, documents, pieces_in, rule_of
from .files import CACHE, home_of, sources_of
from .formats import has_returns, has_rows, kind_of
from .held_out import Extent, HeldOut, extent_of
from .raw_text import DataError
from .store import Checks
from .texts import SPLITS, Tagged, Texts
from .tokenizer import Tokenizer
from .transfer import with_copies

_LOG = logging.getLogger(__name__)
_SUFFIXES_NAMED = 4


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
        self._files: dict[str, list[Path]] = {}
        self._left_out: list[Path] = []
        self._not_read: list[Path] = []
        if self.is_plain:
            for split in SPLITS:
                path = self.home / f"{split}.txt"
                if path.is_file():
                    self._files[split] = [path]
        else:
            sources = sources_of(config.data)
            self._left_out = sources.left_out
            self._not_read = sources.not_read
            for path, split in sources.splits.items():
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
        if self.is_plain and split not in self._files:
            return [self.home / f"{split}.txt"]
        return self._files.get(split, [])

    def name(self, split: str) -> str:
        if split in self.dealt:
            return f"the {split} documents of {super().name('train')}"
        return super().name(split)

    def require(self, split: str) -> None:
        if not self.is_plain and not self.files(split):
            named = self._by_name(self._files)
            advice = "give a file of it too, or one whose name is that of no split"
            raise DataError(f"{self.home}: has no {split} text; by name: {named}; {advice}")
        if self.is_plain:
            super().require(split)

    def together(self, splits: Sequence[str]) -> Sequence[str]:
        if self.is_plain:
            return splits
        return list(filter(self.files, SPLITS))

    def settings(self, split: str) -> list[object]:
        config = self.config
        suffixes = [path.suffixes for path in self.files(split)]
        settings = [self.rule, config.text_field, config.split_seed, suffixes]
        if split == "train" or split in self.dealt:
            settings += [config.held_out, self.dealt]
            if self._cuts_ends:  # others keep the stores that they had
                settings.append("held out by end")
        if any(kind_of(path) == "table" for path in self.files(split)):  # were once read as lines
            settings.append("rows of tables")
        if self._has_returns(split):  # other texts keep the stores that they had
            settings.append("one line end")
        return settings

    def fingerprint(self, split: str) -> str | None:
        if not self.is_plain:
            return None
        digest = super().fingerprint(split)
        if digest is None or not self._has_returns(split):
            return digest
        return hashlib.sha256(f"{digest}, one line end".encode()).hexdigest()

    def _has_returns(self, split: str) -> bool:
        """True if lines of a split are read with another line end than they have."""
        for path in self.files(split):
            if self.one_line_end and not has_rows(path):
                answer = self.checks.result(path, "returns", partial(_says_returns, path))
                if answer == "True":
                    return True
        return False

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
        what = f"extent {self.rule} {self.config.text_field} {self.one_line_end}"
        return Extent.from_text(
            self.checks.result(path, what, lambda: extent_of(self.pieces_in(path)).to_text())
        )

    def pieces(self, splits: Sequence[str]) -> Iterator[Tagged]:
        dealing = None
        if self._cuts_ends:
            dealing = self._held_out().text()
        elif self.dealt and self._chosen is None:
            self._chosen = self._choose()
        for named in SPLITS:
            is_dealt = named == "train" and not set(self.dealt).isdisjoint(splits)
            if named not in splits and not is_dealt:
                continue
            for number, path in enumerate(self._files.get(named, [])):
                if not path.stat().st_size:
                    _LOG.warning("%s: is empty, left out", path)
                if dealing is not None and named == "train":
                    yield from self._placed(dealing.file(number, self.pieces_in(path)))
                else:
                    yield from self._pieces_of(path, named)

    def _placed(self, dealt: Iterable[tuple[str, Piece]]) -> Iterator[Tagged]:
        """The documents of a file, or parts of them, each with its place."""
        begins_file = True
        place = Place(self.rule, self.config.split_seed)
        for split, piece in dealt:
            place.add(piece.content)
            number = None
            if piece.ends:
                number = place.number()
                place = Place(self.rule, self.config.split_seed)
            yield Tagged(split, piece, number, begins_file)
            begins_file = False

    def pieces_in(self, path: Path) -> Iterator[Piece]:
        return pieces_in(path, self.rule, self.config.text_field, one_line_end=self.one_line_end)

    def _pieces_of(self, path: Path, named: str) -> Iterator[Tagged]:
        """The documents of a file whose name or folders name a split."""
        begins_file = True
        deals = named == "train" and bool(self.dealt)
        pieces_of_file = self.pieces_in(path)
        for place, pieces in documents(
            pieces_of_file, self.rule, self.config.split_seed, waits=deals
        ):
            for piece in pieces:
                number = 0
                split = named
                if deals or piece.ends:
                    number = place()
                if deals:
                    split = self._split_of(number)
                yield Tagged(split, piece, number if piece.ends else None, begins_file)
                begins_file = False

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
            for place, parts in documents(
                self.pieces_in(path), self.rule, self.config.split_seed, waits=False
            ):
                deque(parts, maxlen=0)  # the place is that of all of them
                least = sorted({*least, place()})[: len(SPLITS)]
                missing.discard(self._split_of(place()))
                if not missing:
                    return {}
        if len(least) <= len(self.dealt):
            return {}
        return dict(zip(least, self.dealt, strict=False))

    def needs_headings(self, tokenizer: Tokenizer) -> bool:
        """Plain files of words are WikiText's kind, unless --documents says something else."""
        return (
            self.is_plain and tokenizer.is_of_words and self.config.documents in ("auto", "heading")
        )

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
        if self._not_read:
            note += f"; not read unless named: {_suffixes_of(self._not_read)}"
        ours = [path for path in self._left_out if path.name != CACHE]
        if ours:
            note += f"; left out, written by txl: {_first_of(ours)}"
        self.note = note

    def _how_held_out(self) -> str:
        """How documents were dealt, and what that does to figures of memory."""
        config = self.config
        if self._cuts_ends:
            return f"{self._held_out().describe()}, so that memory sees what stands before"
        hashed = f"{config.held_out:g} each, seed {config.split_seed}"
        scattered = "documents from all over, so that memory sees nothing related beyond a document"
        return f"{hashed}, {scattered}"

    def _by_name(self, splits: Iterable[str]) -> str:
        """The files that name these splits, for messages."""
        return ", ".join(f"{split} {_first_of(self._files[split])}" for split in splits)


class AnyText(AnyFiles):
    """Any files, whose line ends do not matter: those of plain text are \\n. Texts in jsonl and
    parquet stay as they are."""

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


def _says_returns(path: Path) -> str:
    return str(has_returns(path))


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
    n_byte = 0
    for path in files:
        n_byte += texts.extent_of(path).n_byte
    checks.save()
    beginnings = list(_beginnings(texts, files))
    n_looked_at = sum(map(len, beginnings))
    sample = b"".join(beginnings).decode(errors="replace")
    n_char = round(n_byte * len(sample) / max(1, n_looked_at))
    return Survey(n_byte, n_char, len(files), has_spaces(sample), bool(texts.dealt))


def _beginnings(texts: AnyFiles, files: Sequence[Path]) -> Iterator[bytes]:
    """The beginnings of files from all over."""
    step = -(-len(files) // _FILES_LOOKED_AT)
    for path in files[:: max(1, step)]:
        n_left = _BYTES_LOOKED_AT
        for piece in texts.pieces_in(path):
            yield piece.content[:n_left]
            n_left -= len(piece.content)
            if n_left <= 0:
                break


def has_spaces(text: str) -> bool:
    """True if words stand between spaces, as in most scripts."""
    n_unspaced = len(_UNSPACED.findall(text))
    n_space = sum(map(str.isspace, text))
    return n_unspaced < _MANY_UNSPACED * len(text) and n_space >= _FEW_SPACES * len(text)
