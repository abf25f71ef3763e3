"""The figures of a study: of each run, of the rows of its tables, and how the rows compare."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from txl.files import content_of
from txl.studies.plan import Study, tasks
from txl.studies.runner import finished, unevaluated
from txl.studies.statistics import Comparison, corrected, mean_and_spread, paired
from txl.training.metrics import RECORDS, curve_of


@dataclass(frozen=True)
class RunFigures:
    """What one training has cost and reached.

    Attributes:
        source: the texts that it was trained and evaluated on, and the version of the code, as short digests.
        values: the metric of the study by column, if it has one there: ids have no bytes, and a perplexity may be
            beyond all numbers.
        nats: nats per token by column.
        curve: (tokens read, validation loss in nats) at each evaluation of the training.
        validated: what such an evaluation scored: how many tokens (0: its record does not say), of which kind of text
            and size of vocabulary.
        distances: by column, the rows that eval.py --loss_by_position gives for distances to the article's beginning.
        parameters_in_layers: those outside embedding and softmax.
        cpu_seconds: of all cores, training only; `seconds` are by the clock, and depend on what else runs.
        remembered: numbers in the memory of a stream in training, once full, in all layers.
        operations: multiplications and additions of the training.
    """

    seed: int
    parameters: int
    tokens: int
    seconds: float
    peak_gib: float | None
    values: dict[str, float]
    nats: dict[str, float]
    curve: list[tuple[int, float]] = field(default_factory=list)
    source: str = ""
    parameters_in_layers: int | None = None
    operations: float | None = None
    ms_per_step: float | None = None
    cpu_seconds: float | None = None
    remembered: int | None = None
    distances: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    processor: str | None = None
    validated: tuple[int, str, int] = (0, "", 0)


@dataclass(frozen=True)
class Row:
    """The runs of a variant that may be averaged: of one text, one version of the code and one setting.

    Attributes:
        name: the variant, with the source of its runs where the study has several sources.
    """

    name: str
    variant: str
    source: str
    runs: Sequence[RunFigures]


def rows_of(study: Study, runs: Path) -> list[Row]:
    """The figures of all finished runs: a row for each variant and source; one without runs for a variant that has
    none."""
    by_row: dict[tuple[str, str], list[RunFigures]] = {}
    for task in tasks(study, runs):
        done = finished(task)
        if done.get("train") == task.flags and not unevaluated(study, done):
            evaluations = {name: done["evaluations"][name] for name in study.evaluations}
            one = _figures(study, task.seed, task.folder / "run" / RECORDS, evaluations)
            by_row.setdefault((task.variant, one.source), []).append(one)
    sources = list(dict.fromkeys(source for _, source in by_row))
    rows = []
    for variant in study.variants:
        mine = [source for source in sources if (variant, source) in by_row]
        for source in mine or [""]:
            name = f"{variant} ({source})" if len(sources) > 1 and mine else variant
            rows.append(Row(name, variant, source, by_row.get((variant, source), [])))
    return rows


def _columns(evaluations: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of all evaluations by the name of their column: of the evaluation, and of what differs in its rows."""
    columns = {}
    for name, evaluation in evaluations.items():
        rows = evaluation["rows"]
        varied = [key for key in ("split", "tgt_len", "mem_len", "added") if len({row[key] for row in rows}) > 1]
        for row in rows:
            parts = [f"{key} {row[key]}" if key.endswith("_len") else str(row[key] or "plain") for key in varied]
            columns[", ".join([name, *parts])] = row
    return columns


def _figures(study: Study, seed: int, path: Path, evaluations: Mapping[str, Any]) -> RunFigures:
    records = [json.loads(line) for line in content_of(path).decode().splitlines()]
    starts = [record for record in records if record["kind"] == "start"]
    train = [record for record in records if record["kind"] == "train"]
    seconds = _seconds(train, "speed/ms_per_step") or 0.0
    n_step = train[-1]["step"] if train else 0
    valid = [record for record in records if record["kind"] == "valid"]
    peaks = [record["mem/peak_gib"] for record in train if record.get("mem/peak_gib") is not None]
    rows, n_token = _columns(evaluations), max((record.get("tokens", 0) for record in train + valid), default=0)
    per_token = starts[0].get("flops_per_token")
    return RunFigures(
        seed,
        parameters=starts[0]["parameters"],
        tokens=n_token,
        seconds=seconds,
        peak_gib=max(peaks, default=None),
        values={name: row[study.metric] for name, row in rows.items() if row[study.metric] is not None},
        nats={name: row["nats_per_token"] for name, row in rows.items()},
        curve=curve_of(records),
        source=_source(starts, evaluations.values()),
        parameters_in_layers=starts[0].get("parameters_in_layers"),
        operations=None if per_token is None else per_token * n_token,
        ms_per_step=1000 * seconds / n_step if n_step else None,
        cpu_seconds=_seconds(train, "speed/cpu_ms_per_step"),
        remembered=starts[0].get("remembered_floats"),
        distances={name: row["loss_by_distance"] for name, row in rows.items() if row.get("loss_by_distance")},
        processor=starts[0].get("processor"),
        validated=_validated(starts[0], valid),
    )


def _validated(start: Mapping[str, Any], valid: Sequence[Mapping[str, Any]]) -> tuple[int, str, int]:
    n_scored = valid[-1].get("scored_tokens", 0) if valid else 0
    return n_scored, start.get("data", {}).get("dataset", ""), start.get("model", {}).get("n_token", 0)


