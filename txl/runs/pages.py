"""Draw a page of runs: from their kept figures where there are any; the others are measured first."""

from pathlib import Path

from txl.checkpoint import checkpoints, open_checkpoint
from txl.config import build, require
from txl.evaluation.config import ReportConfig
from txl.language.model import LanguageModel
from txl.language.sources import located
from txl.report.page import PAGE, write_page
from txl.report.record import FIGURES, HTML, JSON, Report, read_report, write_report
from txl.runs.reporting import folder_for, folder_of, measure_report, say_where
from txl.runtime.log import print_line
from txl.runtime.outputs import inputs_of, require_free, require_outputs
from txl.settings.flags import refuse_idle_flags
from txl.settings.layers import Asked

DRAWING = {"runs", "out"}
"""Flags for which nothing is measured."""


def draw_runs(typed: Asked) -> None:
    """Write a page of runs, and of each the figures that it is drawn from.

    Args:
        typed: settings of `ReportConfig` and `DataConfig` by name.
    Raises:
        UsageError: if a run cannot be read, its text is not there, or something else stands where a
            file belongs.
    """
    asked: ReportConfig = build(ReportConfig, typed)
    require(
        asked.json is None or len(asked.runs) == 1,
        f"--json {asked.json}: holds the figures of one run; leave it out, each run keeps its own",
    )
    page = page_for(asked)
    outputs = {"--out": (str(page), PAGE), "--json": (asked.json, FIGURES)}
    require_outputs(outputs, inputs_of(typed, "out", "json"))
    # what is refused, before anything is measured
    known = [known_report(run, typed) for run in asked.runs]
    reports = []
    for run, report in zip(asked.runs, known, strict=True):
        if report is None:
            report = measured(run, asked, typed)
        reports.append(report)
    write_page(page, reports)
    say_where(page)


def page_for(asked: ReportConfig) -> Path:
    """Where the page is written."""
    if asked.out is not None:
        return Path(asked.out)
    if len(asked.runs) != 1:
        return Path(HTML)
    (name,) = asked.runs
    run = Path(name)
    if run.is_dir():
        return folder_for(run) / HTML
    if run.is_file() and is_record(run):
        return run.with_suffix(".html")
    return Path(HTML)


def is_record(path: Path) -> bool:
    """Whether a file that is named is a report.json and no checkpoint."""
    return path.suffix == ".json"


def known_report(run: str, typed: Asked) -> Report | None:
    """The report of a run that need not be measured: a report.json, or that of the checkpoint that
    would be read; None: it is to be measured. Raises `UsageError` if it is damaged, or there is no
    such run.
    """
    path = Path(run)
    if path.is_file() and is_record(path):
        idle = []
        for name in typed:
            if name not in DRAWING:
                idle.append(f"--{name}")
        require(
            not idle,
            f"{', '.join(idle)}: nothing is measured for {run}, which is drawn as it is; leave"
            " it out",
        )
        return read_report(path)
    kept = kept_report(path, typed)
    if kept is None:
        located(run)
    else:
        print_line(
            f"| {path / JSON} is of this checkpoint: drawn from it (--measure reads the text again)"
        )
    return kept


def measured(run: str, asked: ReportConfig, typed: Asked) -> Report:
    """Measure a run, and keep its figures.

    Raises `UsageError` if it cannot be read, or its text is not there.
    """
    lm = LanguageModel.open(
        run,
        vocabulary=asked.vocabulary,
        dataset=typed.get("dataset"),
        device=asked.device,
        dtype=asked.dtype,
    )
    refuse_idle_flags(typed, asked, lm.data_config(typed), lm.model_config)
    if asked.json:
        target = Path(asked.json)  # which `draw_runs` has checked
    else:
        target = folder_of(lm) / JSON
        require_free(target, FIGURES)
    report = measure_report(lm, asked, typed)
    for gain in report.gains:
        if gain.longer == report.compared[-1]:
            print_line(gain.sentence())
    write_report(target, report)
    print_line(f"| figures: {target}")
    return report


def kept_report(run: Path, typed: Asked) -> Report | None:
    """What a run folder has been measured to, if that is of the checkpoint that would be read, or
    that is not there any more; None: it is to be measured. Flags that say how to measure are never
    without effect.
    """
    path = run / JSON
    if set(typed) - DRAWING or not path.is_file():
        return None
    has_checkpoints = bool(checkpoints(run))
    if not has_checkpoints and (run / "config.json").is_file():  # no run of txl
        return None
    report = read_report(path)
    if not has_checkpoints:
        return report
    checkpoint = open_checkpoint(run)
    if (checkpoint.folder.name, checkpoint.fingerprint()) == (report.checkpoint, report.weights):
        return report
    return None
