"""Who may import whom: a room imports only from rooms below its own, and no two modules import each other."""

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = [
    {"errors", "files"},
    {"registry"},
    {"config"},
    {"usage"},
    {"runtime", "ops"},
    {"model"},
    {"memory", "positions", "stacks"},
    {"attention_rules"},
    {"plugins"},
    {"inference"},
    {"checkpoint", "convert", "agents"},
    {"evaluation", "generation"},
    {"training", "report"},
    {"language"},
    {"settings"},
    {"runs"},
    {"programs"},
    {"studies", "hf", "lm_eval"},
]
"""The rooms of txl, from the lowest: modules and folders at its top level."""
FLOOR = {name: i for i, rooms in enumerate(ROOMS) for name in rooms}
TEXT = "data_utils"
"""The text library: of txl it imports only the two lowest floors, and only the floors from `language` on import it."""


@functools.cache
def imports(path: Path) -> list[str]:
    """Dotted names that a file imports, relative ones left out."""
    found: list[str] = []
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []  # names in annotations are imported by nobody
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def sources(root: Path) -> list[Path]:
    return [
        p
        for p in sorted((root / "txl").rglob("*.py"))
        if TEXT not in p.parts and p.name != "__main__.py"
    ]


def violations(root: Path) -> Iterator[str]:
    """Imports inside the package `txl` below `root` that go up to a higher room or sideways to another one."""
    for path in sources(root):
        me = path.relative_to(root / "txl").parts[0].removesuffix(".py")
        for name in dict.fromkeys(".".join(name.split(".")[:2]) for name in imports(path)):
            package, _, other = name.partition(".")
            if package != "txl" or me == "__init__" or other in (me, "__version__"):
                continue
            if FLOOR[me] >= FLOOR["language"] and other == TEXT:
                continue
            if not other and f"from {name} import" in path.read_text():
                continue  # the name that is imported from it follows
            if FLOOR.get(other, len(ROOMS)) >= FLOOR[me]:
                yield f"txl.{me} imports {name}"


def test_no_module_imports_upward_and_every_room_has_its_floor() -> None:
    modules = {
        path.name.removesuffix(".py")
        for path in (ROOT / "txl").iterdir()
        if not path.name.startswith("__")
    }
    assert modules - {"py.typed", "presets"} == set(FLOOR) | {TEXT}
    assert list(violations(ROOT)) == []


def test_an_upward_import_is_seen(tmp_path: Path) -> None:
    (tmp_path / "txl").mkdir()
    (tmp_path / "txl" / "model.py").write_text("from txl.memory.none import NoMemory\n")
    (tmp_path / "txl" / "positions.py").write_text("import txl\nfrom txl import TransformerXL\n")
    (tmp_path / "txl" / "generation.py").write_text("from txl.evaluation.score import evaluate\n")
    (tmp_path / "txl" / "training.py").write_text("from txl.data_utils.corpus import Corpus\n")
    assert list(violations(tmp_path)) == [
        "txl.generation imports txl.evaluation",
        "txl.model imports txl.memory",
        "txl.positions imports txl.TransformerXL",
        "txl.training imports txl.data_utils",
    ]


def test_the_laboratory_and_its_packages_are_imported_by_nothing() -> None:
    """Neither by the product nor by its tests."""
    folders = [ROOT / name for name in ("txl", "tests")]
    files = [*ROOT.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
    imported = {(name.partition(".")[0], path) for path in files for name in imports(path)}
    assert [
        path for name, path in imported if name in ("lab", "pandas", "scipy", "statsmodels")
    ] == []


def test_modules_do_not_import_in_circles() -> None:
    names = {
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
        for p in sources(ROOT)
    }
    graph = {
        name: {i for i in imports(path) if i in names and i != name} for name, path in names.items()
    }
    for name in graph:
        graph[name] -= {n for n in graph[name] if name.startswith(n + ".")}  # a room's own __init__
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_text_library_knows_little_of_others_and_has_one_name() -> None:
    """Under two names its classes would exist twice, and errors would not be caught. Only its streams know tensors."""
    names = {
        ".".join(name.split(".")[:2])
        for path in (ROOT / "txl" / TEXT).rglob("*.py")
        for name in imports(path)
    }
    assert {name for name in names if name.partition(".")[0] in ("txl", TEXT)} == {
        "txl.config",
        "txl.files",
        "txl.registry",
    }
    files = (ROOT / "txl" / TEXT).glob("*.py")
    knows = sorted(
        path.name for path in files if any(n.partition(".")[0] == "torch" for n in imports(path))
    )
    assert knows == ["segments.py"]
    files = [
        p for folder in ("txl", "tests", "lab", "examples") for p in (ROOT / folder).rglob("*.py")
    ]
    assert [
        path for path in files if any(name.partition(".")[0] == TEXT for name in imports(path))
    ] == []
