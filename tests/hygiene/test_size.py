"""The house stays small: the nodes of the syntax trees of each room are at most what docs/architecture.md says.
Lines change with a formatter, nodes do not."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
ROW = re.compile(r"^\| (?P<what>[^|]*`[^|]*) \| (?P<most>[\d,]+) \|", re.MULTILINE)
TOGETHER = "all of "


class Room(NamedTuple):
    """A row of the table: its paths, the nodes that they may have, and whether rooms inside count."""

    paths: list[str]
    most: int
    is_whole: bool


def rooms() -> list[Room]:
    table = PAGE.read_text(encoding="utf-8").partition("## Size\n")[2].partition("\n## ")[0]
    found = []
    for row in ROW.finditer(table):
        paths = re.findall(r"`([^`]+)`", row["what"])
        most = int(row["most"].replace(",", ""))
        found.append(Room(paths, most, row["what"].startswith(TOGETHER)))
    return found


def nodes() -> dict[str, int]:
    """Of each file, by its path."""
    found = {}
    for top in ("txl", "data_utils", "lab", "tests", "examples"):
        for path in (ROOT / top).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found[str(path.relative_to(ROOT))] = sum(1 for _ in ast.walk(tree))
    return found


def is_in(file: str, path: str) -> bool:
    return file == path or file.startswith(f"{path}/")


def test_no_room_has_more_nodes_than_the_page_of_the_architecture_allows() -> None:
    sizes = nodes()
    parts = {path for room in rooms() if not room.is_whole for path in room.paths}
    sums: dict[str, int] = dict.fromkeys(parts, 0)
    for file, size in sizes.items():
        homes = [path for path in parts if is_in(file, path)]
        assert homes, f"{file}: is in no room of docs/architecture.md"
        sums[max(homes, key=len)] += size
    for room in rooms():
        if room.is_whole:
            mine = [size for file, size in sizes.items() if any(is_in(file, p) for p in room.paths)]
        else:
            mine = [sums[path] for path in room.paths]
        assert 0 < sum(mine) <= room.most, f"{', '.join(room.paths)}: {sum(mine):,} nodes"


def test_rooms_of_the_table_are_there() -> None:
    assert len(rooms()) >= 15
    for room in rooms():
        assert [path for path in room.paths if not (ROOT / path).exists()] == []
