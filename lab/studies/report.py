"""The report of a study: tables in Markdown, pictures, and one JSON with every figure.

Importing this does not import matplotlib.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd  # pyright: ignore[reportMissingImports]

from lab.measures.loss_by_position import centre
from lab.studies.figures import COSTS, PEAK, Figures
from lab.studies.page_tables import TABLES
from lab.studies.plan import METRICS, Search, Study
from lab.studies.results import (
    Rerun,
    Row,
    by_distance,
    columns_of,
    compared,
    final_loss,
    reruns_of,
    rows_of,
    searches_of,
    tokens_until,
    validated_alike,
)
from lab.studies.runner import best_finite
from lab.studies.statistics import POWER, Comparison, mean_and_spread
from lab.studies.tables import as_markdown, table_of
from txl.config import UsageError
from txl.runtime.log import perplexity
from txl.runtime.outputs import Kind, json_kind, output, write_json, write_text
from txl.runtime.records import read_json
from txl.training.metrics import provenance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


JSON = "study.json"
TEXT = "table.md"
STUDY = json_kind(
    "lab.studies",
    ("written_by", "study", "runs", "comparisons", "failed"),
    ("contrasts", "reruns", "search"),
)
BESIDE = Kind("lab.studies", lambda path: STUDY.is_own(path.with_name(JSON)))
"""Files in a folder that has a study.json."""


@dataclasses.dataclass(frozen=True)
class Findings:
    """What is known of a study.

    Attributes:
        comparisons: its contrasts, or its rows with the baseline, see `compared`.
        searches: of each variant, the losses of the values by which its own is found, see
            `searches_of`.
        failed: the errors of trainings by their names.
    """

    rows: Sequence[Row]
    comparisons: Sequence[Comparison]
    searches: Mapping[str, Mapping[float, float]] = dataclasses.field(default_factory=dict)
    failed: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @staticmethod
    def of(study: Study, runs: Path, failed: Mapping[str, str]) -> "Findings":
        """All that is done so far in a folder of trainings."""
        rows = rows_of(study, runs)
        return Findings(rows, compared(study, rows), searches_of(study, runs), failed)


def write_report(study: Study, findings: Findings, folder: Path, said: str) -> list[Path]:
    """Write the report into a folder, each file whole or not at all; returns their paths. Raises
    `UsageError` if the folder holds a report of more runs, which stays as it is.

    Args:
        said: the findings, `in_words`.
    """
    rows = findings.rows
    _require_no_less(rows, folder / JSON)
    content = {"written_by": provenance(), **as_json(study, findings)}
    write_json(folder / JSON, content, STUDY)
    write_text(folder / TEXT, said, BESIDE)
    paths = [folder / TEXT, folder / JSON]
    if any(row.runs for row in rows):
        paths += write_pictures(study, rows, folder)
    return paths


def in_words(study: Study, findings: Findings) -> str:
    """The tables of a study in Markdown, with what is to be known about them."""
    rows = findings.rows
    figures = Figures(Path(JSON), as_json(study, findings))
    columns = ["seeds", *columns_of(rows), *COSTS, PEAK]
    digits = dict.fromkeys(columns, 2) | dict.fromkeys((*COSTS, PEAK), 0) | {"operations": 2}
    how: dict[str, Any] = {"title": "run", "columns": columns, "digits": digits}
    parts = [f"# {study.title}", TABLES["metric"](figures, may_lack=True, **how)]
    if validated_alike(rows):
        parts.append(as_markdown(until_the_loss_of_the_baseline(study, rows)))
    for column in dict.fromkeys(one.column for one in findings.comparisons):
        title = "contrast"
        if column:
            title = f"{column}, against {study.baseline}"
        parts.append(TABLES["contrasts"](figures, of=column, title=title, digits=4))
    parts += _about(study, findings.comparisons)
    parts += [_about_rerun(one) for one in reruns_of(rows)]
    if figures.content["search"]:
        parts.append(TABLES["search"](figures, title="run", digits=4))
    if len(study.seeds) > 1:
        parts.append(
            "A seed draws the initial weights and the dropout. Runs of one shape and seed begin"
            " with the same weights. All seeds read the text in the same order, unless --varlen,"
            " --roll or lm1b draw it, so the spreads are without that of the order of the data."
        )
    if not validated_alike(rows):
        parts.append(_about_curves(study, rows))
    processors = dict.fromkeys(run.processor for row in rows for run in row.runs if run.processor)
    parts += [f"Processor: {', '.join(processors)}."] * bool(processors)
    parts += [f"{name}: failed: {why}" for name, why in findings.failed.items()]
    return "\n\n".join(parts) + "\n"


def until_the_loss_of_the_baseline(study: Study, rows: Sequence[Row]) -> pd.DataFrame:
    """The tokens after which the runs of a row, those that do, have the baseline's final loss."""
    goals = {row.source: final_loss(row.runs) for row in rows if row.variant == study.baseline}
    cells = []
    for row in rows:
        goal = goals.get(row.source)
        if goal is None or row.variant == study.baseline or not row.runs:
            continue
        tokens = [tokens_until(run, goal) for run in row.runs]
        reached = [n for n in tokens if n is not None]
        shown = "not reached"
        if reached:
            shown = f"{mean_and_spread(reached)[0]:,.0f} ({len(reached)} of {len(tokens)})"
        cells.append([row.name, shown])
    return table_of(["run", "tokens to the baseline's loss"], cells)


