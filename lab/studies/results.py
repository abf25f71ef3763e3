"""The figures of a study: of each run, of the rows of its tables, and how the rows compare."""

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from lab.studies.checks import column_names
from lab.studies.plan import Contrast, Study, Task, tasks
from lab.studies.runner import as_trained, finished, losses_tried, unevaluated
from lab.studies.statistics import Comparison, comparison, corrected, estimate, mean_and_spread
from txl.runtime.records import read_json_lines
from txl.training.metrics import RECORDS, curve_of


@dataclass(frozen=True)
class RunFigures:
    """What one training has cost and reached.

    Attributes:
        source: the texts that it was trained and evaluated on, and the version of the code, as
            short digests.
        values: the metric of the study by column, if it has one there: ids have no bytes, and a
            perplexity may be beyond all numbers.
        nats: nats per token by column.
        curve: (tokens read, validation loss in nats) at each evaluation of the training.
        validated: what such an evaluation scored: how many tokens (0: its record does not say), of
            which kind of text and size of vocabulary.
        distances: by column, the rows that lab.loss_by_position gives for distances to the
            article's beginning.
        parameters_in_layers: those outside embedding and softmax.
        cpu_seconds: of all cores, training only; `seconds` are by the clock, and depend on what
            else runs.
        remembered: numbers in the memory of a stream in training, once full, in all layers.
        operations: multiplications and additions of the training.
        processor: that of the computer, or the GPU, if the training ran on one.
        chosen: the memory lengths that were best on valid, by column of `Study.best`.
        is_rerun: the second training with this seed.
        day: when it began, as 2026-11-25, by universal time.
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
    chosen: dict[str, int] = field(default_factory=dict)
    is_rerun: bool = False
    day: str = ""


@dataclass(frozen=True)
class Row:
    """The runs of a variant that may be averaged: of one text, one version of the code and one
    setting.

    Attributes:
        name: the variant, with the source of its runs where the study has several sources.
    """

    name: str
    variant: str
    source: str
    runs: Sequence[RunFigures]


def rows_of(study: Study, runs: Path) -> list[Row]:
    """The figures of all finished runs: a row for each variant and source; one without runs for a
    variant that has none.
    """
    by_row: dict[tuple[str, str], list[RunFigures]] = {}
    for asked in tasks(study, runs):
        task = as_trained(study, asked, runs)
        if task is None:
            done = {}
        else:
            done = finished(task)
        if (
            task is not None
            and done.get("train") == task.flags
            and not unevaluated(study, task.variant, done)
        ):
            evaluations = {name: done["evaluations"][name] for name in study.evaluations}
            one = _figures(study, task, evaluations)
            by_row.setdefault((task.variant, one.source), []).append(one)
    sources = list(dict.fromkeys(source for _, source in by_row))
    rows = []
    for variant in study.variants:
        mine = []
        for source in sources:
            if (variant, source) in by_row:
                mine.append(source)
        for source in mine or [""]:
            if len(sources) > 1 and mine:
                name = f"{variant} ({source})"
            else:
                name = variant
            rows.append(Row(name, variant, source, by_row.get((variant, source), [])))
    return rows


def _columns(evaluations: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of all evaluations by the name of their column."""
    columns = {}
    for name, evaluation in evaluations.items():
        rows = evaluation["rows"]
        columns |= dict(zip(column_names(name, rows), rows, strict=True))
    return columns


