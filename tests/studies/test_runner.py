"""A study is run to its end whatever stops it, and its table says what differs from chance."""

import csv
import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from tests.conftest import long_test
from tests.forks import ENVIRONMENT, LIMIT_S, ROOT
from tests.resume.runs import resumed_from
from txl.config import UsageError
from txl.studies import picture, report, runner
from txl.studies.__main__ import main
from txl.studies.plan import Task, read_study
from txl.studies.results import RunFigures, tokens_until
from txl.studies.runner import TaskError, run_study
from txl.training.step import TrainState

STUDY = """
seeds = [1, 2, 3]
[train]
max_step = 4
[runs.small]
[runs.large]
d_model = 32
[evaluations.test]
split = "test"
mem_len = [0, 8]
"""


TINY = """
seeds = [1]
[train]
dataset = "text"
data = "TEXT"
n_layer = 1
n_head = 2
d_head = 8
d_model = 16
d_inner = 16
batch_size = 4
tgt_len = 8
mem_len = 8
sample_length = 0
max_step = 40
eval_interval = 10
log_interval = 10
[runs.a]
[runs.b]
d_model = 8
[evaluations.test]
split = "test"
"""


START: dict[str, Any] = {}
"""What the stand-in of a training knows of itself."""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand-ins for train and eval, which leave what those leave; lists what was called."""
    called: list[str] = []
    monkeypatch.setattr(sys.modules[__name__], "START", {})

    def program(task: Task, line: list[str], **_: Any) -> None:
        name, run = line[0], Path(line[2])
        called.append(f"{name} {task.variant} {task.seed}")
        if name == "train":
            run.mkdir()
            nats = 5.0 - 0.1 * (task.variant == "large") + 0.001 * task.seed
            lines: list[dict[str, Any]] = [{"kind": "start", "parameters": 1000, **START}]
            for step in (2, 4):
                speed = {"speed/ms_per_step": 500.0, "mem/peak_gib": 0.5}
                lines.append({"kind": "train", "step": step, "tokens": step * 10, **speed})
                loss = nats + 0.5 * (4 - step)
                lines.append({"kind": "valid", "step": step, "tokens": step * 10, "valid/nll_nats": loss})
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        else:
            nats = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["valid/nll_nats"]
            row = {"split": "test", "tgt_len": 4, "added": "", "nats_per_token": nats, "perplexity": math.exp(nats)}
            Path(line[4]).write_text(json.dumps({"rows": [{**row, "mem_len": mem_len} for mem_len in (0, 8)]}))

    monkeypatch.setattr(runner, "_program", program)
    monkeypatch.setattr(report, "write_pictures", lambda *_: [])  # each of them takes a second
    return called


def rows_of_csv(path: Path) -> list[list[str]]:
    return list(csv.reader(path.read_text().splitlines()))


def test_the_tables_hold_every_figure(
    study: Path, tmp_path: Path, programs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "write_pictures", picture.write_pictures)
    out = tmp_path / "out"
    assert main([str(study), "--folder", str(out)]) == 0
    assert len(programs) == 12
    each = [math.exp(5 + 0.001 * seed) for seed in (1, 2, 3)]
    header, *numbers = rows_of_csv(out / "table.csv")
    assert header == ["run", "source", "column", "mean", "deviation", "seed 1", "seed 2", "seed 3"]
    by_column = {(line[0], line[2]): [float(cell) for cell in line[3:]] for line in numbers if line[3]}
    spread = statistics.stdev(each)
    assert by_column["small", "test, mem_len 8"] == pytest.approx([statistics.fmean(each), spread, *each])
    assert by_column["large", "ms_per_step"] == [500.0, 0.0, 500.0, 500.0, 500.0]
    small = next(line for line in (out / "table.md").read_text().splitlines() if line.startswith("| small"))
    assert f" {statistics.fmean(each):.2f} ± {spread:.2f} " in small
    large = next(line for line in (out / "table.md").read_text().splitlines() if line.startswith("| large"))
    assert " 38 " in large  # of the losses 5.9 and 4.9 it passes 5.0 at nine tenths of the way from 20 to 40
    assert rows_of_csv(out / "curves.csv")[1] == ["small", "1", "20", "6.001"]
    _, *compared_rows = rows_of_csv(out / "comparisons.csv")
    assert [(line[0], line[1], line[3], line[-1]) for line in compared_rows] == [
        ("large", f"test, mem_len {n}", "-0.1000", "better") for n in (0, 8)
    ]
    content = json.loads((out / "study.json").read_text())
    assert [run["seed"] for run in content["runs"]["small"]] == [1, 2, 3]
    assert content["against_baseline"][1]["difference"] == pytest.approx(-0.1)
    assert imread(out / "study.png").std() > 0
    assert {path.suffix for path in out.glob("study.*")} == {".png", ".pdf", ".svg", ".json"}
    assert r"\toprule" in (out / "table.tex").read_text()


@pytest.mark.parametrize("what", ["texts", "git_commit"])
def test_runs_of_another_text_or_code_are_rows_of_their_own(
    what: str, study: Path, tmp_path: Path, programs: list[str]
) -> None:
    out = tmp_path / "out"
    for seeds, source in (("[1, 2]", "a" * 40), ("[1, 2, 3]", "b" * 40)):
        study.write_text(STUDY.replace("[1, 2, 3]", seeds))
        START[what] = {"train": source} if what == "texts" else source
        assert main([str(study), "--folder", str(out)]) == 0
    names = [line[0] for line in rows_of_csv(out / "table.csv") if line[2] == "test, mem_len 0"]
    assert len(names) == 4
    assert [name.partition(" (")[0] for name in names] == ["small", "small", "large", "large"]
    comparisons = rows_of_csv(out / "comparisons.csv")[1:]
    assert [line[2] for line in comparisons] == ["2", "2", "1", "1"]  # never across sources


def test_a_report_is_never_replaced_by_less(
    study: Path, tmp_path: Path, programs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main([str(study), "--folder", str(out)]) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    study.write_text(STUDY.replace("max_step = 4", "max_step = 5"))
    with pytest.raises(UsageError, match="holds 12 figures of finished runs, and the study file now gives 0"):
        main([str(study), "--folder", str(out)])
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert "remove" not in capsys.readouterr().out


def test_a_typo_is_found_before_the_first_training(study: Path, tmp_path: Path, programs: list[str]) -> None:
    for wrong, named in (("mem_lne = [0, 8]", "evaluations: test: --mem_lne"), ("tgt_len = 'x'", "tgt_len")):
        study.write_text(STUDY.replace("mem_len = [0, 8]", wrong))
        with pytest.raises(UsageError, match=named):
            main([str(study), "--folder", str(tmp_path / "out")])
    assert programs == []


def test_what_is_done_is_not_done_again(study: Path, tmp_path: Path, programs: list[str]) -> None:
    flags = [str(study), "--folder", str(tmp_path / "out")]
    assert main(flags) == 0
    programs.clear()
    assert main([*flags, "--jobs", "2"]) == 0
    assert programs == []
    study.write_text(STUDY + "[evaluations.valid]\nsplit = 'valid'\n")
    assert main(flags) == 0
    assert sorted(programs) == sorted(f"eval {name} {seed}" for name in ("small", "large") for seed in (1, 2, 3))


def test_a_run_with_other_flags_is_not_overwritten(
    study: Path, tmp_path: Path, programs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [str(study), "--folder", str(tmp_path / "out")]
    assert main(flags) == 0
    study.write_text(STUDY.replace("d_model = 32", "d_model = 64"))
    with pytest.raises(UsageError):  # the report
        main(flags)
    assert len(programs) == 12
    assert capsys.readouterr().out.count("was trained with other flags; name another --folder") >= 3


def test_a_failed_run_is_named_and_stops_no_other(
    study: Path, tmp_path: Path, programs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = runner._program

    def failing(task: Task, line: list[str], **how: Any) -> None:
        if task.variant == "large" and task.seed == 2:
            raise TaskError("the disk is full")
        program(task, line, **how)

    monkeypatch.setattr(runner, "_program", failing)
    out = tmp_path / "out"
    assert main([str(study), "--folder", str(out)]) == 1
    assert "large, seed 2: failed: the disk is full" in (out / "table.md").read_text()
    cells = [line.split(" | ") for line in (out / "table.md").read_text().splitlines() if line.startswith("| ")][:4]
    assert {line[0]: line[1] for line in cells if line[0] in ("| small", "| large")} == {"| small": "3", "| large": "2"}


def test_tokens_until_a_loss() -> None:
    run = RunFigures(1, 1, 1, 1.0, None, {}, {}, [(100, 6.0), (200, 5.0), (300, 4.5)])
    assert [tokens_until(run, nats) for nats in (6.5, 6.0, 5.5, 4.75, 4.0)] == [100, 100, 150, 250, None]


def in_here(task: Task, line: list[str], **_: Any) -> None:
    assert not import_module(f"txl.commands.{line[0]}").main(line[1:])


def test_a_training_that_was_stopped_is_gone_on_with(
    write_text: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(TINY.replace("TEXT", str(write_text(tmp_path / "text"))).replace("[runs.b]\nd_model = 8", ""))
    monkeypatch.setattr(runner, "_program", in_here)
    with monkeypatch.context() as patch:
        step = TrainState.step

        def stopped(self: TrainState, *batch: Any) -> Any:
            if self.progress.step == 15:
                raise TaskError("stopped")
            return step(self, *batch)

        patch.setattr(TrainState, "step", stopped)
        assert run_study(read_study(path), tmp_path, jobs=1) == {"a, seed 1": "stopped"}
    assert run_study(read_study(path), tmp_path, jobs=1) == {}
    (records,) = tmp_path.rglob("metrics.jsonl")
    assert resumed_from(records.parent) == [None, 10]


TRAPPED = """
import json, os, sys
if sys.orig_argv[1:4] == ["-m", "txl", "train"]:
    from tests.resume.traps import lay
    lay(**json.loads(os.environ["TRAP"]))