def _about_curves(study: Study, rows: Sequence[Row]) -> str:
    """That curves are of other tokens, and why."""
    about = "The validation curves are of other tokens from run to run, and are not compared."
    both = {"max_eval_steps", "eval_batch_size"}
    if all(both <= set(study.variants[row.name]) for row in rows if row.name in study.variants):
        return about
    return (
        f"{about} Where the vocabulary is one, max_eval_steps counts segments of eval_batch_size"
        " streams, whose default differs by memory: give both, or neither."
    )


def _about(study: Study, comparisons: Sequence[Comparison]) -> list[str]:
    """How the comparisons were made."""
    n_tested = sum(c.p_holm is not None for c in comparisons)
    parts = []
    if n_tested:
        n_missed = round(1 / (1 - POWER))
        parts.append(
            f"Differences are in {METRICS[study.metric]}, of one model of arms and seeds, whose"
            f" residual spread is pooled over all runs{_spreads(comparisons)}. p (Holm) is"
            f" corrected for the {n_tested} comparisons that have one, and the verdict is by it."
            " `not shown` does not say that two runs are alike: a difference below `detectable` is"
            f" missed by more than one in {n_missed} studies like this."
        )
    if study.exploratory:
        parts.append(
            f"{len(study.exploratory)} of {len(study.contrasts)} contrasts were chosen with figures"
            " in sight: they are exploratory, and have no verdict."
        )
    return parts


def _spreads(comparisons: Sequence[Comparison]) -> str:
    found = dict.fromkeys((c.spread, c.freedom) for c in comparisons if c.spread is not None)
    shown = dict.fromkeys(
        f"{spread:.4f} with {freedom} degrees of freedom" for spread, freedom in found
    )
    if shown:
        return f" ({'; '.join(shown)})"
    return ""


def _about_rerun(one: Rerun) -> str:
    largest = max(one.differences, key=lambda column: abs(one.differences[column]), default="")
    if largest:
        by = f"{one.differences[largest]:+.4f} nats a token ({largest})"
    else:
        by = "no figure"
    return (
        f"{one.run}, seed {one.seed}, was trained on {one.days[0]} and again on {one.days[1]}: at"
        f" most {by}."
    )


def _require_no_less(rows: Sequence[Row], path: Path) -> None:
    try:
        there = []
        for runs in read_json(path)["runs"].values():
            for run in runs:
                there.append(run)
        n_there = sum(len(run["values"]) for run in there)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    n_here = sum(len(run.values) for row in rows for run in row.runs)
    if n_here < n_there:
        raise UsageError(
            f"{path}: holds {n_there} figures of finished runs, and the study file now gives"
            f" {n_here}; it stays as it is: name another --folder, or go on with the study file as"
            " it was"
        )


def as_json(study: Study, findings: Findings) -> dict[str, object]:
    """Every figure, with the flags of each run and its source."""
    return {
        "study": dataclasses.asdict(study),
        "runs": {row.name: [dataclasses.asdict(run) for run in row.runs] for row in findings.rows},
        "reruns": [one._asdict() for one in reruns_of(findings.rows)],
        "search": {
            name: _search_as_json(study.search, name, losses)
            for name, losses in findings.searches.items()
            if study.search is not None and losses
        },
        "comparisons": [
            dataclasses.asdict(c) | {"verdict": c.verdict} for c in findings.comparisons
        ],
        "failed": dict(findings.failed),
    }


