"""A page of the trainings of a study, drawn by `txl report`."""

import os
import sys
from pathlib import Path

from lab.studies.plan import Study, Task, tasks
from lab.studies.runner import Choice, Programs, as_trained, finished
from txl.config import require
from txl.evaluation.config import MOST_RUNS
from txl.report.record import HTML
from txl.runtime.log import print_line


def draw_page(study: Study, runs: Path, folder: Path, only: Choice) -> None:
    """Write report.html into a folder: one finished training of each row, measured where it has not
    been.

    Args:
        runs: the folder of the trainings.
        only: which trainings may be on it.
    Raises:
        UsageError: if none is finished, or `txl report` fails, which says why.
        StopNow: if a signal asks to stop.
    """
    found = finished_trainings(study, runs, only)
    require(bool(found), f"--page: {runs} has no finished training of these rows; train them first")
    shown = found[:MOST_RUNS]
    print_line(f"| page of {'; '.join(task.name for task in shown)}")
    if len(found) > len(shown):
        left_out = ", ".join(task.variant for task in found[MOST_RUNS:])
        print_line(f"| a page has {MOST_RUNS} trainings at most: without {left_out} (see --only)")
    words = ["--runs", *(str(task.folder / "run") for task in shown), "--out", str(folder / HTML)]
    status = report(words)
    require(
        status == 0, f"--page: txl report ended with status {status}, see above; tables are written"
    )


def finished_trainings(study: Study, runs: Path, only: Choice) -> list[Task]:
    """The first finished training of each row, that of the baseline first."""
    first: dict[str, Task] = {}
    for asked in tasks(study, runs):
        task = as_trained(study, asked, runs)
        if task is None or task.variant in first or not only.holds(task):
            continue
        if finished(task).get("train") == task.flags:
            first[task.variant] = task
    return sorted(first.values(), key=lambda task: task.variant != study.baseline)


def report(words: list[str]) -> int:
    """The exit status of `txl report`. Raises `StopNow` if a signal asks to stop."""
    environment = {"OMP_NUM_THREADS": str(os.cpu_count() or 1)} | os.environ
    with Programs() as programs:
        return programs.run([sys.executable, "-m", "txl", "report", *words], env=environment)
