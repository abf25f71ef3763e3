"""Code says one thing a line: how many conditional expressions, comprehensions, parallel assignments and long lines."""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
LONG = 100
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Density(NamedTuple):
    """Of 1,000 lines."""

    ternaries: float
    comprehensions: float
    parallel: float
    long_lines: float


LIMIT = Density(12, 20, 4, 20)


def is_parallel(node: ast.AST) -> bool:
    """True for `a, b = c, d`."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return all(isinstance(target, ast.Tuple) for target in node.targets)


def density(folder: Path) -> Density:
    """Of the sources in a folder and below it. Links are not followed."""
    n_line = 0
    counts = [0, 0, 0, 0]
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        n_line += len(lines)
        for node in ast.walk(ast.parse(text)):
            counts[0] += isinstance(node, ast.IfExp)
            counts[1] += isinstance(node, _COMPREHENSIONS)
            counts[2] += is_parallel(node)
        counts[3] += sum(len(line) > LONG for line in lines)
    return Density(*(1000 * count / n_line for count in counts))


def test_code_is_not_denser_than_its_limit() -> None:
    print(f"\n{'of 1,000 lines':20}" + "".join(f"{name:>16}" for name in Density._fields))
    too_dense = []
    for name in ("txl", "txl/data_utils"):
        measured = density(ROOT / name)
        print(f"{name:20}" + "".join(f"{value:16.1f}" for value in measured))
        print(f"{'at most':>20}" + "".join(f"{value:16.1f}" for value in LIMIT))
        for field in Density._fields:
            if getattr(measured, field) > getattr(LIMIT, field):
                too_dense.append(f"{name}: {field} {getattr(measured, field):.1f}")
    assert too_dense == []


@pytest.mark.parametrize(
    ("line", "counted"),
    [
        ("a = b if c else d", "ternaries"),
        ("a = [b for b in c]", "comprehensions"),
        ("a = sum(b for b in c)", "comprehensions"),
        ("a, b = 1, 2", "parallel"),
        (f"a = '{'b' * LONG}'", "long_lines"),
        ("a, b = f()", None),
        ("a = 1, 2", None),
    ],
)
def test_each_dense_form_is_counted(line: str, counted: str | None, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(f"{line}\n")
    expected = Density(0, 0, 0, 0)
    if counted is not None:
        expected = expected._replace(**{counted: 1000})
    assert density(tmp_path) == expected
