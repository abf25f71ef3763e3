"""A study is run to its end whatever stops it, and its table says what differs from chance."""

import csv
import json
import math
import random
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from scipy.stats import ttest_rel

from tests import forks
from tests.forks import Fork
from tests.resume.runs import resumed_from
from txl.studies import runner
from txl.studies.__main__ import main
from txl.studies.plan import Study, Task, read_study
from txl.studies.results import RunFigures, compared, figures, paired_p, tokens_until
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


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand-ins for train and eval, which leave what those leave; lists what was called."""
    called: list[str] = []

    def program(task: Task, line: list[str], **_: Any) -> None:
        name, run = line[0], Path(line[2])
        called.append(f"{name} {task.variant} {task.seed}")
        if name == "train":
            run.mkdir()
            nats = 5.0 - 0.1 * (task.variant == "large") + 0.001 * task.seed
            lines: list[dict[str, Any]] = [{"kind": "start", "parameters": 1000}]
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
    return called


def test_the_table_compares_over_seeds(study: Path, tmp_path: Path, programs: list[str]) -> None:
    out = tmp_path / "out"
    assert main([str(study), "--folder", str(out)]) == 0
    assert len(programs) == 12
    header, small, large = csv.reader((out / "table.csv").read_text().splitlines())
    assert header[:5] == ["run", "seeds", "test, mem_len 0", "test, mem_len 8", "against the baseline"]
    mean = sum(math.exp(5 + 0.001 * seed) for seed in (1, 2, 3)) / 3
    assert small[:3] == ["small", "3", f"{mean:.2f} ± {0.001 * mean:.2f}"]
    assert small[4:] == ["baseline", "1,000", "40", "40", "2", "0.50"]
    assert large[4].startswith("-0.1000 nats, better, p = ")
    assert large[7] == "38"  # of the losses 5.9 and 4.9 it passes 5.0 at nine tenths of the way from 20 to 40
    content = json.loads((out / "study.json").read_text())
    assert content["against_baseline"]["large"]["test, mem_len 8"]["difference"] == pytest.approx(-0.1)
    assert [run["seed"] for run in content["runs"]["small"]] == [1, 2, 3]
    assert imread(out / "study.png").std() > 0
    assert r"\toprule" in (out / "table.tex").read_text()


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
    assert main(flags) == 1
    assert capsys.readouterr().out.count("was trained with other flags; name another --folder, or remove it") >= 3


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
    _, small, large = csv.reader((out / "table.csv").read_text().splitlines())
    assert (small[1], large[1]) == ("3", "2")


def run_figures(seed: int, nats: float) -> RunFigures:
    return RunFigures(seed, 1, 1, 1.0, None, {"a": math.exp(nats)}, {"a": nats})


def test_comparisons_are_students_paired_test() -> None:
    dice = random.Random(3)
    ours, theirs = ([dice.gauss(5, 0.1) for _ in range(5)] for _ in range(2))
    assert paired_p([a - b for a, b in zip(ours, theirs, strict=True)]) == pytest.approx(ttest_rel(ours, theirs).pvalue)
    pairs = [[run_figures(i, x) for i, x in enumerate(some)] for some in (ours, theirs)]
    noise = compared(*pairs, "a")
    assert noise is not None
    assert noise.verdict == "within noise"
    assert compared(pairs[0], [run_figures(9, 7.0)], "a") is None  # no seed in common
    alone = compared([run_figures(1, 4.0)], [run_figures(1, 5.0)], "a")
    assert alone is not None
    assert (alone.difference, alone.verdict) == (-1.0, "one seed")


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


@pytest.mark.slow
def test_a_killed_study_goes_on_with_the_same_figures(
    write_text: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner is killed, and so are its programs or not; two runners then finish it side by side. The study that it
    is compared with runs in this process."""
    text = write_text(tmp_path / "text")
    path = tmp_path / "s.toml"
    path.write_text(TINY.replace("TEXT", str(text)))

    flags = [str(path), "--folder", str(tmp_path / "killed"), "--jobs", "2"]

    def begin(**named: Any) -> Fork:
        return forks.start("tests.studies.forked:study", tmp_path / "log", flags=flags, **named)

    for step, to in ((15, "group"), (8, "parent")):
        trap = {"at": ("step", step), "to": to, "once": str(tmp_path / to)}
        assert begin(trap=trap).wait() == -signal.SIGKILL, (tmp_path / "log").read_text()
    together = [begin(), begin()]
    study: Study = read_study(path)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_program", in_here)
        assert run_study(study, tmp_path / "whole" / "runs", jobs=1) == {}
    assert [program.wait() for program in together] == [0, 0]
    first, second = (figures(study, tmp_path / name / "runs") for name in ("whole", "killed"))
    for name in ("a", "b"):
        assert [run.nats for run in first[name]] == [run.nats for run in second[name]]
        assert len(first[name]) == 1
    assert run_study(study, tmp_path / "killed" / "runs", jobs=1) == {}
    assert any(10 in resumed_from(path.parent) for path in (tmp_path / "killed").rglob("metrics.jsonl"))
