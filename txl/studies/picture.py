"""The picture of a study. Importing this does not import matplotlib."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from txl.evaluation.measures.bins import centre
from txl.files import written_whole
from txl.runtime.log import perplexity
from txl.studies.plan import Study
from txl.studies.results import Row, by_distance, columns_of, validated_alike
from txl.studies.statistics import mean_and_spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "pdf", "svg")
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
    """Write study.png, .pdf and .svg, and the same of distances if there are any; returns their
    paths.
    """
    figures = {"study": draw(study, rows), "distances": draw_distances(rows)}
    paths = []
    for (name, figure), kind in itertools.product(figures.items(), FORMATS):
        if figure is not None:
            paths.append(folder / f"{name}.{kind}")
            with written_whole(paths[-1]) as temporary:
                figure.savefig(temporary, dpi=120, format=kind)
    return paths
