"""A study is run to its end whatever stops it, and its table says what differs from chance."""

import csv
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.conftest import long_test
from tests.forks import ENVIRONMENT, LIMIT_S, ROOT
from tests.resume.runs import resumed_from
from txl.config import UsageError
from txl.runtime.lock import Lock
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
REAL = """
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
[evaluations.test]
split = "test"
"""


class Programs:
    """Stand-ins for train and eval, which leave what those leave."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.start: dict[str, Any] = {}
        """What a training knows of itself."""
        self.scored: dict[str, int] = {}
        """Tokens that a validation scores, by variant."""
        self.dataset: dict[str, str] = {}
        """What a token is, by variant."""
        self.fail = self.without = ""
        """A call that fails; a variant and seed whose perplexity is beyond all numbers."""

    def __call__(self, task: Task, line: list[str], **_: Any) -> None:
        name, run, call = line[0], Path(line[2]), f"{line[0]} {task.variant} {task.seed}"
        if call == self.fail:
            raise TaskError("the disk is full")
        self.called.append(call)
        if name == "train":
            run.mkdir()
            nats = 5.0 - 0.1 * (task.variant == "large") + 0.001 * task.seed
            data = {"dataset": self.dataset.get(task.variant, "text")}
            lines: list[dict[str, Any]] = [{"kind": "start", "parameters": 1000, "data": data, **self.start}]
            for step in (2, 4):
                speed = {"speed/ms_per_step": 500.0, "speed/cpu_ms_per_step": 250.0 * step, "mem/peak_gib": 0.5}
                lines.append({"kind": "train", "step": step, "tokens": step * 10, **speed})
                loss = nats + 0.5 * (4 - step)
                lines.append({"kind": "valid", "step": step, "tokens": step * 10, "valid/nll_nats": loss})
                if task.variant in self.scored:
                    lines[-1]["scored_tokens"] = self.scored[task.variant]
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        else:
            nats = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["valid/nll_nats"]
            row = {"split": "test", "tgt_len": 4, "added": "", "nats_per_token": nats, "bits_per_byte": None}
            row["perplexity"] = None if call == f"eval {self.without}" else math.exp(nats)
            rows: list[dict[str, Any]] = [{**row, "mem_len": mem_len} for mem_len in (0, 8)]
            bins = (("from", 0, 3), ("to", 2, 9), ("tokens", 5, 7), ("nats_per_token", nats, nats - 1))
            rows[1]["loss_by_distance"] = [{key: pair[i] for key, *pair in bins} for i in (0, 1)]
            Path(line[4]).write_text(json.dumps({"rows": rows}))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.chdir(tmp_path)
    programs = Programs()
    monkeypatch.setattr(runner, "_program", programs)
    monkeypatch.setattr(report, "write_pictures", lambda *_: [])  # each of them takes a second
    return programs


def study(text: str = STUDY, *flags: str) -> int:
    """Run a study in the folder out; its exit status."""
    Path("mine.toml").write_text(text)
    return main(["mine.toml", "--folder", "out", *flags])


def rows_of_csv(name: str) -> list[list[str]]:
    return list(csv.reader(Path(f"out/{name}.csv").read_text().splitlines()))


def test_the_tables_hold_every_figure(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.image import imread

    monkeypatch.setattr(report, "write_pictures", picture.write_pictures)
    assert study() == 0
    assert len(programs.called) == 12
    each = [math.exp(5 + 0.001 * seed) for seed in (1, 2, 3)]
    mean, spread = statistics.fmean(each), statistics.stdev(each)
    header, *numbers = rows_of_csv("table")
    assert header == ["run", "source", "column", "mean", "deviation", "seed 1", "seed 2", "seed 3"]
    by_column = {(line[0], line[2]): [float(cell) for cell in line[3:]] for line in numbers if line[3]}
    assert by_column["small", "test, mem_len 8"] == pytest.approx([mean, spread, *each])
    assert by_column["large", "ms_per_step"] == [500.0, 0.0, 500.0, 500.0, 500.0]
    assert by_column["large", "cpu_seconds"] == [3.0, 0.0, 3.0, 3.0, 3.0]
    small, large = (
        next(line for line in Path("out/table.md").read_text().splitlines() if line.startswith(f"| {name}"))
        for name in ("small", "large")
    )
    assert f" {mean:.2f} ± {spread:.2f} " in small
    assert " 38 " in large  # of the losses 5.9 and 4.9 it passes 5.0 at nine tenths of the way from 20 to 40
    assert rows_of_csv("curves")[1] == ["small", "1", "20", "6.001"]
    near, far = (line for line in rows_of_csv("distances") if line[:2] == ["large", "test, mem_len 8"])
    assert (near[2:5], far[2:5]) == (["0", "2", "5"], ["3", "9", "7"])
    assert [float(x) for x in far[5:]] == pytest.approx([3.902, 0.001])
    _, *compared_rows = rows_of_csv("comparisons")
    assert [(line[0], line[1], line[3], line[-1]) for line in compared_rows] == [
        ("large", f"test, mem_len {n}", "-0.1000", "better") for n in (0, 8)
    ]
    content = json.loads(Path("out/study.json").read_text())
    assert [run["seed"] for run in content["runs"]["small"]] == [1, 2, 3]
    assert content["comparisons"][1]["difference"] == pytest.approx(-0.1)
    for name, others in (("study", {".json"}), ("distances", {".csv"})):
        assert imread(f"out/{name}.png").std() > 0
        assert {path.suffix for path in Path("out").glob(f"{name}.*")} == {".png", ".pdf", ".svg"} | others
    assert r"\toprule" in Path("out/table.tex").read_text()


@pytest.mark.parametrize("what", ["texts", "git_commit"])
def test_runs_of_another_text_or_code_are_rows_of_their_own(what: str, programs: Programs) -> None:
    for seeds, source in (("[1, 2]", "a" * 40), ("[1, 2, 3]", "b" * 40)):
        programs.start[what] = {"train": source} if what == "texts" else source
        assert study(STUDY.replace("[1, 2, 3]", seeds)) == 0
    names = [line[0] for line in rows_of_csv("table") if line[2] == "test, mem_len 0"]
    assert len(names) == 4
    assert [name.partition(" (")[0] for name in names] == ["small", "small", "large", "large"]
    assert [line[2] for line in rows_of_csv("comparisons")[1:]] == ["2", "2", "1", "1"]  # never across sources


def test_what_is_done_is_not_done_again_or_overwritten(programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    assert study() == 0
    before = {path.name: path.read_bytes() for path in Path("out").iterdir() if path.is_file()}
    programs.called.clear()
    assert study(STUDY, "--jobs", "2") == 0
    assert programs.called == []
    for change in (("max_step = 4", "max_step = 5"), ("d_model = 32", "d_model = 64")):
        with pytest.raises(UsageError, match="holds 12 figures of finished runs, and the study file now gives"):
            study(STUDY.replace(*change))
        said = capsys.readouterr().out
        assert said.count("was trained with other flags; name another --folder") >= 3
        assert "remove" not in said
    assert {path.name: path.read_bytes() for path in Path("out").iterdir() if path.is_file()} == before
    assert programs.called == []
    assert study(STUDY + "[evaluations.valid]\nsplit = 'valid'\n") == 0
    expected = sorted(f"eval {name} {seed}" for name in ("small", "large") for seed in (1, 2, 3))
    assert sorted(programs.called) == expected


def test_an_evaluation_with_other_flags_is_not_reported_and_made_again(programs: Programs) -> None:
    assert study() == 0
    programs.called.clear()
    other = STUDY.replace('split = "test"', 'split = "valid"')
    with pytest.raises(UsageError, match="now gives 0"):
        study(other, "--report_only")
    assert study(other) == 0
    assert sorted(programs.called) == sorted(f"eval {name} {n}" for name in ("small", "large") for n in (1, 2, 3))


def test_a_figure_that_there_is_not_is_an_empty_cell(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """As bits per byte of ids, or a perplexity beyond all numbers, which is null in JSON."""
    monkeypatch.setattr(report, "write_pictures", picture.write_pictures)
    programs.without = "large 2"
    assert study() == 0
    large = next(line for line in rows_of_csv("table") if line[0] == "large" and line[2] == "test, mem_len 0")
    assert [cell != "" for cell in large[3:]] == [True, True, True, False, True]
    Path("out/study.json").unlink()
    assert study(f"metric = 'bits_per_byte'\n{STUDY}") == 0
    assert "| small | 3 |  |" in Path("out/table.md").read_text()


def test_a_typo_is_found_before_the_first_training(programs: Programs) -> None:
    wrongs = {"mem_lne = [0, 8]": "evaluations: test: --mem_lne", "tgt_len = 'x'": "tgt_len", "cache_lambda = 2": "1"}
    for wrong, named in wrongs.items():
        with pytest.raises(UsageError, match=named):
            study(STUDY.replace("mem_len = [0, 8]", wrong))
    with pytest.raises(UsageError, match="runs: large: --d_model 31: must be even"):
        study(STUDY.replace("d_model = 32", "d_model = 31"))
    assert programs.called == []


@pytest.mark.parametrize(("n_large", "dataset"), [(640, "text"), (64, "text"), (640, "bpe")])
def test_curves_of_other_tokens_are_not_compared(n_large: int, dataset: str, programs: Programs) -> None:
    """As with max_eval_steps, where memories are read by as many streams as they allow."""
    programs.scored = {"small": 640, "large": n_large}
    programs.dataset = {"small": "text", "large": dataset}
    assert study() == 0
    text = Path("out/table.md").read_text()
    are_alike = (n_large, dataset) == (640, "text")
    assert ("of other tokens from run to run" in text) != are_alike
    assert (" 38 " in text) == are_alike


def test_a_failed_run_is_named_and_stops_no_other(programs: Programs) -> None:
    programs.fail = "train large 2"
    assert study() == 1
    table = Path("out/table.md").read_text()
    assert "large, seed 2: failed: the disk is full" in table
    cells = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][:4]
    assert {line[0]: line[1] for line in cells if line[0] in ("| small", "| large")} == {"| small": "3", "| large": "2"}


def test_tokens_until_a_loss() -> None:
    run = RunFigures(1, 1, 1, 1.0, None, {}, {}, [(100, 6.0), (200, 5.0), (300, 4.5)])
    assert [tokens_until(run, nats) for nats in (6.5, 6.0, 5.5, 4.75, 4.0)] == [100, 100, 150, 250, None]


# real programs


@pytest.fixture
def real(write_text: Callable[..., Path], tmp_path: Path) -> Path:
    """The file of a study of one run."""
    path = tmp_path / "s.toml"
    path.write_text(REAL.replace("TEXT", str(write_text(tmp_path / "text"))))
    return path


def in_here(task: Task, line: list[str], **_: Any) -> None:
    assert not import_module(f"txl.commands.{line[0]}").main(line[1:])


def test_a_stopped_training_is_gone_on_with(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_program", in_here)
    with monkeypatch.context() as patch:
        step = TrainState.step

        def stopped(self: TrainState, *batch: Any) -> Any:
            if self.progress.step == 15:
                raise TaskError("stopped")
            return step(self, *batch)

        patch.setattr(TrainState, "step", stopped)
        assert run_study(read_study(real), tmp_path, jobs=1) == {"a, seed 1": "stopped"}
    assert run_study(read_study(real), tmp_path, jobs=1) == {}
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
def test_a_study_whose_runner_was_killed_in_a_training_goes_on_with_it(to: str, real: Path, tmp_path: Path) -> None:
    """With its training, or without it: that goes on alone, and the next runner waits for its lock."""
    (tmp_path / "sitecustomize.py").write_text(TRAPPED)
    trap = {"at": ["step", 15], "send": signal.SIGKILL, "to": to, "once": str(tmp_path / "killed")}
    own = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "TRAP": json.dumps(trap)}
    words = [sys.executable, "-m", "txl.studies", str(real), "--folder", str(tmp_path / "out")]
    statuses = []
    for _ in range(2):
        with (tmp_path / "log").open("ab") as out:
            runner = subprocess.Popen(
                words, cwd=tmp_path, env=ENVIRONMENT | own, stdout=out, stderr=out, process_group=0
            )
        statuses.append(runner.wait(timeout=LIMIT_S))
    assert statuses == [-signal.SIGKILL, 0], (tmp_path / "log").read_text()
    (records,) = tmp_path.rglob("metrics.jsonl")
    assert resumed_from(records.parent) == ([None, 10] if to == "group" else [None, 40])
    assert "test" in json.loads(next(tmp_path.rglob("done.json")).read_text())["evaluations"]


STANDS_IN = """#!{python}
import os, signal
from pathlib import Path
from threading import Thread
fifo = open("started", "w")
signal.signal(signal.SIGTERM, lambda *_: (Path("saved").touch(), os._exit(0)))
fifo.write("x")
fifo.close()
signal.pause()
"""


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGUSR1, 0), (signal.SIGUSR2, 0)],
)
def test_a_study_that_is_asked_to_stop_asks_its_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, status: int
) -> None:
    """A program that has saved and ends with 0 is not taken for a finished training, and no other begins."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program"
    program.write_text(STANDS_IN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    os.mkfifo("started")

    def ask() -> None:
        Path("started").read_text()
        os.kill(os.getpid(), number)

    asking = Thread(target=ask)
    before = signal.signal(number, signal.SIG_DFL)  # nohup has SIGHUP ignored
    asking.start()
    assert study() == status
    asking.join()
    signal.signal(number, before)
    assert "; started again, the study goes on from here" in capsys.readouterr().out
    assert Path("saved").exists()
    assert [path.name for path in Path("out/runs").glob("*/*")] == ["seed_1"]
    assert not list(Path("out").rglob("done.json"))
    assert not list(Path("out").rglob(".lock"))


def test_a_study_that_waits_for_another_runner_can_be_stopped(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path("out/runs/small/seed_1")
    folder.mkdir(parents=True)
    held = Lock(folder / ".lock")
    waited = threading.Event()
    monkeypatch.setattr("txl.runtime.lock.time.sleep", lambda _: waited.set())

    def ask() -> None:
        waited.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    asking = Thread(target=ask)
    asking.start()
    assert study() == 143
    asking.join()
    assert programs.called == []
    held.remove()
