"""What a memory is used for: two readings of a study compared by where the last occurrence of a
token lies, and by how often the training text has it.

python -m lab.studies.occurrences STUDY.toml --of ROW COLUMN --against ROW COLUMN
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd  # pyright: ignore[reportMissingImports]

from lab.measures.last_occurrence import PLACES, by_occurrence, frequency_edges, places
from lab.studies.checks import column_names
from lab.studies.plan import Study, Task, read_study, slug, tasks, words
from lab.studies.runner import TRAINING, finished
from lab.studies.statistics import ALPHA
from lab.studies.tables import as_markdown, table_of
from txl.config import Checked, UsageError, build, option, require
from txl.data_utils.config import DataConfig
from txl.data_utils.corpus import Corpus
from txl.evaluation.measures.token_losses import TokenLosses, read_losses
from txl.programs.run import run
from txl.runtime.log import print_line
from txl.runtime.outputs import inputs_of, require_outputs, text_kind, write_text
from txl.settings.flags import read_flags


@dataclass(frozen=True, kw_only=True)
class OccurrencesConfig(Checked):
    """Which readings are compared."""

    folder: str | None = option(
        None, "folder of the study (not given: runs/studies/NAME of the file)"
    )
    runs: str | None = option(None, "folder of its trainings (not given: FOLDER/runs)")
    of: tuple[str, ...] = option((), "a row and a column of the study: whose memory is asked about")
    against: tuple[str, ...] = option((), "another row and column, of the same tokens")
    csv: str | None = option(None, "write the table to this file, unrounded")


_COLUMNS = ("last occurrence", "in training", "tokens", "of", "against", "share")
TABLE = text_kind("lab.studies.occurrences", ",".join(_COLUMNS))


class Group(NamedTuple):
    """The tokens of one place and one range of frequencies, over all seeds.

    Attributes:
        place: one of `PLACES`; empty: all.
        frequency: the range, in words; empty: all.
        tokens: of one seed.
        of, against: mean nats per token.
        differences: of each seed, nats per token.
        share: of the difference of all tokens.
    """

    place: str
    frequency: str
    tokens: int
    of: float
    against: float
    differences: tuple[float, ...]
    share: float


def main(argv: Sequence[str]) -> None:
    asks = {"--help", "-h"} & set(argv)
    usage = "python -m lab.studies.occurrences STUDY.toml --of ROW COLUMN --against ROW COLUMN"
    require(
        bool(asks) or (bool(argv) and not argv[0].startswith("-")),
        f"name the TOML file of a study: {usage}",
    )
    typed = read_flags(argv if asks else argv[1:], OccurrencesConfig, description=__doc__ or "")
    config = build(OccurrencesConfig, typed)
    study = read_study(Path(argv[0]))
    for name, reading in (("of", config.of), ("against", config.against)):
        require(len(reading) == 2, f"--{name}: give a row and a column: {usage}")
        there = f"no such row; there are {', '.join(study.variants)}"
        require(reading[0] in study.variants, f"--{name} {reading[0]}: {there}")
    if config.folder:
        folder = Path(config.folder)
    else:
        folder = Path("runs") / "studies" / study.name
    if config.runs:
        runs = Path(config.runs)
    else:
        runs = folder / "runs"
    inputs = inputs_of({**typed, "study": argv[0]}, "csv")
    require_outputs({"--csv": (config.csv, TABLE)}, inputs)
    groups = compare(study, runs, config.of, config.against)
    print_line(as_markdown(as_table(groups)))
    if config.csv:
        write_text(
            Path(config.csv), unrounded(groups).to_csv(index=False, lineterminator="\n"), TABLE
        )


def compare(study: Study, runs: Path, of: Sequence[str], against: Sequence[str]) -> list[Group]:
    """The groups of all tokens, of each place, of each range of frequencies, and of both. Raises
    `UsageError` if no seed has both readings, or they are of other tokens.
    """
    pairs = []
    for seed in study.seeds_of(of[0]):
        pairs.append((kept(study, runs, seed, *of), kept(study, runs, seed, *against)))
    known = []
    for one, other in pairs:
        if one is not None and other is not None:
            known.append((one, other))
    rows = f"{of[0]!r} and {against[0]!r}"
    require(
        bool(known),
        f"{study.name}: {rows}: no seed has the losses of both; run the study, or name --runs",
    )
    counts_V = counts_of_training(
        next(task for task in tasks(study, runs) if task.variant == of[0])
    )
    first = known[0][0]
    for one, other in known:
        is_same = np.array_equal(one.ids_N, first.ids_N) and np.array_equal(
            other.ids_N, first.ids_N
        )
        require(
            is_same,
            f"{study.name}: {rows}: are of other tokens; compare readings of one split and"
            " vocabulary",
        )
    return _groups(known, places(first), counts_V)


def _groups(
    known: Sequence[tuple[TokenLosses, TokenLosses]], place_N: np.ndarray, counts_V: np.ndarray
) -> list[Group]:
    edges = frequency_edges(counts_V)
    sums: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    for one, other in known:
        both_N = np.where(other.visible_N > 0, place_N, -1)
        mine, theirs = (by_occurrence(losses, both_N, counts_V, edges) for losses in (one, other))
        of_seed: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
        for cell, opposite in zip(mine, theirs, strict=True):
            if cell.last is None:
                frequency = f"{cell.first:,} or more"
            else:
                frequency = f"{cell.first:,} to {cell.last:,}"
            for key in ((cell.place, frequency), (cell.place, ""), ("", frequency), ("", "")):
                of_seed.setdefault(key, []).append((cell.tokens, cell.nats, opposite.nats))
        for key, values in of_seed.items():
            n_token, nats, others = (sum(column) for column in zip(*values, strict=True))
            sums.setdefault(key, []).append((int(n_token), nats, others))
    whole = sum(nats - others for _, nats, others in sums["", ""])
    groups = []
    for (place, frequency), seeds in sums.items():
        n_token = seeds[0][0]
        of = sum(seed[1] for seed in seeds) / len(seeds) / n_token
        against = sum(seed[2] for seed in seeds) / len(seeds) / n_token
        differences = tuple((nats - others) / n_token for _, nats, others in seeds)
        if whole:
            share = sum(differences) * n_token / whole
        else:
            share = 0.0
        groups.append(Group(place, frequency, n_token, of, against, differences, share))
    order = {place: i for i, place in enumerate(("", *PLACES))}
    ranges = list(dict.fromkeys(["", *(f"{a:,}" for a in edges)]))
    return sorted(
        groups, key=lambda group: (order[group.place], ranges.index(group.frequency.split(" ")[0]))
    )


def kept(study: Study, runs: Path, seed: int, row: str, column: str) -> TokenLosses | None:
    """The kept losses of a reading; None if its training has none yet. Raises `UsageError` if no
    evaluation has the column.
    """
    task = next(
        (t for t in tasks(study, runs) if (t.variant, t.seed, t.is_rerun) == (row, seed, False)),
        None,
    )
    name = study.evaluation_of(column)
    require(
        name is not None and column not in study.best,
        f"{study.name}: {column!r}: no column of an evaluation",
    )
    if task is None:
        path = Path()
    else:
        path = task.folder / f"{slug(str(name))}.npz"
    if task is None or name not in finished(task).get("evaluations", {}) or not path.is_file():
        return None
    losses = read_losses(path)
    columns = column_names(
        str(name),
        [{"split": x.split, "added": x.added, "borders": x.borders, **x.context} for x in losses],
    )
    require(
        column in columns, f"{path}: {column!r}: no such column; there are {'; '.join(columns)}"
    )
    return losses[columns.index(column)]


def counts_of_training(task: Task) -> np.ndarray:
    """How often the training text of a run has each token of its vocabulary."""
    config: Any = build(
        DataConfig, read_flags(words(task.flags, task.folder / "run"), *TRAINING, description="")
    )
    try:
        corpus = Corpus(config, needed=("train",))
    except UsageError as error:
        raise UsageError(f"the frequencies of {task.variant}: {error}") from None
    ids_N = corpus.split("train")
    counts_V = np.zeros(len(corpus.vocab), dtype=np.int64)
    for begin in range(0, len(ids_N), 2**24):
        counts_V += np.bincount(ids_N[begin : begin + 2**24], minlength=len(counts_V))
    return counts_V


def as_table(groups: Sequence[Group]) -> pd.DataFrame:
    """A group a row, rounded; the interval is over seeds, where there are several."""
    header = [
        "last occurrence",
        "in training",
        "tokens",
        "of",
        "against",
        "difference",
        "95 % interval",
        "share",
    ]
    cells = []
    for group in groups:
        interval = _interval(group.differences)
        cells.append(
            [
                *(group.place or "all", group.frequency or "all", f"{group.tokens:,}"),
                *(
                    f"{group.of:.4f}",
                    f"{group.against:.4f}",
                    f"{sum(group.differences) / len(group.differences):+.4f}",
                ),
                "" if interval is None else f"{interval[0]:+.4f} to {interval[1]:+.4f}",
                f"{group.share:.1%}",
            ]
        )
    return table_of(header, cells)


def unrounded(groups: Sequence[Group]) -> pd.DataFrame:
    """For programs: a group a row, with the difference of each seed."""
    n_seed = len(groups[0].differences)
    header = [*_COLUMNS, *(f"difference {i}" for i in range(1, n_seed + 1))]
    rows = []
    for group in groups:
        rows.append(
            [
                *(group.place or "all", group.frequency or "all", str(group.tokens)),
                *map(repr, (group.of, group.against, group.share, *group.differences)),
            ]
        )
    return table_of(header, rows)


def _interval(differences: Sequence[float]) -> tuple[float, float] | None:
    from statsmodels.stats.weightstats import (  # pyright: ignore[reportMissingImports]
        DescrStatsW,
    )

    if len(differences) < 2:
        return None
    return DescrStatsW(list(differences)).tconfint_mean(ALPHA)


if __name__ == "__main__":
    sys.argv[0] = "lab.studies.occurrences"
    run(main)
