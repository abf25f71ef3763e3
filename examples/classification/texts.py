"""Labelled texts: a file of your own, or the docstrings of Python's standard library by package."""

import ast
import hashlib
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from txl.config import UsageError, require

N_CLASS = 8
_SHORTEST = 8
"""Words of a docstring."""
Labelled = tuple[str, str]
"""A label and a text."""


def read_tsv(path: Path) -> list[Labelled]:
    """A line each: the label, a tab, the text. Raises `UsageError` if a line has no tab or the file cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--data {path}: {error}; give a UTF-8 file with lines of label, tab and text"
        ) from None
    found = []
    for number, line in enumerate(lines, start=1):
        label, tab, text = line.partition("\t")
        require(
            bool(tab and text.strip()),
            f"--data {path}, line {number}: is not a label, a tab and a text",
        )
        found.append((label, text))
    return found


def docstrings() -> list[Labelled]:
    """First paragraphs of docstrings of this Python's standard library, labelled with their package: the packages with
    the most."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    found = [pair for path in sorted(stdlib.rglob("*.py")) for pair in _of_file(path, stdlib)]
    largest = {label for label, _ in Counter(label for label, _ in found).most_common(N_CLASS)}
    texts: dict[str, str] = {}  # a text that two packages have is neither's
    for label, text in found:
        texts[text] = label if texts.get(text, label) == label else ""
    return [(label, text) for text, label in texts.items() if label in largest]


def _of_file(path: Path, stdlib: Path) -> Iterator[Labelled]:
    parts = path.relative_to(stdlib).with_suffix("").parts
    if {"test", "tests", "site-packages", "idle_test", "lib2to3"} & set(parts):
        return
    try:
        module = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):  # a few files are invalid on purpose
        return
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            first = " ".join(text.split("\n\n")[0].split())
            if len(first.split()) >= _SHORTEST:
                yield parts[0], first


def is_held_out(text: str) -> bool:
    """A fifth of the texts, by a hash, so the same in every run."""
    return hashlib.sha256(text.encode()).digest()[0] % 5 == 0