def _seconds(records: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The sum of what the updates took, not of the clock: a run may have been stopped for a night. None if a record
    does not say."""
    steps = [record["step"] for record in records]
    taken = [record.get(name) for record in records]
    if None in taken:
        return None
    return sum((step - before) * ms / 1000 for before, step, ms in zip([0, *steps], steps, taken, strict=False))


def _source(starts: Sequence[Mapping[str, Any]], evaluations: Any) -> str:
    """What the runs of a row have in common. A run that was resumed by other code is of both versions."""
    texts = {text for start in starts for text in start.get("texts", {}).values()}
    texts |= {text for one in evaluations for text in one.get("texts", {}).values()}
    codes = dict.fromkeys(
        (start.get("git_commit") or start.get("txl") or "")[:7] + "+" * bool(start.get("git_dirty")) for start in starts
    )
    text = hashlib.sha256("".join(sorted(texts)).encode()).hexdigest()[:8] if texts else ""
    named = {"text": text, "code": " and ".join(filter(None, codes))}
    return ", ".join(f"{what} {value}" for what, value in named.items() if value)


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The columns of all runs."""
    return list(dict.fromkeys(name for row in rows for run in row.runs for name in run.nats))


def compared(study: Study, rows: Sequence[Row]) -> list[Comparison]:
    """The contrasts of the study; if it has none, every row against that of the baseline of the same source, in every
    column. Seeds are those that all sides have; p-values are corrected for all of these."""
    return corrected(_contrasts(study, rows) if study.contrasts else _against_baseline(study, rows))


def _contrasts(study: Study, rows: Sequence[Row]) -> list[Comparison]:
    sources = list(dict.fromkeys(row.source for row in rows if row.runs))
    found = []
    for source in sources:
        losses = _losses(study, rows, source)
        for name, contrast in study.contrasts.items():
            signed = [(sign, *one) for sign, side in zip((1, -1), contrast, strict=True) for one in side]
            by_seed = [
                [sign * losses[run, seed, column] for sign, run, column in signed if (run, seed, column) in losses]
                for seed in study.seeds
            ]
            differences = [math.fsum(values) for values in by_seed if len(values) == len(signed)]
            label = f"{name} ({source})" if len(sources) > 1 else name
            found.append(paired(label, "", differences) if differences else Comparison(label, "", 0))
    return found


def _against_baseline(study: Study, rows: Sequence[Row]) -> list[Comparison]:
    found = []
    for row in rows:
        if row.variant == study.baseline:
            continue
        losses = _losses(study, rows, row.source)
        for column in columns_of([row]):
            pairs = [[losses.get((run, s, column)) for run in (row.variant, study.baseline)] for s in study.seeds]
            if differences := [ours - other for ours, other in pairs if ours is not None and other is not None]:
                found.append(paired(row.name, column, differences))
    return found


def _losses(study: Study, rows: Sequence[Row], source: str) -> dict[tuple[str, int, str], float]:
    """What is compared, in the unit of `METRICS`, by variant, seed and column of the rows of one source."""
    log = math.log if study.metric == "word_perplexity" else float
    return {
        (row.variant, run.seed, column): log(value)
        for row in rows
        if row.source == source
        for run in row.runs
        for column, value in (run.nats if study.metric == "perplexity" else run.values).items()
    }


class Bin(NamedTuple):
    """Nats per token, mean and deviation over the seeds, of tokens `first` to `last` after the article's first one."""

    first: int
    last: int
    tokens: int
    mean: float
    deviation: float | None


def by_distance(rows: Sequence[Row]) -> dict[tuple[str, str], list[Bin]]:
    """The losses by distance to the beginning of the article, by row and column."""
    found: dict[tuple[str, str], list[Bin]] = {}
    for row in rows:
        for column in columns_of([row]):
            tables = [run.distances[column] for run in row.runs if column in run.distances]
            for seeds in zip(*tables, strict=True):  # a bin has the same tokens with every seed
                first, last, tokens = (seeds[0][key] for key in ("from", "to", "tokens"))
                mean, deviation = mean_and_spread([one["nats_per_token"] for one in seeds])
                found.setdefault((row.name, column), []).append(Bin(first, last, tokens, mean, deviation))
    return found


def validated_alike(rows: Sequence[Row]) -> bool:
    """Whether the curves of all runs of one source are of the same tokens: of one vocabulary, and as many, since
    `max_eval_steps` counts segments, and how many streams a segment holds tokens of differs by `memory`."""
    found = {(row.source, run.validated) for row in rows for run in row.runs}
    return len(found) == len({source for source, _ in found})


def final_loss(runs: Sequence[RunFigures]) -> float | None:
    """The mean of the last validation losses."""
    last = [run.curve[-1][1] for run in runs if run.curve]
    return mean_and_spread(last)[0] if last else None


def tokens_until(run: RunFigures, nats: float) -> float | None:
    """Tokens read until the validation loss reaches `nats`, interpolated between evaluations; None: it does not."""
    before: tuple[int, float] | None = None
    for tokens, loss in run.curve:
        if loss <= nats:
            if before is None or before[1] == loss:
                return float(tokens)
            share = (before[1] - nats) / (before[1] - loss)
            return before[0] + share * (tokens - before[0])
        before = (tokens, loss)
    return None
