"""Who may import whom: a module imports only from floors below its own."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = [
    {"allocator", "config", "files", "signals"},
    {"log"},
    {"distributed"},
    {"memory", "narrowed", "ops"},
    {"positions", "adaptive", "feed_forward", "reversible"},
    {"kernels"},
    {"attention"},
    {"model", "init"},
    {"optim", "checkpoint", "convert", "estimate", "graphed"},
    {"evaluate", "sampling", "meter"},
    {"testtime", "study"},
    {"training", "conventions"},
    {"rows"},
    {"report"},
    {"pictures"},
    {"run", "cli"},
]
FLOOR = {name: i for i, floor in enumerate(FLOORS) for name in floor}
WITHIN_A_FLOOR = {("init", "model")}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def violations(root: Path) -> Iterator[str]:
    """Imports inside the package `txl` below `root` that go up or sideways, except to a module's own folder."""
    for path in sorted((root / "txl").rglob("*.py")):
        me = path.relative_to(root / "txl").parts[0].removesuffix(".py")
        for name in imports(path):
            package, _, other = name.partition(".")
            other = other.partition(".")[0]
            if package != "txl" or other == me or me == "__init__":
                continue
            if FLOOR.get(other, len(FLOORS)) >= FLOOR[me] and (me, other) not in WITHIN_A_FLOOR:
                yield f"txl.{me} imports {name}"


def test_no_module_imports_upward() -> None:
    assert list(violations(ROOT)) == []


def test_an_upward_import_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "txl").mkdir()
    (tmp_path / "txl" / "model.py").write_text("from txl.attention import Attention\n")
    (tmp_path / "txl" / "memory.py").write_text("from txl.model import TransformerXL\nimport txl\n")
    assert list(violations(tmp_path)) == ["txl.memory imports txl.model", "txl.memory imports txl"]


@pytest.mark.parametrize(("package", "other"), [("txl", "data_utils"), ("data_utils", "txl")])
def test_the_two_libraries_do_not_know_each_other(package: str, other: str) -> None:
    files = (ROOT / package).rglob("*.py")
    assert [path for path in files for name in imports(path) if name.partition(".")[0] == other] == []


def test_only_streams_of_the_text_library_know_tensors() -> None:
    files = (ROOT / "data_utils").glob("*.py")
    assert [path.name for path in files if any(n.partition(".")[0] == "torch" for n in imports(path))] == ["stream.py"]


def test_every_module_has_its_floor() -> None:
    modules = {path.name.removesuffix(".py") for path in (ROOT / "txl").iterdir() if not path.name.startswith("__")}
    assert modules == set(FLOOR)
