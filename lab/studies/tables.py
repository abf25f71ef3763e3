"""Tables, and how they are written: Markdown and CSV."""

import csv
import io
from typing import NamedTuple


class Table(NamedTuple):
    """The header and rows of cells."""

    header: list[str]
    rows: list[list[str]]


def as_markdown(table: Table) -> str:
    """A table in Markdown."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def as_csv(table: Table) -> str:
    """A table in CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([table.header, *table.rows])
    return out.getvalue()