def best_row(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Of the rows of an evaluation of valid and test that of test at the lengths that are best on
    valid.
    """
    valid = [row for row in rows if row["split"] == "valid"]
    if not valid:
        return None
    best = min(valid, key=lambda row: row["nats_per_token"])
    same = []
    for row in rows:
        is_alike = all(row.get(key) == best.get(key) for key in _LENGTHS)
        if row["split"] == "test" and is_alike:
            same.append(row)
    if same:
        return dict(same[0])
    return None


_LENGTHS = ("tgt_len", "mem_len", "added", "borders")


def _figures(study: Study, task: Task, evaluations: Mapping[str, Any]) -> RunFigures:
    path = task.folder / "run" / RECORDS
    records = read_json_lines(path)
    starts = [record for record in records if record["kind"] == "start"]
    train = [record for record in records if record["kind"] == "train"]
    seconds = _seconds(train, "speed/ms_per_step") or 0.0
    if train:
        n_step = train[-1]["step"]
    else:
        n_step = 0
    valid = [record for record in records if record["kind"] == "valid"]
    peaks = []
    for record in train:
        if record.get("mem/peak_gib") is not None:
            peaks.append(record["mem/peak_gib"])
    rows = _columns(evaluations)
    chosen = {}
    for column, name in study.best.items():
        chosen[column] = best_row(evaluations[name]["rows"])
    for column, row in chosen.items():
        if row is not None:
            rows[column] = row
    n_token = max((record.get("tokens", 0) for record in train + valid), default=0)
    per_token = starts[0].get("flops_per_token")
    return RunFigures(
        task.seed,
        parameters=starts[0]["parameters"],
        tokens=n_token,
        seconds=seconds,
        peak_gib=max(peaks, default=None),
        values={
            name: row[study.metric] for name, row in rows.items() if row[study.metric] is not None
        },
        nats={name: row["nats_per_token"] for name, row in rows.items()},
        curve=curve_of(records),
        source=_source(starts, evaluations.values()),
        parameters_in_layers=starts[0].get("parameters_in_layers"),
        operations=None if per_token is None else per_token * n_token,
        ms_per_step=1000 * seconds / n_step if n_step else None,
        cpu_seconds=_seconds(train, "speed/cpu_ms_per_step"),
        remembered=starts[0].get("remembered_floats"),
        distances={
            name: row["loss_by_distance"]
            for name, row in rows.items()
            if row.get("loss_by_distance")
        },
        processor=_processor(starts[0]),
        validated=_validated(starts[0], valid),
        chosen={column: row["mem_len"] for column, row in chosen.items() if row is not None},
        is_rerun=task.is_rerun,
        day=time.strftime("%Y-%m-%d", time.gmtime(starts[0].get("time/unix_s", 0))),
    )


def _processor(start: Mapping[str, Any]) -> str | None:
    device = start.get("device", "cpu")
    if device == "cpu":
        return start.get("processor")
    return device


def _validated(
    start: Mapping[str, Any], valid: Sequence[Mapping[str, Any]]
) -> tuple[int, str, int]:
    if valid:
        n_scored = valid[-1].get("scored_tokens", 0)
    else:
        n_scored = 0
    return (
        n_scored,
        start.get("data", {}).get("dataset", ""),
        start.get("model", {}).get("n_token", 0),
    )


def _seconds(records: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The sum of what the updates took, not of the clock: a run may have been stopped for a night.
    None if there are no records, or one does not say.
    """
    steps = [record["step"] for record in records]
    taken = [record.get(name) for record in records]
    if not taken or None in taken:
        return None
    return sum(
        (step - before) * ms / 1000
        for before, step, ms in zip([0, *steps], steps, taken, strict=False)
    )


def _source(starts: Sequence[Mapping[str, Any]], evaluations: Any) -> str:
    """What the runs of a row have in common.

    A run that was resumed by other code is of both versions.
    """
    texts = {text for start in starts for text in start.get("texts", {}).values()}
    texts |= {text for one in evaluations for text in one.get("texts", {}).values()}
    codes = dict.fromkeys(
        (start.get("git_commit") or start.get("txl") or "")[:7] + "+" * bool(start.get("git_dirty"))
        for start in starts
    )
    if texts:
        text = hashlib.sha256("".join(sorted(texts)).encode()).hexdigest()[:8]
    else:
        text = ""
    named = {"text": text, "code": " and ".join(filter(None, codes))}
    return ", ".join(f"{what} {value}" for what, value in named.items() if value)


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The columns of all runs."""
    return list(dict.fromkeys(name for row in rows for run in row.runs for name in run.nats))


def compared(study: Study, rows: Sequence[Row]) -> list[Comparison]:
    """The contrasts of a study; of one without any, every row against that of the baseline of the
    same source, in every column. p-values are corrected for all of these but the exploratory ones.
    """
    if study.contrasts:
        return corrected(_contrasts(study, rows))
    return corrected(_against_baseline(study, rows))


def _contrasts(study: Study, rows: Sequence[Row]) -> list[Comparison]:
    sources = list(dict.fromkeys(row.source for row in rows if row.runs))
    found = []
    for source in sources:
        losses = _losses(study, rows, source)
        for name, contrast in study.contrasts.items():
            label = name
            if len(sources) > 1:
                label = f"{name} ({source})"
            result = _contrasted(label, "", losses, contrast)
            found.append(replace(result, is_fixed=name not in study.exploratory))
    return found


def _against_baseline(study: Study, rows: Sequence[Row]) -> list[Comparison]:
    found = []
    for row in rows:
        if row.variant == study.baseline:
            continue
        losses = _losses(study, rows, row.source)
        for column in columns_of([row]):
            contrast = Contrast(((row.variant, column),), ((study.baseline, column),))
            result = _contrasted(row.name, column, losses, contrast)
            if result.difference is not None:
                found.append(result)
    return found


Losses = Mapping[tuple[str, str], Mapping[int, Sequence[float]]]
"""By variant and column: the losses of each seed, of a training that was run again both."""


def _contrasted(label: str, column: str, losses: Losses, contrast: Contrast) -> Comparison:
    """A contrast in the model of all variants of which as much is known.

    Readings of one variant are of one training, whose weights they share: they are put together
    first. What is pooled is therefore the same for every variant: a loss in one column, or the
    difference of two columns. A reading that stands twice has twice the weight.
    """
    parts: dict[str, dict[str, int]] = {}
    for sign, side in ((1, contrast.of), (-1, contrast.against)):
        for run, name in side:
            of_run = parts.setdefault(run, {})
            of_run[name] = of_run.get(name, 0) + sign
    parts = {
        run: {name: n for name, n in sorted(of_run.items()) if n} for run, of_run in parts.items()
    }
    parts = {run: of_run for run, of_run in parts.items() if of_run}
    if not parts:  # what is compared is the same
        return Comparison(label, column, 0)
    weights = {}
    for run, of_run in parts.items():
        weights[run] = _weight(list(of_run.values()))
    kinds = {
        run: {name: n / weights[run] for name, n in of_run.items()} for run, of_run in parts.items()
    }
    of_others = next(iter(kinds.values()))
    cells: dict[tuple[str, int], list[float]] = {}
    for run in dict.fromkeys(run for run, _ in losses):
        cells |= _cells(run, kinds.get(run, of_others), losses)
    seeds = []
    for one in parts:
        seeds.append({seed for run, seed in cells if run == one})
    return comparison(label, column, len(set.intersection(*seeds)), estimate(cells, weights))


def _weight(times: Sequence[int]) -> float:
    """Of what a contrast has of one variant.

    Args:
        times: how often it has each reading, below 0 on the other side.
    """
    n_more = sum(times)
    if n_more:
        return float(n_more)
    return math.copysign(sum(abs(n) for n in times) / 2, times[0])


def _cells(
    run: str, factors: Mapping[str, float], losses: Losses
) -> dict[tuple[str, int], list[float]]:
    """What is compared of a variant, by variant and seed, of the seeds that have all columns."""
    columns = []
    for column in factors:
        columns.append(losses.get((run, column), {}))
    cells = {}
    for seed in columns[0]:
        if all(seed in by_seed for by_seed in columns):
            trainings = zip(*(by_seed[seed] for by_seed in columns), strict=True)
            cells[run, seed] = [
                math.fsum(factor * loss for factor, loss in zip(factors.values(), one, strict=True))
                for one in trainings
            ]
    return cells


def _losses(study: Study, rows: Sequence[Row], source: str) -> Losses:
    """What is compared, in the unit of `METRICS`, of the rows of one source."""
    if study.metric == "word_perplexity":
        log = math.log
    else:
        log = float
    losses: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in rows:
        for run in row.runs if row.source == source else ():
            for column, value in (run.nats if study.metric == "perplexity" else run.values).items():
                losses.setdefault((row.variant, column), {}).setdefault(run.seed, []).append(
                    log(value)
                )
    return losses


def searches_of(study: Study, runs: Path) -> dict[str, dict[float, float]]:
    """Of each variant, the validation losses of the values that a search has tried so far;
    infinite: it diverged. Of a variant that takes the value of another they are those of that.
    """
    first = {}
    for task in reversed(tasks(study, runs)):
        first[task.variant] = task
    if study.search:
        return {name: losses_tried(study, first[name], runs) for name in study.variants}
    return {}


class Rerun(NamedTuple):
    """A training that was run again: by how much its losses differ from the
    first, in nats a token.
    """

    run: str
    seed: int
    days: tuple[str, str]
    differences: dict[str, float]


def reruns_of(rows: Sequence[Row]) -> list[Rerun]:
    """The trainings that were run again, with what came out otherwise."""
    found = []
    for row in rows:
        first = {}
        for run in row.runs:
            if not run.is_rerun:
                first[run.seed] = run
        for again in row.runs:
            if again.is_rerun and again.seed in first:
                one = first[again.seed]
                differences = {}
                for column, nats in again.nats.items():
                    differences[column] = nats - one.nats[column]
                found.append(Rerun(row.name, again.seed, (one.day, again.day), differences))
    return found


class Bin(NamedTuple):
    """Nats per token, mean and deviation over the seeds, of tokens `first` to `last` after the
    article's first one.
    """

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
            tables = []
            for run in row.runs:
                if column in run.distances:
                    tables.append(run.distances[column])
            for seeds in zip(*tables, strict=True):  # a bin has the same tokens with every seed
                first, last, tokens = (seeds[0][key] for key in ("from", "to", "tokens"))
                mean, deviation = mean_and_spread([one["nats_per_token"] for one in seeds])
                found.setdefault((row.name, column), []).append(
                    Bin(first, last, tokens, mean, deviation)
                )
    return found


def validated_alike(rows: Sequence[Row]) -> bool:
    """Whether the curves of all runs of one source are of the same tokens: of one vocabulary, and
    as many, since `max_eval_steps` counts segments, and how many streams a segment holds tokens of
    differs by `memory`.
    """
    found = set()
    for row in rows:
        for run in row.runs:
            found.add((row.source, run.validated))
    return len(found) == len({source for source, _ in found})


def final_loss(runs: Sequence[RunFigures]) -> float | None:
    """The mean of the last validation losses."""
    last = [run.curve[-1][1] for run in runs if run.curve]
    if last:
        return mean_and_spread(last)[0]
    return None


def tokens_until(run: RunFigures, nats: float) -> float | None:
    """Tokens read until the validation loss reaches `nats`, interpolated between evaluations; None:
    it does not.
    """
    before: tuple[int, float] | None = None
    for tokens, loss in run.curve:
        if loss <= nats:
            if before is None or before[1] == loss:
                return float(tokens)
            share = (before[1] - nats) / (before[1] - loss)
            return before[0] + share * (tokens - before[0])
        before = (tokens, loss)
    return None