def _search_as_json(search: Search, name: str, losses: Mapping[float, float]) -> dict[str, object]:
    best = best_finite(losses)
    if name in search.like:
        return {search.of: best, "like": search.like[name]}
    tried = {f"{value:g}": loss if math.isfinite(loss) else None for value, loss in losses.items()}
    return {search.of: best, "tried": tried}


FORMATS = ("png", "svg")
_WIDTH = 0.6
"""Of a column in the right panel, over which the rows are spread, so that none hides another."""


def draw(study: Study, rows: Sequence[Row]) -> "Figure":
    """Validation perplexity over tokens, unless runs validate other tokens, and the metric by
    column, each with a standard deviation over the seeds.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    *left, right = figure.subplots(1, 1 + validated_alike(rows), squeeze=False)[0]
    columns = columns_of(rows)
    shown = [row for row in rows if row.runs]
    for i, row in enumerate(shown):
        color = f"C{i % 10}"
        for axes in left:
            _curve(axes, row, color)
        found = (
            [run.values[column] for run in row.runs if column in run.values] for column in columns
        )
        # nan: no point
        means = []
        for values in found:
            means.append(mean_and_spread(values) if values else (np.nan, None))
        place = (i + 0.5) / len(shown) - 0.5
        right.errorbar(
            np.arange(len(columns)) + _WIDTH * place,
            np.array([mean for mean, _ in means]),
            np.array([spread or 0.0 for _, spread in means]),
            fmt="o",
            ms=4,
            capsize=3,
            color=color,
            label=row.name,
        )
    for axes in left:
        axes.set(xlabel="tokens read", ylabel="valid perplexity", yscale="log")
    right.set(ylabel=study.metric.replace("_", " "))
    right.set_xticks(range(len(columns)), columns, rotation=30, ha="right", fontsize=8)
    for axes in (*left, right):
        axes.grid(alpha=0.3)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    figure.suptitle(study.title, fontsize=10)
    return figure


def draw_distances(rows: Sequence[Row]) -> "Figure | None":
    """Nats per token by distance to the beginning of the article, with a standard deviation over
    the seeds: a panel for each column that has them. None if none has.
    """
    from matplotlib.figure import Figure

    bins = by_distance(rows)
    columns = list(dict.fromkeys(column for _, column in bins))
    if not columns:
        return None
    figure = Figure(figsize=(6 * len(columns), 4.5), layout="constrained")
    for axes, column in zip(
        figure.subplots(1, len(columns), squeeze=False)[0], columns, strict=True
    ):
        # a row has its colour of the other picture
        for i, row in enumerate(row for row in rows if row.runs):
            if mine := bins.get((row.name, column)):
                place = []
                for one in mine:
                    place.append(centre(one.first, one.last))
                low = []
                for one in mine:
                    low.append(one.mean - (one.deviation or 0))
                high = []
                for one in mine:
                    high.append(one.mean + (one.deviation or 0))
                axes.plot(
                    place,
                    [one.mean for one in mine],
                    color=f"C{i % 10}",
                    marker=".",
                    label=row.name,
                )
                axes.fill_between(place, low, high, alpha=0.2, color=f"C{i % 10}")
        axes.set(
            title=column,
            xlabel="tokens since the document began, counted from 1",
            ylabel="nats per token",
        )
        axes.set_xscale("log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def _curve(axes: "Axes", row: Row, color: str) -> None:
    with_curves = [run for run in row.runs if run.curve]
    if not with_curves:
        return
    n = min(len(run.curve) for run in with_curves)
    tokens = [point[0] for point in with_curves[0].curve[:n]]
    nats = np.array([[loss for _, loss in run.curve[:n]] for run in with_curves])
    middle = nats.mean(0)
    spread = nats.std(0, ddof=1) if len(nats) > 1 else np.zeros(n)
    axes.plot(tokens, [perplexity(x) for x in middle], color=color, marker="." if n < 3 else "")
    low = list(map(perplexity, middle - spread))
    high = list(map(perplexity, middle + spread))
    axes.fill_between(tokens, low, high, alpha=0.2, color=color)


def write_pictures(study: Study, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write study.png and .svg, and the same of distances if there are any; returns their
    paths.
    """
    figures = {"study": draw(study, rows), "distances": draw_distances(rows)}
    paths = []
    for (name, figure), kind in itertools.product(figures.items(), FORMATS):
        if figure is not None:
            paths.append(folder / f"{name}.{kind}")
            with output(paths[-1], BESIDE) as temporary:
                figure.savefig(temporary, dpi=120, format=kind)
    return paths