"""
"""Python runs a module of the name sitecustomize at every start: here it traps trainings alone."""


@long_test
@pytest.mark.parametrize("to", ["group", "parent"])
def test_a_study_whose_runner_was_killed_in_a_training_goes_on_with_it(
    to: str, write_text: Callable[..., Path], tmp_path: Path
) -> None:
    """With its training, or without it: that goes on alone, and the next runner waits for its lock."""
    (tmp_path / "sitecustomize.py").write_text(TRAPPED)
    path, log = tmp_path / "s.toml", tmp_path / "log"
    path.write_text(TINY.replace("TEXT", str(write_text(tmp_path / "text"))).replace("[runs.b]\nd_model = 8", ""))
    trap = {"at": ["step", 15], "send": signal.SIGKILL, "to": to, "once": str(tmp_path / "killed")}
    own = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "TRAP": json.dumps(trap)}
    words = [sys.executable, "-m", "txl.studies", str(path), "--folder", str(tmp_path / "out")]
    statuses = []
    for _ in range(2):
        with log.open("ab") as out:
            runner = subprocess.Popen(
                words, cwd=tmp_path, env=ENVIRONMENT | own, stdout=out, stderr=out, process_group=0
            )
        statuses.append(runner.wait(timeout=LIMIT_S))
    assert statuses == [-signal.SIGKILL, 0], log.read_text()
    (records,) = tmp_path.rglob("metrics.jsonl")
    assert resumed_from(records.parent) == ([None, 10] if to == "group" else [None, 40])
    assert "test" in json.loads(next(tmp_path.rglob("done.json")).read_text())["evaluations"]
