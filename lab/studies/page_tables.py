"""The tables of a page that a program writes, from files of results: what a marker asks for, and
the kinds of tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd  # pyright: ignore[reportMissingImports]

from lab.studies.figures import COSTS, PEAK, Figures
from lab.studies.occurrences import as_table
from lab.studies.statistics import mean_and_spread
from lab.studies.tables import as_markdown, table_of
from txl.config import UsageError, require

Names = list[str] | dict[str, str]
"""What a table shows, or what it shows by how it calls it."""


@dataclass(frozen=True)
class Asked:
    """The settings of a table.

    Attributes:
        rows: of the study, or contrasts; of `plain` the paths of lists (`rows`, `clamped.rows`).
            Empty: all.
        columns: evaluations, costs, `seeds`, `nats`, `code`, `processor`, parts of a comparison; of
            `plain` fields. Empty: those of the kind.
        of: the column of comparisons with the baseline, of `nats` and of distances.
        contrast: the name of a row's contrast, with {row} in it; empty: the baseline is compared.
        against: rows that `distances` are less than, by row, or one for all.
        edges: of `distances`, where ranges begin.
        digits: after the decimal point, of all or by column.
        where: of `plain`, what fields of its rows must be.
        title: of the first column.
        may_lack: a figure that is not there is an empty cell.
    """

    rows: Names = field(default_factory=list)
    columns: Names = field(default_factory=list)
    of: str = ""
    contrast: str = ""
    against: str | dict[str, str] = ""
    edges: list[int] = field(default_factory=list)
    digits: int | dict[str, int] = -1
    where: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    may_lack: bool = False

    def digits_of(self, column: str, usual: int) -> int:
        """Of the numbers in a column."""
        if isinstance(self.digits, dict):
            return self.digits.get(column, usual)
        if self.digits < 0:
            return usual
        return self.digits

    def shown_columns(self, usual: Sequence[str]) -> dict[str, str]:
        """What is shown of a row, by how it is called. Raises `UsageError` if `digits` names more."""
        columns = shown_as(self.columns, usual)
        if isinstance(self.digits, dict):
            there = "; ".join(columns)
            for name in self.digits:
                require(name in columns, f"digits: {name!r}: no such column; there are {there}")
        return columns

    def contrast_of(self, row: str) -> str:
        """The name of a row's contrast."""
        return self.contrast.replace("{row}", row)


