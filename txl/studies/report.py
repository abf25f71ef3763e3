"""The report of a study: tables in Markdown, CSV and LaTeX, pictures, and one JSON with every figure."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from txl.config import UsageError
from txl.evaluation.report import write_text
from txl.runtime.records import read_json
from txl.studies import tables
from txl.studies.picture import write_pictures
from txl.studies.plan import METRICS, Study
from txl.studies.results import Row, compared, validated_alike
from txl.studies.statistics import Comparison
from txl.training.metrics import provenance

JSON = "study.json"


def write_report(study: Study, rows: Sequence[Row], failed: Mapping[str, str], folder: Path) -> list[Path]:
    """Write the report into a folder, each file whole or not at all; returns their paths. Raises `UsageError` if the
    folder holds a report of more runs, which stays as it is."""
    _require_no_less(rows, folder / JSON)
    comparisons = compared(study, rows)
    texts = {
        "table.md": in_words(study, rows, failed),
        "table.csv": tables.as_csv(tables.numbers(rows)),
        "curves.csv": tables.as_csv(tables.curves(rows)),
        "distances.csv": tables.as_csv(tables.distances(rows)),
        "comparisons.csv": tables.as_csv(tables.comparisons_table(study, comparisons)),
        "table.tex": tables.as_latex(tables.figures_table(study, rows)),
        "comparisons.tex": tables.as_latex(tables.comparisons_table(study, comparisons)),
        JSON: json.dumps(as_json(study, rows, comparisons, failed), indent=1) + "\n",
    }
    paths = [folder / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return [*paths, *(write_pictures(study, rows, folder) if any(row.runs for row in rows) else [])]


def in_words(study: Study, rows: Sequence[Row], failed: Mapping[str, str]) -> str:
    """The tables of a study in Markdown, with what is to be known about them."""
    parts = [f"# {study.title}", tables.as_markdown(tables.figures_table(study, rows))]
    if comparisons := compared(study, rows):
        parts.append(tables.as_markdown(tables.comparisons_table(study, comparisons)))
        n_tested = sum(c.p is not None for c in comparisons)
        parts.append(
            f"Differences are in {METRICS[study.metric]}, paired by seed. p (Holm) is corrected for the {n_tested} "
            "comparisons that have one, and the verdict is by it; `not shown` does not say that two runs are alike."
        )
    if len(study.seeds) > 1:
        parts.append(
            "A seed draws the initial weights and the dropout. Runs of one shape and seed begin with the same weights. "
            "All seeds read the text in the same order, unless --varlen, --roll or lm1b draw it, so the spreads are "
            "without that of the order of the data."
        )
    if not validated_alike(rows):
        parts.append(
            "The validation curves are of other tokens from run to run, and are not compared. Where the vocabulary is "
            "one, max_eval_steps counts segments of eval_batch_size streams, whose default differs by memory: give "
            "both, or neither."
        )
    processors = dict.fromkeys(run.processor for row in rows for run in row.runs if run.processor)
    parts += [f"Processor: {', '.join(processors)}."] * bool(processors)
    return "\n\n".join([*parts, *(f"{name}: failed: {why}" for name, why in failed.items())]) + "\n"


def _require_no_less(rows: Sequence[Row], path: Path) -> None:
    try:
        there = [run for runs in read_json(path)["runs"].values() for run in runs]
        n_there = sum(len(run["values"]) for run in there)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    n_here = sum(len(run.values) for row in rows for run in row.runs)
    if n_here < n_there:
        raise UsageError(
            f"{path}: holds {n_there} figures of finished runs, and the study file now gives {n_here}; it stays as it "
            "is: name another --folder, or go on with the study file as it was"
        )


def as_json(
    study: Study, rows: Sequence[Row], comparisons: Sequence[Comparison], failed: Mapping[str, str]
) -> dict[str, object]:
    """Every figure, with the flags of each run, its source, and the versions that wrote this."""
    return {
        "written_by": provenance(),
        "study": dataclasses.asdict(study),
        "runs": {row.name: [dataclasses.asdict(run) for run in row.runs] for row in rows},
        "comparisons": [dataclasses.asdict(c) | {"verdict": c.verdict} for c in comparisons],
        "failed": dict(failed),
    }
