"""The figures of a study: of each run, and over the seeds of a variant."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txl.studies.plan import Study, tasks
from txl.studies.runner import finished
from txl.training.metrics import RECORDS


@dataclass(frozen=True)
class RunFigures:
    """What one training has cost and reached.

    Attributes:
        values: the metric of the study by column.
        nats: nats per token by column, which comparisons are made with.
        curve: (tokens read, validation loss in nats) at each evaluation of the training.
    """

    seed: int
    parameters: int
    tokens: int
    seconds: float
    peak_gib: float | None
    values: dict[str, float]
    nats: dict[str, float]
    curve: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """A variant against the baseline, paired by seed.

    Attributes:
        difference: mean difference in nats per token; below 0: better than the baseline.
        p: of Student's paired t-test, two-sided; None with fewer than two seeds.
    """

    difference: float
    p: float | None

    @property
    def verdict(self) -> str:
        """In words."""
        if self.p is None:
            return "one seed"
        return "within noise" if self.p >= 0.05 else "better" if self.difference < 0 else "worse"


def figures(study: Study, runs: Path) -> dict[str, list[RunFigures]]:
    """The figures of all finished runs, by variant."""
    found: dict[str, list[RunFigures]] = {name: [] for name in study.variants}
    for task in tasks(study, runs):
        done = finished(task)
        if done.get("train") == task.flags and set(study.evaluations) <= set(done.get("evaluations", {})):
            rows = _columns({name: done["evaluations"][name]["rows"] for name in study.evaluations})
            found[task.variant].append(_figures(study, task.seed, task.folder / "run" / RECORDS, rows))
    return found


def _columns(evaluations: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The rows of all evaluations by the name of their column: of the evaluation, and of what differs in its rows."""
    columns = {}
    for name, rows in evaluations.items():
        varied = [key for key in ("split", "tgt_len", "mem_len", "added") if len({row[key] for row in rows}) > 1]
        for row in rows:
            parts = [f"{key} {row[key]}" if key.endswith("_len") else str(row[key] or "plain") for key in varied]
            columns[", ".join([name, *parts])] = row
    return columns


def _figures(study: Study, seed: int, path: Path, rows: dict[str, dict[str, Any]]) -> RunFigures:
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    train = [record for record in records if record["kind"] == "train"]
    seconds = before = 0.0
    for record in train:  # not the clock: a run may have been stopped for a night
        seconds += (record["step"] - before) * record["speed/ms_per_step"] / 1000
        before = record["step"]
    valid = [record for record in records if record["kind"] == "valid"]
    peaks = [record["mem/peak_gib"] for record in train if record.get("mem/peak_gib") is not None]
    return RunFigures(
        seed,
        parameters=next(record["parameters"] for record in records if record["kind"] == "start"),
        tokens=max((record.get("tokens", 0) for record in train + valid), default=0),
        seconds=seconds,
        peak_gib=max(peaks, default=None),
        values={name: row[study.metric] for name, row in rows.items()},
        nats={name: row["nats_per_token"] for name, row in rows.items()},
        curve=[(record["tokens"], record["valid/nll_nats"]) for record in valid if record["valid/nll_nats"]],
    )


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation over seeds; None for one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def compared(variant: Sequence[RunFigures], baseline: Sequence[RunFigures], column: str) -> Comparison | None:
    """A variant against the baseline over the seeds that both have; None if there is none."""
    theirs = {run.seed: run.nats[column] for run in baseline}
    pairs = [(run.nats[column], theirs[run.seed]) for run in variant if run.seed in theirs]
    if not pairs:
        return None
    differences = [ours - other for ours, other in pairs]
    return Comparison(statistics.fmean(differences), paired_p(differences))


def paired_p(differences: Sequence[float]) -> float | None:
    """The two-sided p-value of Student's t-test that the mean of the differences is 0; None with fewer than two.

    With n differences of mean m and standard deviation s, t = m sqrt(n) / s has n - 1 degrees of freedom.
    """
    if len(differences) < 2:
        return None
    spread = statistics.stdev(differences)
    mean = statistics.fmean(differences)
    if spread == 0:
        return 1.0 if mean == 0 else 0.0
    from scipy.stats import t  # an extra

    return float(2 * t.sf(abs(mean) * math.sqrt(len(differences)) / spread, len(differences) - 1))


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
