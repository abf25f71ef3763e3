"""Run a study: a grid of trainings with several seeds, their evaluations, and a table of what they
show.

python -m lab.studies STUDY.toml
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.studies.checks import require_columns, require_texts
from lab.studies.page import draw_page
from lab.studies.plan import Study, read_study
from lab.studies.report import Findings, in_words, write_report
from lab.studies.runner import Choice, require_flags, run_study
from txl.config import Checked, build, option, require
from txl.programs.run import run
from txl.runtime.log import print_line
from txl.runtime.signals import STATUS, WORDS, StopNow
from txl.settings.flags import read_flags, require_utf8


@dataclass(frozen=True, kw_only=True)
class StudiesConfig(Checked):
    """Where a study is kept and how it is run."""

    folder: str | None = option(
        None, "folder of runs and results (not given: runs/studies/NAME of the file)"
    )
    runs: str | None = option(
        None, "folder of trainings that several studies may share (not given: FOLDER/runs)"
    )
    jobs: int = option(1, "runs at once, each with its share of the cores", minimum=1)
    only: tuple[str, ...] = option(
        (), "train these rows only, of all that the study file names; may be repeated", repeats=True
    )
    seeds: tuple[int, ...] = option((), "train with these seeds only, of those of the study file")
    report_only: bool = option(False, "train nothing: report what is done so far")
    page: bool = option(
        False,
        "at the end, draw report.html of one training of each row, six at most (those that --only"
        " and --seeds name); each is read as txl report reads it, which takes as long as some 20"
        " evaluations",
    )


def main(argv: Sequence[str]) -> int:
    asks = {"--help", "-h"} & set(argv)
    require(
        bool(asks) or (bool(argv) and not argv[0].startswith("-")),
        "name the TOML file of a study: python -m lab.studies STUDY.toml",
    )
    require_utf8(argv)
    config = build(
        StudiesConfig,
        read_flags(argv if asks else argv[1:], StudiesConfig, description=__doc__ or ""),
    )
    study = read_study(Path(argv[0]))
    only = chosen(study, config)
    if config.folder:
        folder = Path(config.folder)
    else:
        folder = Path("runs") / "studies" / study.name
    if config.runs:
        runs = Path(config.runs)
    else:
        runs = folder / "runs"
    require_flags(study)
    if not config.report_only:
        require_texts(study)
        require_columns(study)
    try:
        if config.report_only:
            failed = {}
        else:
            failed = run_study(study, runs, jobs=config.jobs, only=only)
        findings = Findings.of(study, runs, failed)
        said = in_words(study, findings)
        print_line(f"\n{said}")
        for path in write_report(study, findings, folder, said):
            print_line(f"| written: {path}")
        if config.page:
            draw_page(study, runs, folder, only)
    except StopNow as stop:
        (request,) = stop.args
        print_line(f"| {WORDS[request]}; started again, the study goes on from here")
        return STATUS[request]
    if failed:
        return 1
    return 0


def chosen(study: Study, config: StudiesConfig) -> Choice:
    """Which trainings --only and --seeds name.

    Raises `UsageError` if the study has none of that name.
    """
    for name in config.only:
        require(
            name in study.variants,
            f"--only {name}: no such row; there are {', '.join(study.variants)}",
        )
    seeds = dict.fromkeys(seed for name in study.variants for seed in study.seeds_of(name))
    for seed in config.seeds:
        there = f"the study has {', '.join(map(str, seeds))}; add others to its file"
        require(seed in seeds, f"--seeds {seed}: no such seed; {there}")
    return Choice(config.only, config.seeds)


if __name__ == "__main__":
    sys.argv[0] = "lab.studies"
    run(main)