def shown_as(names: Names, usual: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """What is shown, by how it is called."""
    chosen = names or usual
    if isinstance(chosen, Mapping):
        return dict(chosen)
    return {name: HEADS.get(name, name) for name in chosen}


HEADS = {
    "seeds": "seeds",
    "parameters": "parameters",
    "parameters_in_layers": "in layers",
    "tokens": "tokens",
    "remembered": "remembered floats",
    "operations": "operations",
    "cpu_seconds": "CPU seconds",
    "seconds": "seconds",
    "ms_per_step": "ms a step",
    "tokens_per_cpu_second": "tokens a CPU second",
    PEAK: "peak MiB",
    "difference": "difference",
    "interval": "95 % interval",
    "p": "p",
    "p_holm": "p (Holm)",
    "detectable": "detectable",
    "verdict": "verdict",
    "nats": "nats per token",
    "code": "commit",
    "processor": "processor",
}
"""What columns are called that are no evaluations."""
_COMPARED = ("difference", "interval", "p", "p_holm", "detectable", "verdict")
_CHOSEN = "chosen, "
_FROM = ("code", "processor")


def metric(figures: Figures, asked: Asked) -> pd.DataFrame:
    """Mean and standard deviation over a row's seeds, by evaluation."""
    rows = list(shown_as(asked.rows, figures.rows))
    return _by_row(figures, asked, ["seeds", *figures.columns(rows)])


def budget(figures: Figures, asked: Asked) -> pd.DataFrame:
    """What a row has cost: means over the seeds, and the maximum of the peaks."""
    usual = ["seeds", "parameters", "tokens", "cpu_seconds", "seconds", "remembered", PEAK]
    return _by_row(figures, asked, usual)


def beside(figures: Figures, asked: Asked) -> pd.DataFrame:
    """A row beside the baseline."""
    return _by_row(figures, asked, ["seeds", *_COMPARED])


def _by_row(figures: Figures, asked: Asked, usual: Sequence[str]) -> pd.DataFrame:
    rows = shown_as(asked.rows, figures.rows)
    if asked.contrast:
        require(
            any((asked.contrast_of(row), "") in figures.comparisons for row in rows),
            f"{figures.path}: contrast = {asked.contrast!r}: there is none of any row",
        )
    columns = asked.shown_columns(usual)
    cells = []
    for row, shown in rows.items():
        cells.append([shown, *(_known(figures, asked, row, column) for column in columns)])
    heads = _with_units(figures, columns)
    return _without_empty(table_of([asked.title, *heads], cells), bool(asked.columns))


def _known(figures: Figures, asked: Asked, row: str, column: str) -> str:
    """A cell, empty if it may be."""
    try:
        return _cell(figures, asked, row, column)
    except UsageError:
        if not asked.may_lack:
            raise
        return "0" * (column == "seeds")


def _with_units(figures: Figures, columns: Mapping[str, str]) -> list[str]:
    """The heads of columns; differences have a unit."""
    heads = []
    for name, shown in columns.items():
        heads.append(figures.unit if name == shown == "difference" else shown)
    return heads


def _without_empty(table: pd.DataFrame, is_chosen: bool) -> pd.DataFrame:
    """A table without columns in which nothing stands, unless they were asked for."""
    if is_chosen:
        return table
    is_there = (table != "").any().to_numpy(copy=True)
    is_there[0] = True
    return table.loc[:, is_there]


def _cell(figures: Figures, asked: Asked, row: str, column: str) -> str:
    if column in figures.columns([row]):
        known = figures.each(row, column)
        shown = plus_minus(known, asked.digits_of(column, 1))
        n_run = len(figures.runs(row))
        if len(known) < n_run:
            return f"{shown} ({len(known)} of {n_run})"
        return shown
    if column == "seeds":
        n_again = figures.reruns(row)
        return f"{figures.seeds(row)}" + f" + {n_again} again" * bool(n_again)
    if column.startswith(_CHOSEN):
        return _chosen(figures, row, column.removeprefix(_CHOSEN))
    if column == "nats":
        return plus_minus(figures.each(row, asked.of, "nats"), asked.digits_of(column, 3))
    if column in _FROM:
        return "; ".join(figures.origins(row, column))
    if column in _COMPARED:
        return _compared(_comparison(figures, asked, row), column, asked)
    return _cost(figures, asked, row, column)


def _chosen(figures: Figures, row: str, column: str) -> str:
    """The lengths that were best on valid, by seed, or one if they are alike."""
    found = [f"{length:,}" for length in figures.chosen(row, column)]
    if len(set(found)) == 1:
        return found[0]
    return "; ".join(found)


def _comparison(figures: Figures, asked: Asked, row: str) -> Mapping[str, Any]:
    """Of a row with the baseline, or the contrast of its name; empty: there is none."""
    if asked.contrast:
        return figures.comparisons.get((asked.contrast_of(row), ""), {})
    if row == figures.value("study", "baseline"):
        return {}
    return figures.comparison(row, asked.of)


def _compared(one: Mapping[str, Any], column: str, asked: Asked) -> str:
    """A part of a comparison; empty where it has none."""
    digits = asked.digits_of(column, 3)
    if column == "verdict":
        return "; ".join(filter(None, [one.get("verdict"), one.get("note")]))
    if column == "interval":
        if one.get("low") is None:
            return ""
        return f"{one['low']:+.{digits}f} to {one['high']:+.{digits}f}"
    number = one.get(column)
    if number is None:
        return ""
    if column == "difference":
        return f"{number:+.{digits}f}"
    if column == "detectable":
        return f"{number:.{digits}f}"
    return f"{number:.2g}"


def _cost(figures: Figures, asked: Asked, row: str, column: str) -> str:
    if column == PEAK:
        return f"{figures.cost(row, PEAK):,.{asked.digits_of(column, 0)}f}"
    if column == "tokens_per_cpu_second":
        seconds = figures.cost(row, "cpu_seconds")
        require(seconds > 0, f"{figures.path}: {row!r}: cpu_seconds was not measured")
        number = figures.cost(row, "tokens") / seconds
        return f"{number:,.{asked.digits_of(column, 0)}f}"
    there = "; ".join([*figures.columns([row]), *HEADS])
    require(column in COSTS, f"{figures.path}: {row!r}: no column {column!r}; there are {there}")
    values = figures.costs(row, column)
    if column == "operations":
        return f"{mean_and_spread(values)[0]:.{asked.digits_of(column, 2)}e}"
    return plus_minus(values, asked.digits_of(column, 0))


def plus_minus(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation, which is left out of one value and of values that are alike."""
    mean, spread = mean_and_spread(values)
    if not spread:
        return f"{mean:,.{digits}f}"
    return f"{mean:,.{digits}f} ± {spread:,.{digits}f}"


def contrasts(figures: Figures, asked: Asked) -> pd.DataFrame:
    """A contrast a row, or all rows beside the baseline."""
    usual = []
    for name, column in figures.comparisons:
        if column == asked.of:
            usual.append(name)
    require(bool(usual), f"{figures.path}: of = {asked.of!r}: no comparison is of that column")
    columns = asked.shown_columns(["seeds", *_COMPARED])
    cells = []
    for name, shown in shown_as(asked.rows, usual).items():
        one = figures.comparison(name, asked.of)
        parts = []
        for column in columns:
            parts.append(str(one["seeds"]) if column == "seeds" else _compared(one, column, asked))
        cells.append([shown, *parts])
    table = table_of([asked.title or "contrast", *_with_units(figures, columns)], cells)
    return _without_empty(table, bool(asked.columns))


def search(figures: Figures, asked: Asked) -> pd.DataFrame:
    """The values that were tried for a row, with validation losses in nats per token."""
    found = figures.value("search")
    require(bool(found), f"{figures.path}: holds no search")
    name = figures.value("study", "search", "of")
    like = figures.value("study", "search").get("like", {})
    cells = []
    for row, shown in shown_as(asked.rows, list(found)).items():
        best = figures.value("search", row, name)  # None: every training diverged
        if row in like:  # it has no trials of its own
            taken = "none" if best is None else f"**{best:g}**"
            cells.append([shown, f"{taken}, taken from {like[row]}"])
            continue
        tried = figures.value("search", row, "tried")
        parts = []
        for value in sorted(tried, key=float):
            nats = (
                "diverged"
                if tried[value] is None
                else f"{tried[value]:.{asked.digits_of('tried', 3)}f}"
            )
            parts.append(f"**{value}: {nats}**" if float(value) == best else f"{value}: {nats}")
        cells.append([shown, "; ".join(parts)])
    return table_of([asked.title, f"{name}: valid nats per token"], cells)


def distances(figures: Figures, asked: Asked) -> pd.DataFrame:
    """Nats per token by distance to the beginning of the article, less those of another row."""
    require(bool(asked.edges), "a table of distances needs edges = [16, 64], where ranges begin")
    starts = [0, *asked.edges]
    header = [asked.title or "tokens since the article began"]
    for first, after in zip(starts, asked.edges, strict=False):
        header.append(f"{first + 1:,} to {after:,}")
    header.append("beyond")
    lasts = [*(edge - 1 for edge in asked.edges), None]
    cells = []
    rows = shown_as(asked.rows, figures.rows)
    for row in () if isinstance(asked.against, str) else asked.against:
        require(row in rows, f"against: {row!r}: no row of the table; there are {'; '.join(rows)}")
    for row, shown in rows.items():
        other = asked.against if isinstance(asked.against, str) else asked.against.get(row, "")
        parts = []
        for first, last in zip(starts, lasts, strict=True):
            nats = figures.at(row, asked.of, first, last)
            if other:
                nats -= figures.at(other, asked.of, first, last)
            parts.append(f"{nats:{'+' if other else ''}.{asked.digits_of('', 3)}f}")
        cells.append([shown, *parts])
    return table_of(header, cells)


def plain(figures: Figures, asked: Asked) -> pd.DataFrame:
    """The rows of any JSON: of lists, or single ones, at one or several paths, which are named if
    the marker does.
    """
    is_named = isinstance(asked.rows, dict)
    require(bool(asked.columns), "a plain table needs columns, the fields that it shows")
    columns = asked.shown_columns([])
    cells = []
    for path, shown in shown_as(asked.rows, ["rows"]).items():
        for keys in _paths(figures, path):
            row = figures.value(*keys)
            if not all(row.get(key) == wanted for key, wanted in asked.where.items()):
                continue
            values = []
            for name in columns:
                values.append(_plain(figures.value(*keys, *_keys(name)), name, asked))
            cells.append([shown, *values] if is_named else values)
    require(bool(cells), f"{figures.path}: no row is as `where` asks")
    return table_of([*[asked.title] * is_named, *columns.values()], cells)


def _keys(path: str) -> list[str | int]:
    """The names and places of a path, as in `clamped.rows.0`."""
    return [int(key) if key.isdecimal() else key for key in path.split(".")]


def _paths(figures: Figures, path: str) -> list[list[str | int]]:
    """Those of the rows at a path."""
    keys = _keys(path)
    found = figures.value(*keys)
    if isinstance(found, list):
        rows = [[*keys, i] for i in range(len(found))]
    else:
        rows = [keys]
    for row in rows:
        is_row = isinstance(figures.value(*row), dict)
        require(is_row, f"{figures.path}: {path}: is no row, nor a list of rows")
    return rows


def occurrences(figures: Figures, asked: Asked) -> pd.DataFrame:
    """Groups of tokens by where a token stood last, those whose columns are as `where` asks."""
    table: Any = as_table(figures.groups)
    for column, wanted in asked.where.items():
        table = table[table[column] == wanted]
    require(len(table) > 0, f"{figures.path}: no row is as `where` asks")
    return table


def _plain(value: Any, name: str, asked: Asked) -> str:
    if isinstance(value, float):
        return f"{value:,.{asked.digits_of(name, 2)}f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)


KINDS: Mapping[str, Callable[[Figures, Asked], pd.DataFrame]] = {
    "metric": metric,
    "budget": budget,
    "beside": beside,
    "contrasts": contrasts,
    "search": search,
    "distances": distances,
    "plain": plain,
    "occurrences": occurrences,
}


def _as_function(kind: str) -> Callable[..., str]:
    """What a template calls for a kind of table: of a file, with the settings of `Asked`."""

    def table(figures: Figures, **settings: Any) -> str:
        return as_markdown(KINDS[kind](figures, Asked(**settings)))

    return table


TABLES = {kind: _as_function(kind) for kind in KINDS}
"""By the names that they have in templates."""
