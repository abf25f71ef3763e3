"""Python's bundled documentation as a corpus in WikiText's format, which needs no download.

A document is a topic of `pydoc_data.topics` or the docstrings of one module of the standard
library. Sources are parsed, never imported."""

import ast
import hashlib
import itertools
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from txl.files import written_whole

from .config import DataSet
from .errors import DataError
from .texts import SPLITS, Texts
from .tokens import EOS, UNK, Vocab
from .wikitext import tokenise

MIN_COUNT = 3
# tests, programs, installed packages, and modules that newer Pythons lack
_LEFT_OUT = set(
    "test tests idlelib turtledemo pydoc_data site-packages dist-packages lib2to3 distutils".split()
)
_HAS_LETTERS = re.compile(r"[^\W\d_]{2}")
_CODE = re.compile(r"\s*(>>>|\.\.\. |\.\. )|.*::=")


class Pydoc(Texts):
    """A folder into which the corpus is written if it has none of the files; never that of
    WikiText-103."""

    def require_data(self) -> None:
        super().require_data()
        if self.config.data == type(self.config).data:
            why = "is where WikiText-103 goes, which would be read as this corpus, or this as that"
            raise DataError(
                f"--data {self.home}: {why}; name a folder of its own, such as --data data/pydoc"
            )
        if not any(map(self.is_there, SPLITS)):
            write_pydoc_corpus(self.home)


Document = tuple[str, list[list[str]]]
"""A name, and lines of words."""


def write_pydoc_corpus(folder: Path, *, stdlib: Path | None = None) -> None:
    """Write train.txt, valid.txt and test.txt; about 330,000 words with Python 3.11. Words seen
    fewer than 3 times in train are `<unk>` everywhere. Raises `DataError` if the standard library
    in `stdlib` (None: of this Python) has too few sources."""
    stdlib = stdlib or Path(sysconfig.get_paths()["stdlib"])
    documents = [*_topics(stdlib / "pydoc_data" / "topics.py"), *_modules(stdlib)]
    counts: Counter[str] = Counter()
    for name, lines in documents:
        if _split_of(name) == "train":
            counts.update(itertools.chain.from_iterable(lines))
    if counts.total() < 50_000:
        held = (
            f"{stdlib}: holds only {counts.total()} words of documentation: a Python without its "
            "sources"
        )
        raise DataError(
            f"{held}; use another one, or your own text with --dataset text --data FOLDER"
        )
    for split in SPLITS:
        with written_whole(folder / f"{split}.txt") as temporary, temporary.open("wb") as file:
            for name, lines in documents:
                if _split_of(name) == split:
                    for line in lines:
                        words = (word if counts[word] >= MIN_COUNT else UNK for word in line)
                        file.write(f" {' '.join(words)} \n".encode())


def _split_of(name: str) -> str:
    """A twentieth of the documents each for valid and test, by a hash of the name, so the same for
    every Python."""
    bucket = hashlib.sha256(name.encode()).digest()[0] % 20
    return {0: "valid", 1: "test"}.get(bucket, "train")


def _topics(path: Path) -> Iterator[Document]:
    if not path.is_file():
        return
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for name, text in sorted(ast.literal_eval(node.value).items()):
                yield name, [_heading(name, 1), *_paragraphs(text)]


def _modules(stdlib: Path) -> Iterator[Document]:
    paths = sorted(stdlib.rglob("*.py"))
    for path in tqdm(paths, desc="reading docstrings", unit="file", disable=None):
        if not _LEFT_OUT.isdisjoint(path.relative_to(stdlib).parts):
            continue
        try:
            module = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # a few files of the library are invalid on purpose
        name = ".".join(path.relative_to(stdlib).with_suffix("").parts).removesuffix(".__init__")
        if _private(name.split(".")[-1]):
            continue
        lines = list(_docstrings(module, name, 1))
        if sum(map(len, lines)) >= 30:
            yield name, lines


def _docstrings(node: ast.AST, name: str, level: int) -> Iterator[list[str]]:
    """The docstrings of a module, class or function and its members, each under a heading."""
    if text := ast.get_docstring(node):  # type: ignore[arg-type]
        yield _heading(name, level)
        yield from _paragraphs(text)
    for child in ast.iter_child_nodes(node):
        if isinstance(
            child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and not _private(child.name):
            yield from _docstrings(child, child.name, level + 1)


def _private(name: str) -> bool:
    return name.startswith("_")


def _heading(name: str, level: int) -> list[str]:
    return ["="] * level + [name] + ["="] * level


def _paragraphs(text: str) -> Iterator[list[str]]:
    """One paragraph per line, without code, tables and underlines of titles."""
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if _HAS_LETTERS.search(line)]
        if lines and not any(map(_CODE.match, lines)):
            yield tokenise(" ".join(lines))


PYDOC = DataSet(Pydoc, Vocab, ("train",), special=(EOS, UNK))
