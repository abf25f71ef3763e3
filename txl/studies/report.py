"""The report of a study: tables in Markdown, CSV and LaTeX, one picture, one JSON."""

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from txl.evaluation.report import write_text
from txl.files import written_whole
from txl.runtime.log import perplexity
from txl.studies.plan import Study
from txl.studies.results import RunFigures, compared, mean_and_spread, tokens_until
from txl.training.metrics import provenance

Figures = Mapping[str, Sequence[RunFigures]]


def write_report(study: Study, found: Figures, failed: Mapping[str, str], folder: Path) -> list[Path]:
    """Write table.md, table.csv, table.tex, study.png and study.json; returns their paths. Whole or not at all."""
    header, rows = table(study, found)
    notes = [f"{name}: failed: {why}" for name, why in failed.items()]
    texts = {
        "table.md": f"# {study.title}\n\n{markdown(header, rows)}\n" + "".join(f"\n{note}\n" for note in notes),
        "table.csv": as_csv(header, rows),
        "table.tex": latex(header, rows),
        "study.json": json.dumps(as_json(study, found, failed), indent=1) + "\n",
    }
    paths = [folder / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    if any(found.values()):
        paths.append(folder / "study.png")
        plot(paths[-1], study, found)
    return paths


def table(study: Study, found: Figures) -> tuple[list[str], list[list[str]]]:
    """Header and rows: a variant a row, mean and standard deviation over its seeds, and what it has cost."""
    columns = list(dict.fromkeys(name for runs in found.values() for run in runs for name in run.values))
    baseline = found.get(study.baseline, [])
    goal = _final_loss(baseline)
    header = ["run", "seeds", *columns, "against the baseline", "parameters", "tokens", "tokens to the baseline's loss"]
    header += ["seconds", "peak GiB"]
    rows = []
    for name, runs in found.items():
        if not runs:
            rows.append([name, "0", *[""] * (len(header) - 2)])
            continue
        values = [_plus_minus([run.values[column] for run in runs]) for column in columns]
        until = _mean([run.tokens for run in runs]) if name == study.baseline else _tokens_until(runs, goal)
        peaks = [run.peak_gib for run in runs if run.peak_gib is not None]
        rows.append(
            [
                *(name, str(len(runs)), *values, _against(name, study, runs, baseline, columns)),
                *(_mean([run.parameters for run in runs]), _mean([run.tokens for run in runs]), until),
                *(_mean([run.seconds for run in runs]), f"{max(peaks):.2f}" if peaks else ""),
            ]
        )
    return header, rows


def _against(
    name: str, study: Study, runs: Sequence[RunFigures], baseline: Sequence[RunFigures], columns: Sequence[str]
) -> str:
    """The comparison in the last column: the one evaluated with the longest memory, as a rule."""
    if name == study.baseline:
        return "baseline"
    comparison = compared(runs, baseline, columns[-1]) if columns else None
    if comparison is None:
        return ""
    p = "" if comparison.p is None else f", p = {comparison.p:.2g}"
    return f"{comparison.difference:+.4f} nats, {comparison.verdict}{p}"


def _tokens_until(runs: Sequence[RunFigures], goal: float | None) -> str:
    reached = [n for run in runs if goal is not None and (n := tokens_until(run, goal)) is not None]
    if not reached:
        return "" if goal is None else "not reached"
    return _mean(reached) + (f" ({len(reached)} of {len(runs)})" if len(reached) < len(runs) else "")


def _final_loss(runs: Sequence[RunFigures]) -> float | None:
    """The mean of the last validation losses."""
    last = [run.curve[-1][1] for run in runs if run.curve]
    return mean_and_spread(last)[0] if last else None


def _plus_minus(values: Sequence[float]) -> str:
    mean, spread = mean_and_spread(values)
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"


def _mean(values: Sequence[float]) -> str:
    return f"{mean_and_spread(values)[0]:,.0f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue()


def latex(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A tabular for booktabs."""
    lines = [r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}", r"\toprule"]
    for i, row in enumerate([header, *rows]):
        lines.append(" & ".join(_escaped(cell) for cell in row) + r" \\")
        if i == 0:
            lines.append(r"\midrule")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escaped(cell: str) -> str:
    for character in "&%$#_{}":
        cell = cell.replace(character, f"\\{character}")
    return cell.replace("±", r"$\pm$")


def as_json(study: Study, found: Figures, failed: Mapping[str, str]) -> dict[str, object]:
    """Every figure, with the flags of each run, the commit and the versions."""
    comparisons = {
        name: {column: dataclasses.asdict(c) for column in runs[0].values if (c := compared(runs, base, column))}
        for base in [found.get(study.baseline, [])]
        for name, runs in found.items()
        if runs and base and name != study.baseline
    }
    runs = {name: [dataclasses.asdict(run) for run in runs] for name, runs in found.items()}
    return {
        **provenance(),
        "study": dataclasses.asdict(study),
        "runs": runs,
        "against_baseline": comparisons,
        "failed": dict(failed),
    }


def plot(path: Path, study: Study, found: Figures) -> None:
    """Validation perplexity over tokens, and the metric by column, with bands of a standard deviation."""
    from matplotlib.figure import Figure

    columns = list(dict.fromkeys(name for runs in found.values() for run in runs for name in run.values))
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    curves, bars = figure.subplots(1, 2)
    for name, runs in found.items():
        with_curves = [run for run in runs if run.curve]
        if with_curves:
            n = min(len(run.curve) for run in with_curves)
            tokens = [point[0] for point in with_curves[0].curve[:n]]
            nats = np.array([[loss for _, loss in run.curve[:n]] for run in with_curves])
            middle, spread = nats.mean(0), nats.std(0, ddof=1) if len(nats) > 1 else np.zeros(n)
            (line,) = curves.plot(tokens, [perplexity(x) for x in middle], label=name, marker="." if n < 3 else "")
            edges = [[perplexity(x) for x in middle + sign * spread] for sign in (-1, 1)]
            curves.fill_between(tokens, *edges, alpha=0.2, color=line.get_color())
        if runs:
            pairs = [mean_and_spread([run.values[column] for run in runs]) for column in columns]
            bars.errorbar(
                range(len(columns)), [m for m, _ in pairs], [s or 0.0 for _, s in pairs], marker="o", ms=4, capsize=3
            )
    curves.set(xlabel="tokens read", ylabel="valid perplexity", yscale="log")
    curves.legend(fontsize=8)
    bars.set(ylabel=study.metric.replace("_", " "))
    bars.set_xticks(range(len(columns)), columns, rotation=30, ha="right", fontsize=8)
    for axes in (curves, bars):
        axes.grid(alpha=0.3)
    figure.suptitle(study.title, fontsize=10)
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=120)
