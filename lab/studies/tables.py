"""The tables of a study, and how they are written: Markdown and CSV."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lab.studies.plan import METRICS, Search, Study
from lab.studies.results import (
    Row,
    RunFigures,
    columns_of,
    final_loss,
    tokens_until,
    validated_alike,
)
from lab.studies.runner import best_finite
from lab.studies.statistics import Comparison, mean_and_spread


class Table(NamedTuple):
    """The header and rows of cells."""

    header: list[str]
    rows: list[list[str]]


def figures_table(study: Study, rows: Sequence[Row]) -> Table:
    """A row of the study a row: mean and standard deviation over its seeds in each column, and what
    it has cost.
    """
    columns = columns_of(rows)
    if validated_alike(rows):
        baselines = []
        for row in rows:
            if row.variant == study.baseline:
                baselines.append(row)
    else:
        baselines = []
    goals = {row.source: final_loss(row.runs) for row in baselines}
    header = [
        "run",
        "seeds",
        *columns,
        "parameters",
        "in layers",
        "tokens",
        "tokens to the baseline's loss",
    ]
    header += ["remembered floats", "operations", "CPU seconds", "seconds", "ms a step", "peak GiB"]
    cells = []
    for row in rows:
        if not row.runs:
            cells.append([row.name, "0", *[""] * (len(header) - 2)])
            continue
        peaks = []
        for run in row.runs:
            if run.peak_gib is not None:
                peaks.append(run.peak_gib)
        tokens = _mean([run.tokens for run in row.runs])
        if row.variant == study.baseline:
            until = tokens
        else:
            until = _tokens_until(row.runs, goals.get(row.source))
        cells.append(
            [
                *(
                    row.name,
                    _seeds(row.runs),
                    *(_plus_minus(row.runs, column) for column in columns),
                ),
                *(
                    _mean([run.parameters for run in row.runs]),
                    _mean([run.parameters_in_layers for run in row.runs]),
                ),
                *(tokens, until, _mean([run.remembered for run in row.runs])),
                *(
                    _mean([run.operations for run in row.runs], ".2e"),
                    _mean([run.cpu_seconds for run in row.runs]),
                ),
                *(
                    _mean([run.seconds for run in row.runs]),
                    _mean([run.ms_per_step for run in row.runs], ",.1f"),
                ),
                f"{max(peaks):.2f}" if peaks else "",
            ]
        )
    return Table(header, cells)


def _seeds(runs: Sequence[RunFigures]) -> str:
    """How many, and how many were trained again."""
    n_again = sum(run.is_rerun for run in runs)
    return f"{len(runs) - n_again}" + (f" + {n_again} again" if n_again else "")


def _tokens_until(runs: Sequence[RunFigures], goal: float | None) -> str:
    reached = [n for run in runs if goal is not None and (n := tokens_until(run, goal)) is not None]
    if not reached:
        if goal is None:
            return ""
        return "not reached"
    return _mean(reached) + of_all(len(reached), len(runs))


def _plus_minus(runs: Sequence[RunFigures], column: str) -> str:
    values = []
    for run in runs:
        if column in run.values:
            values.append(run.values[column])
    if not values:
        return ""
    mean, spread = mean_and_spread(values)
    shown = f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"
    return shown + of_all(len(values), len(runs))


def of_all(n_known: int, n_run: int) -> str:
    """What follows a mean that is not of all trainings of a row."""
    if n_known < n_run:
        return f" ({n_known} of {n_run})"
    return ""


def _mean(values: Sequence[float | None], how: str = ",.0f") -> str:
    known = [value for value in values if value is not None]
    if known:
        return format(mean_and_spread(known)[0], how)
    return ""


def comparisons_table(study: Study, comparisons: Sequence[Comparison]) -> Table:
    """A comparison a row: the interval, then the p-values, then what a difference would have to be
    to be shown.
    """
    has_contrasts = not any(c.column for c in comparisons)
    if has_contrasts:
        names = ["contrast"]
    else:
        names = ["run", "column"]
    against = METRICS[study.metric] + ("" if has_contrasts else f" against {study.baseline}")
    header = [*names, "seeds", against, "95 % interval", "p", "p (Holm)", "detectable", "verdict"]
    return Table(
        header,
        [
            [
                *(c.run, c.column)[: len(names)],
                *(str(c.seeds), "" if c.difference is None else f"{c.difference:+.4f}"),
                "" if c.low is None or c.high is None else f"{c.low:+.4f} to {c.high:+.4f}",
                *("" if p is None else f"{p:.2g}" for p in (c.p, c.p_holm)),
                "" if c.detectable is None else f"{c.detectable:.4f}",
                c.verdict,
            ]
            for c in comparisons
        ],
    )


def search_table(search: Search, searches: Mapping[str, Mapping[float, float]]) -> Table:
    """Of each variant the values that were tried with their validation losses, and the best; of one
    that takes the value of another, which has no trials of its own, the name of that.
    """
    cells = []
    for name, losses in searches.items():
        if name in search.like:
            cells.append([name, _best(losses), f"taken from {search.like[name]}"])
            continue
        tried = []
        for value in sorted(losses):
            nats = f"{losses[value]:.4f}" if math.isfinite(losses[value]) else "diverged"
            tried.append(f"{value:g}: {nats}")
        cells.append([name, _best(losses), "; ".join(tried)])
    return Table(["run", f"best {search.of}", "valid nats per token"], cells)


def _best(losses: Mapping[float, float]) -> str:
    best = best_finite(losses)
    if best is None:
        return ""
    return f"{best:g}"


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
