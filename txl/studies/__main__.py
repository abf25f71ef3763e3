"""Run a study: a grid of trainings with several seeds, their evaluations, and a table of what they show.

python -m txl.studies STUDY.toml
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from txl.cli.flags import read_flags, require_utf8
from txl.cli.run import run
from txl.config import Checked, build, option, require
from txl.runtime.log import print_line
from txl.runtime.signals import STATUS, WORDS, StopNow
from txl.studies.plan import read_study
from txl.studies.report import in_words, write_report
from txl.studies.results import rows_of
from txl.studies.runner import require_flags, run_study


@dataclass(frozen=True, kw_only=True)
class StudiesConfig(Checked):
    """Where a study is kept and how it is run."""

    folder: str | None = option(None, "folder of runs and results (not given: runs/studies/NAME of the file)")
    runs: str | None = option(None, "folder of trainings that several studies may share (not given: FOLDER/runs)")
    jobs: int = option(1, "runs at once, each with its share of the cores", minimum=1)
    report_only: bool = option(False, "train nothing: report what is done so far")


def main(argv: Sequence[str]) -> int:
    asks = {"--help", "-h"} & set(argv)
    require(
        bool(asks) or (bool(argv) and not argv[0].startswith("-")),
        "name the TOML file of a study: python -m txl.studies STUDY.toml",
    )
    require_utf8(argv)
    config = build(StudiesConfig, read_flags(argv if asks else argv[1:], StudiesConfig, description=__doc__ or ""))
    study = read_study(Path(argv[0]))
    require(
        len(study.seeds) == 1 or find_spec("scipy") is not None,
        "a study with several seeds needs scipy for its test; pip install scipy",
    )
    folder = Path(config.folder) if config.folder else Path("runs") / "studies" / study.name
    runs = Path(config.runs) if config.runs else folder / "runs"
    require_flags(study)
    try:
        failed = {} if config.report_only else run_study(study, runs, jobs=config.jobs)
    except StopNow as stop:
        (request,) = stop.args
        print_line(f"| {WORDS[request]}; started again, the study goes on from here")
        return STATUS[request]
    rows = rows_of(study, runs)
    print_line("\n" + in_words(study, rows, failed))
    for path in write_report(study, rows, failed, folder):
        print_line(f"| written: {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    run(main)
