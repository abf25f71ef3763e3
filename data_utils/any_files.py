"""Any files of text: their documents are found, and valid and test split off where no file names them."""

import hashlib
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .checks import Checks
from .datasets import DataConfig
from .documents import Piece, documents, pieces_in, rule_of
from .files import CACHE, sources_of
from .formats import has_returns, has_rows
from .raw_text import DataError
from .texts import SPLITS, Tagged, Texts
from .tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)


class AnyFiles(Texts):
    """The files of --data. Those that name no split are training text; valid and test are split off it by document
    where no files name them: a document goes where the hash of its text and the seed says, so that neither shards nor
    their order matter, and equal documents stay together. A folder of train.txt and valid.txt, or of valid.txt and
    test.txt, is read as it is."""

    one_line_end = False
    """Lines of plain text end with \\n, however they end in the file."""

    def __init__(self, config: DataConfig, checks: Checks) -> None:
        super().__init__(config, checks)
        self.is_plain = _is_plain(config.data)
        self._files: dict[str, list[Path]] = {}
        self._left_out: list[Path] = []
        if self.is_plain:
            there = {split: [self.home / f"{split}.txt"] for split in SPLITS}
            self._files = {split: paths for split, paths in there.items() if paths[0].is_file()}
        else:
            sources = sources_of(config.data)
            self._left_out = sources.left_out
            for path, split in sources.splits.items():
                self._files.setdefault(split or "train", []).append(path)
        self.dealt = [split for split in SPLITS if split not in self._files] if "train" in self._files else []
        self.dealt = [] if self.is_plain else self.dealt
        self.rule, self._why = config.documents, "as asked"
        if self.rule == "auto":
            first = self._files.get("train") or next(iter(self._files.values()), [])
            self.rule, self._why = rule_of(first, self._signs_of)
        self._chosen: dict[int, str] | None = None

    def require_data(self) -> None:
        pass

    def files(self, split: str) -> list[Path]:
        if split in self.dealt:
            return self._files["train"]
        return self._files.get(split, [self.home / f"{split}.txt"] if self.is_plain else [])

    def name(self, split: str) -> str:
        return f"the {split} documents of {super().name('train')}" if split in self.dealt else super().name(split)

    def require(self, split: str) -> None:
        if not self.is_plain and not self.files(split):
            there = ", ".join(f"{one} {_first_of(paths)}" for one, paths in self._files.items())
            advice = "give a file of it too, or one whose name is that of no split"
            raise DataError(f"{self.home}: has no {split} text; by name: {there}; {advice}")
        if self.is_plain:
            super().require(split)

    def together(self, splits: Sequence[str]) -> Sequence[str]:
        return splits if self.is_plain else [split for split in SPLITS if self.files(split)]

    def settings(self, split: str) -> list[object]:
        config = self.config
        dealt = [config.held_out, self.dealt] if split == "train" or split in self.dealt else []
        names = [path.suffixes for path in self.files(split)]
        changed = ["one line end"] if self._has_returns(split) else []  # other texts keep the stores that they had
        return [self.rule, config.text_field, config.split_seed, names, *dealt, *changed]

    def fingerprint(self, split: str) -> str | None:
        digest = super().fingerprint(split) if self.is_plain else None
        if digest is None or not self._has_returns(split):
            return digest
        return hashlib.sha256(f"{digest}, one line end".encode()).hexdigest()

    def _has_returns(self, split: str) -> bool:
        """True if lines of a split are read with another line end than they have."""
        plain = [path for path in self.files(split) if self.one_line_end and not has_rows(path)]
        return any(self.checks.result(p, "returns", lambda p=p: str(has_returns(p))) == "True" for p in plain)

    def pieces(self, splits: Sequence[str]) -> Iterator[Tagged]:
        if self.dealt and self._chosen is None:
            self._chosen = self._choose()
        for given in SPLITS:
            wanted = given in splits or (given == "train" and any(split in splits for split in self.dealt))
            for path in self._files.get(given, []) if wanted else []:
                if not path.stat().st_size:
                    _LOG.warning("%s: is empty, left out", path)
                yield from self._pieces_of(path, given)

    def _pieces_in(self, path: Path) -> Iterator[Piece]:
        return pieces_in(path, self.rule, self.config.text_field, one_line_end=self.one_line_end)

    def _pieces_of(self, path: Path, given: str) -> Iterator[Tagged]:
        begins = True
        deals = given == "train" and bool(self.dealt)
        config = self.config
        found = documents(self._pieces_in(path), self.rule, config.split_seed, waits=deals)
        for place, pieces in found:
            for piece in pieces:
                number = place() if deals or piece.ends else 0
                split = self._split_of(number) if deals else given
                yield Tagged(split, piece, number if piece.ends else None, begins)
                begins = False

    def _split_of(self, place: int) -> str:
        i = int(place / 2**64 / self.config.held_out)
        return (self._chosen or {}).get(place) or (self.dealt[i] if i < len(self.dealt) else "train")

    def _choose(self) -> dict[int, str]:
        """Splits for the documents of the lowest places, where a split would stay empty."""
        least: list[int] = []
        missing = set(self.dealt)
        for path in self._files["train"]:
            for place, parts in documents(self._pieces_in(path), self.rule, self.config.split_seed, waits=False):
                deque(parts, maxlen=0)  # the place is that of all of them
                least = sorted({*least, place()})[: len(SPLITS)]
                missing.discard(self._split_of(place()))
                if not missing:
                    return {}
        return dict(zip(least, self.dealt, strict=False)) if len(least) > len(self.dealt) else {}

    def needs_headings(self, tokenizer: Tokenizer) -> bool:
        """Plain files of words are WikiText's kind, unless --documents says something else."""
        return self.is_plain and tokenizer.is_of_words and self.config.documents in ("auto", "heading")

    def describe(self, n_document: Mapping[str, int]) -> None:
        if self.is_plain:
            return
        there = [split for split in SPLITS if split in n_document]
        if empty := [split for split in there if not n_document[split]]:
            first = next(iter(self._files.values()))[0]
            found = f"{first}: the text has {sum(n_document.values())} document(s), found by {self.rule}, too few for"
            raise DataError(f"{found} {' and '.join(empty)}; choose --documents, or give files with these names")
        note = f"documents by {self.rule} ({self._why}): " + ", ".join(f"{n_document[s]:,} {s}" for s in there)
        if list(self._files) != ["train"]:
            named = [split for split in there if split in self._files]
            note += "; by name: " + ", ".join(f"{split} {_first_of(self._files[split])}" for split in named)
        if self.dealt:
            note += f"; {' and '.join(self.dealt)}: {self.config.held_out:g} each, seed {self.config.split_seed}"
        ours = [path for path in self._left_out if path.name != CACHE]
        self.note = note + (f"; left out, written by txl: {_first_of(ours)}" if ours else "")


class AnyText(AnyFiles):
    """Any files, whose line ends do not matter: those of plain text are \\n. Texts in jsonl and parquet stay as they
    are."""

    one_line_end = True


def _first_of(paths: list[Path]) -> str:
    return str(paths[0]) + (f" and {len(paths) - 1:,} more" if len(paths) > 1 else "")


def _is_plain(data: tuple[str, ...] | str) -> bool:
    """True if --data is a folder with a plain valid.txt, or with test.txt and no training text, where no other file is
    the only one of a split; a README.md or eval.json is no training text."""
    if not isinstance(data, str) or not Path(data).is_dir():
        return False
    plain = {split for split in SPLITS if (Path(data) / f"{split}.txt").is_file()}
    if plain == set(SPLITS):
        return True
    if not plain or ("train" in plain and "valid" not in plain):
        return False
    named = sources_of(data).splits.items()
    return {split or "train" for path, split in named if split or path.suffix.lower() not in (".md", ".json")} <= plain
