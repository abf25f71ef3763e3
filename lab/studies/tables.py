"""Tables of texts, and how they are written in Markdown."""

from collections.abc import Sequence

import pandas as pd  # pyright: ignore[reportMissingImports]


def table_of(header: Sequence[str], rows: Sequence[Sequence[str]]) -> pd.DataFrame:
    """A table of cells."""
    return pd.DataFrame(rows, columns=list(header), dtype=object)


def as_markdown(frame: pd.DataFrame) -> str:
    """A table in Markdown."""
    lines = [list(frame.columns), ["---"] * len(frame.columns), *frame.to_numpy().tolist()]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
