"""The report of a study: tables in Markdown, CSV and LaTeX, pictures, and one JSON with every
figure.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from txl.config import UsageError
from txl.evaluation.report import write_text
from txl.runtime.records import json_text, read_json
from txl.studies import tables
from txl.studies.contrasts import Noted, digest_of
from txl.studies.picture import write_pictures
from txl.studies.plan import METRICS, Study
from txl.studies.results import (
    Rerun,
    Row,
    compared,
    reruns_of,
    rows_of,
    searches_of,
    validated_alike,
)
from txl.studies.search import best_value
from txl.studies.statistics import POWER, Comparison
from txl.training.metrics import provenance

JSON = "study.json"


@dataclasses.dataclass(frozen=True)
class Findings:
    """What is known of a study.

    Attributes:
        comparisons: its contrasts, or its rows with the baseline, see `compared`.
        noted: its contrasts, as they were noted.
        searches: of each variant, the losses of the values that a search has tried; infinite: it
            diverged.
        failed: the errors of trainings by their names.
    """

    rows: Sequence[Row]
    comparisons: Sequence[Comparison]
    noted: Sequence[Noted] = ()
    searches: Mapping[str, Mapping[float, float]] = dataclasses.field(default_factory=dict)
    failed: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @staticmethod
    def of(
        study: Study, runs: Path, noted: Sequence[Noted], failed: Mapping[str, str]
    ) -> "Findings":
        """All that is done so far in a folder of trainings."""
        rows = rows_of(study, runs)
        return Findings(rows, compared(study, rows, noted), noted, searches_of(study, runs), failed)


def write_report(study: Study, findings: Findings, folder: Path, said: str) -> list[Path]:
    """Write the report into a folder, each file whole or not at all; returns their paths. Raises
    `UsageError` if the folder holds a report of more runs, which stays as it is.

    Args:
        said: the findings, `in_words`.
    """
    rows = findings.rows
    _require_no_less(rows, folder / JSON)
    comparisons = findings.comparisons
    texts = {
        "table.md": said,
        "table.csv": tables.as_csv(tables.numbers(rows)),
        "curves.csv": tables.as_csv(tables.curves(rows)),
        "distances.csv": tables.as_csv(tables.distances(rows)),
        "comparisons.csv": tables.as_csv(tables.comparisons_table(study, comparisons)),
        "table.tex": tables.as_latex(tables.figures_table(study, rows)),
        "comparisons.tex": tables.as_latex(tables.comparisons_table(study, comparisons)),
        JSON: json_text(as_json(study, findings)),
    }
    paths = [folder / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return [*paths, *(write_pictures(study, rows, folder) if any(row.runs for row in rows) else [])]


def in_words(study: Study, findings: Findings) -> str:
    """The tables of a study in Markdown, with what is to be known about them."""
    rows = findings.rows
    noted = findings.noted
    parts = [f"# {study.title}", tables.as_markdown(tables.figures_table(study, rows))]
    if findings.comparisons:
        parts.append(tables.as_markdown(tables.comparisons_table(study, findings.comparisons)))
        parts += _about(study, findings.comparisons, noted)
    parts += [_about_rerun(one) for one in reruns_of(rows)]
    if study.search is not None:
        parts.append(tables.as_markdown(tables.search_table(study.search, findings.searches)))
    if len(study.seeds) > 1:
        parts.append(
            "A seed draws the initial weights and the dropout. Runs of one shape and seed begin"
            " with the same weights. All seeds read the text in the same order, unless --varlen,"
            " --roll or lm1b draw it, so the spreads are without that of the order of the data."
        )
    if not validated_alike(rows):
        parts.append(
            "The validation curves are of other tokens from run to run, and are not compared. Where"
            " the vocabulary is one, max_eval_steps counts segments of eval_batch_size streams,"
            " whose default differs by memory: give both, or neither."
        )
    processors = dict.fromkeys(run.processor for row in rows for run in row.runs if run.processor)
    parts += [f"Processor: {', '.join(processors)}."] * bool(processors)
    return (
        "\n\n".join([*parts, *(f"{name}: failed: {why}" for name, why in findings.failed.items())])
        + "\n"
    )


def _about(study: Study, comparisons: Sequence[Comparison], noted: Sequence[Noted]) -> list[str]:
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
    if noted:
        fixed = [one for one in noted if one.is_fixed]
        days = sorted({one.day for one in fixed})
        if days:
            when = f" on {' and '.join(days)}, before the first of their readings"
        else:
            when = ""
        parts.append(
            f"{len(fixed)} of {len(noted)} contrasts were fixed{when}; SHA-256"
            f" {digest_of(noted)[:16]}. The others were chosen with figures in sight: they are"
            " exploratory, and have no verdict."
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
    """Every figure, with the flags of each run, its source, and the versions that wrote this."""
    noted = findings.noted
    return {
        "written_by": provenance(),
        "study": dataclasses.asdict(study),
        "runs": {row.name: [dataclasses.asdict(run) for run in row.runs] for row in findings.rows},
        "contrasts": {
            "digest": digest_of(noted),
            "noted": [dataclasses.asdict(one) for one in noted],
        },
        "reruns": [one._asdict() for one in reruns_of(findings.rows)],
        "search": {
            name: _search_as_json(study, losses)
            for name, losses in findings.searches.items()
            if losses
        },
        "comparisons": [
            dataclasses.asdict(c) | {"verdict": c.verdict} for c in findings.comparisons
        ],
        "failed": dict(findings.failed),
    }


def _search_as_json(study: Study, losses: Mapping[float, float]) -> dict[str, object]:
    assert study.search is not None
    return {
        study.search.of: best_value(losses),
        "tried": {f"{value:g}": loss for value, loss in losses.items()},
    }
