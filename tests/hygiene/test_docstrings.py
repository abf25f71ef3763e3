"""Formulas and tables of docstrings stand apart from the text, so that none is wrapped as text."""

import ast
import re

from tests.forks import ROOT

ALIGNED = re.compile(r"[^\s|] {3,}\S|^\s*\|")


def docstrings() -> list[tuple[str, list[str]]]:
    """Each docstring of the package, in lines, with its place."""
    found = []
    for path in sorted((ROOT / "txl").rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node, clean=False)
                if text:
                    margin = " " * node.body[0].col_offset
                    lines = [line.removeprefix(margin) for line in text.split("\n")]
                    found.append((f"{path.relative_to(ROOT)}:{node.body[0].lineno}", lines))
    return found


def test_an_aligned_line_is_indented() -> None:
    """Columns, which three spaces set apart, are no running text."""
    loose = [
        f"{where}: {line}"
        for where, lines in docstrings()
        for line in lines[1:]
        if ALIGNED.search(line) and not line.startswith("    ")
    ]
    assert loose == []
