"""The figures of a file of results, for pages that repeat them: of a study.json, of any other JSON,
or of what lab.studies.occurrences writes with --csv.
"""

import csv
import functools
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd  # pyright: ignore[reportMissingImports]

from lab.studies.occurrences import Group
from lab.studies.plan import METRICS
from lab.studies.statistics import mean_and_spread
from txl.config import UsageError, require
from txl.files import content_of
from txl.runtime.records import read_json

COSTS = (
    "parameters",
    "parameters_in_layers",
    "tokens",
    "remembered",
    "operations",
    "cpu_seconds",
    "seconds",
    "ms_per_step",
)
"""What a run has cost, by its fields in study.json."""
PEAK = "peak_mib"
"""Of a row the maximum over its seeds: a machine must have as much."""


class Figures:
    """What a file of results holds.

    Every question raises `UsageError`, naming the file, if it is about what is not there.

    Args:
        path: of a JSON file, or a CSV file, which becomes a list of rows of texts.
        content: of the file, if it is not written yet.
    """

    def __init__(self, path: Path, content: Any = None) -> None:
        self.path = path
        self.content = content
        if content is None:
            self.content = _content(path)

    def value(self, *keys: str | int) -> Any:
        """What stands at a path of names and places."""
        found = self.content
        for i, key in enumerate(keys):
            try:
                found = found[key]
            except (KeyError, IndexError, TypeError):
                there = "; ".join(map(str, found)) if isinstance(found, dict) else "no names"
                place = " of ".join(map(repr, reversed(keys[:i]))) or "the file"
                raise UsageError(
                    f"{self.path}: {key!r}: not in {place}; there are {there}"
                ) from None
        return found

    @property
    def rows(self) -> list[str]:
        """The names of the rows of a study."""
        return list(self._all_runs)

    @property
    def _all_runs(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        runs = self.content.get("runs") if isinstance(self.content, dict) else None
        require(
            isinstance(runs, dict), f"{self.path}: holds no runs: not the study.json of a study"
        )
        assert isinstance(runs, dict)
        return runs

    @property
    def unit(self) -> str:
        """Of differences."""
        return METRICS[self.value("study", "metric")]

    def runs(self, row: str) -> Sequence[Mapping[str, Any]]:
        """The trainings of a row."""
        there = f"{self.path}: {row!r}: no such row; there are {'; '.join(self.rows)}"
        require(row in self._all_runs, there)
        found = self._all_runs[row]
        require(bool(found), f"{self.path}: {row!r}: has no finished training")
        return found

    def columns(self, rows: Sequence[str]) -> list[str]:
        """The columns of the evaluations of rows."""
        found: dict[str, None] = {}
        for row in rows:
            for run in self._all_runs.get(row, ()):
                found |= dict.fromkeys(run["values"])
        return list(found)

    @functools.cached_property
    def trainings(self) -> pd.DataFrame:
        """A line a training: its row, what it has cost, and what it has reached in each evaluation,
        under `values: COLUMN` and `nats: COLUMN`.
        """
        lines = []
        for row, runs in self._all_runs.items():
            for run in runs:
                line: dict[str, Any] = {"row": row, **{name: run.get(name) for name in COSTS}}
                if run.get("peak_gib") is not None:
                    line[PEAK] = 1024 * run["peak_gib"]
                for kind in ("values", "nats"):
                    line |= {f"{kind}: {column}": number for column, number in run[kind].items()}
                lines.append(line)
        return pd.DataFrame(lines)

    def _known(self, row: str, what: str, why: str) -> list[float]:
        """What is known of the trainings of a row; `why` says what to do if it is nothing."""
        self.runs(row)
        found = []
        if what in self.trainings:
            found = self.trainings.loc[self.trainings["row"] == row, what].dropna().tolist()
        require(bool(found), f"{self.path}: {row!r}: {why}")
        return found

    def each(self, row: str, column: str, kind: str = "values") -> list[float]:
        """A column of every training of a row: the study's metric, or its `nats` per token."""
        there = "; ".join(self.columns([row]))
        return self._known(row, f"{kind}: {column}", f"no column {column!r}; there are {there}")

    def origins(self, row: str, kind: str) -> list[str]:
        """The commits (`code`) or processors of a row's trainings, each once."""
        found = {}
        for run in self.runs(row):
            if kind == "processor":
                known = run.get("processor")
            else:
                known = run.get("source", "").partition(f"{kind} ")[2]
            require(bool(known), f"{self.path}: {row!r}: its {kind} was not noted")
            found[known] = None
        return list(found)

    def mean(self, row: str, column: str) -> float:
        """The study's metric, over the seeds."""
        return mean_and_spread(self.each(row, column))[0]

    def deviation(self, row: str, column: str) -> float:
        """Of the study's metric, over the seeds."""
        spread = mean_and_spread(self.each(row, column))[1]
        require(spread is not None, f"{self.path}: {row!r}: one seed, which has no deviation")
        assert spread is not None
        return spread

    def nats(self, row: str, column: str) -> float:
        """Nats per token, over the seeds."""
        return mean_and_spread(self.each(row, column, "nats"))[0]

    def seeds(self, row: str) -> int:
        """How many a row has, without trainings that were run again."""
        return len(self.runs(row)) - self.reruns(row)

    def reruns(self, row: str) -> int:
        """How many trainings of a row were run again."""
        return sum(bool(run.get("is_rerun")) for run in self.runs(row))

    def costs(self, row: str, name: str) -> list[float]:
        """What every training of a row has cost, one of `COSTS`, or `PEAK`."""
        there = ", ".join((*COSTS, PEAK))
        require(name in (*COSTS, PEAK), f"{self.path}: {name}: no such cost; there are {there}")
        return self._known(row, name, f"{name} was not measured")

    def cost(self, row: str, name: str) -> float:
        """What a row has cost: the mean over the seeds, of `PEAK` the maximum."""
        if name == PEAK:
            return max(self.costs(row, name))
        return mean_and_spread(self.costs(row, name))[0]

    def flag(self, row: str, name: str) -> Any:
        """A flag of train.py that a row was trained with."""
        return self.value("study", "variants", row, name)

    @functools.cached_property
    def comparisons(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """By contrast, or row beside the baseline, and column (of a contrast: empty)."""
        found = {}
        for one in self.value("comparisons"):
            found[one["run"], one["column"]] = one
        return found

    def comparison(self, name: str, column: str = "") -> Mapping[str, Any]:
        """A contrast by its name, or a row beside the baseline in a column."""
        there = []
        for run, of in self.comparisons:
            there.append(f"{run} ({of})" if of else run)
        shown = f"{name} ({column})" if column else name
        require(
            (name, column) in self.comparisons,
            f"{self.path}: {shown!r}: no such comparison; there are {'; '.join(there)}",
        )
        return self.comparisons[name, column]

    def at(self, row: str, column: str, first: int, last: int | None = None) -> float:
        """Nats per token over the seeds, of tokens `first` to `last` (None: all that follow) after
        the first of their article.
        """
        means = []
        for run in self.runs(row):
            bins = self._bins(run, row, column, first, last)
            n_token = sum(one["tokens"] for one in bins)
            nats = sum(one["tokens"] * one["nats_per_token"] for one in bins)
            means.append(nats / n_token)
        return mean_and_spread(means)[0]

    def tokens_at(self, row: str, column: str, first: int, last: int | None = None) -> int:
        """How many tokens `at` is of."""
        bins = self._bins(self.runs(row)[0], row, column, first, last)
        return sum(one["tokens"] for one in bins)

    def _bins(
        self, run: Mapping[str, Any], row: str, column: str, first: int, last: int | None
    ) -> list[Mapping[str, Any]]:
        """The losses by distance of a training that make up a range."""
        known = run.get("distances", {}).get(column, ())  # older files have none
        bins = _between(known, first, last)
        edges = "; ".join(str(one["from"]) for one in known)
        require(
            bool(bins),
            f"{self.path}: {row!r}, {column!r}: no figures from {first} to {last}; they begin"
            f" at {edges or 'no distance'}",
        )
        return bins

    def chosen(self, row: str, column: str) -> list[int]:
        """The memory lengths that were best on valid, of every training of a row."""
        found = []
        for run in self.runs(row):
            if column in run.get("chosen", {}):
                found.append(run["chosen"][column])
        require(bool(found), f"{self.path}: {row!r}: no length was chosen for {column!r}")
        return found

    @property
    def groups(self) -> list[Group]:
        """The groups of tokens of a file of lab.studies.occurrences."""
        found = []
        try:
            for row in self.value("rows"):
                differences = []
                for name, value in row.items():
                    if name.startswith("difference "):
                        differences.append(float(value))
                found.append(
                    Group(
                        row["last occurrence"],
                        row["in training"],
                        int(row["tokens"]),
                        float(row["of"]),
                        float(row["against"]),
                        tuple(differences),
                        float(row["share"]),
                    )
                )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UsageError(
                f"{self.path}: not what lab.studies.occurrences writes with --csv"
            ) from None
        return found

    def group(self, place: str, frequency: str, name: str) -> float:
        """Of a group of tokens the mean `difference` over the seeds, or its `tokens`, `of`,
        `against` or `share`.
        """
        for one in self.groups:
            if (one.place, one.frequency) == (place, frequency):
                if name == "difference":
                    return mean_and_spread(one.differences)[0]
                require(name in GROUP, f"{self.path}: {name}: there are {', '.join(GROUP)}")
                return getattr(one, name)
        there = "; ".join(f"{one.place}, {one.frequency}" for one in self.groups)
        raise UsageError(f"{self.path}: {place}, {frequency}: no such group; there are {there}")


GROUP = ("difference", "tokens", "of", "against", "share")
"""Numbers of a group of tokens."""


def _content(path: Path) -> Any:
    """Raises `UsageError` if it is not of its kind."""
    try:
        if path.suffix == ".csv":
            return {"rows": list(csv.DictReader(io.StringIO(content_of(path).decode())))}
        return read_json(path)
    except ValueError as error:
        raise UsageError(f"{path}: not {path.suffix[1:].upper()} ({error}); restore it") from None


def _between(
    bins: Sequence[Mapping[str, Any]], first: int, last: int | None
) -> list[Mapping[str, Any]]:
    """The bins that make up a range; none if they do not."""
    found = []
    for one in bins:
        if one["from"] >= first and (last is None or one["to"] <= last):
            found.append(one)
    is_whole = bool(found) and found[0]["from"] == first
    if is_whole and (last is None or found[-1]["to"] == last):
        return found
    return []
