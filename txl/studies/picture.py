"""The picture of a study. Importing this does not import matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from txl.files import written_whole
from txl.runtime.log import perplexity
from txl.studies.plan import Study
from txl.studies.results import Row, columns_of
from txl.studies.statistics import mean_and_spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "pdf", "svg")
_WIDTH = 0.6
"""Of a column in the right panel, over which the rows are spread, so that none hides another."""


def draw(study: Study, rows: Sequence[Row]) -> "Figure":
    """Validation perplexity over tokens, and the metric by column, each with a standard deviation over the seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    columns, shown = columns_of(rows), [row for row in rows if row.runs]
    for i, row in enumerate(shown):
        color = f"C{i % 10}"
        _curve(left, row, color)
        means = [mean_and_spread([run.values[column] for run in row.runs]) for column in columns]
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
    left.set(xlabel="tokens read", ylabel="valid perplexity", yscale="log")
    right.set(ylabel=study.metric.replace("_", " "))
    right.set_xticks(range(len(columns)), columns, rotation=30, ha="right", fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    figure.suptitle(study.title, fontsize=10)
    return figure


def _curve(axes: "Axes", row: Row, color: str) -> None:
    with_curves = [run for run in row.runs if run.curve]
    if not with_curves:
        return
    n = min(len(run.curve) for run in with_curves)
    tokens = [point[0] for point in with_curves[0].curve[:n]]
    nats = np.array([[loss for _, loss in run.curve[:n]] for run in with_curves])
    middle, spread = nats.mean(0), nats.std(0, ddof=1) if len(nats) > 1 else np.zeros(n)
    axes.plot(tokens, [perplexity(x) for x in middle], color=color, marker="." if n < 3 else "")
    low, high = ([perplexity(x) for x in middle + sign * spread] for sign in (-1, 1))
    axes.fill_between(tokens, low, high, alpha=0.2, color=color)


def write_pictures(study: Study, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write study.png, study.pdf and study.svg; returns their paths."""
    figure, paths = draw(study, rows), [folder / f"study.{kind}" for kind in FORMATS]
    for path in paths:
        with written_whole(path) as temporary:
            figure.savefig(temporary, dpi=120, format=path.suffix[1:])
    return paths
