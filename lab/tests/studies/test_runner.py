"""A study is run to its end whatever stops it, and its table says what differs from chance."""

import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import IO, Any

import pytest

from lab.studies import page, report, runner
from lab.studies.__main__ import main
from lab.studies.checks import expected_columns, require_texts
from lab.studies.figures import Figures
from lab.studies.page_tables import TABLES
from lab.studies.plan import Study, Task, read_study
from lab.studies.results import RunFigures, best_row, tokens_until
from lab.studies.runner import TaskError, _program, keeps_losses, next_value, run_study
from tests.conftest import long_test
from tests.forks import ENVIRONMENT, LIMIT_S, ROOT
from tests.resume.runs import resumed_from
from tests.stand_ins import write_program
from txl.config import UsageError
from txl.runtime.lock import Lock
from txl.runtime.signals import GO_ON
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
        self.fail = self.without = self.diverges = self.overflows = ""
        """A call that fails; a variant and seed whose perplexity is beyond all numbers; a training that diverges; one
        whose last validation is not finite."""
        self.kept: list[str] = []
        """Files of the losses of tokens."""
        self.best_rate: dict[str, float] = {}
        self.rates: dict[str, float] = {}
        """The best learning rate of a variant; those of trainings."""
        self.again = 0.0
        """By how much a second training is worse."""

    def __call__(self, task: Task, line: list[str], **_: Any) -> None:
        name, run, call = line[0], Path(line[2]), f"{line[0]} {task.variant} {task.seed}"
        if call == self.fail:
            raise TaskError("the disk is full")
        self.called.append(call)
        if name == "train" and self.diverges and task.variant.startswith(self.diverges):
            raise TaskError(
                "txl train: step 1, epoch 1, segment 1: the loss is not finite on rank 0; lower --lr"
            )
        if name == "train":
            run.mkdir()
            nats = (
                5.0
                - 0.1 * (task.variant == "large")
                + 0.001 * task.seed
                + self.again * task.is_rerun
            )
            if self.best_rate:
                self.rates[f"{task.variant} {task.seed}"] = task.flags["lr"]
                nats = 5.0 + abs(
                    math.log(task.flags["lr"] / self.best_rate[task.variant.split(",")[0]])
                )
            data = {"dataset": self.dataset.get(task.variant, "text")}
            lines: list[dict[str, Any]] = [
                {"kind": "start", "parameters": 1000, "data": data, **self.start}
            ]
            for step in (2, 4):
                speed = {
                    "speed/ms_per_step": 500.0,
                    "speed/cpu_ms_per_step": 250.0 * step,
                    "mem/peak_gib": 0.5,
                }
                lines.append({"kind": "train", "step": step, "tokens": step * 10, **speed})
                loss = nats + 0.5 * (4 - step)
                lines.append(
                    {"kind": "valid", "step": step, "tokens": step * 10, "valid/nll_nats": loss}
                )
                if task.variant == self.overflows and step == 4:
                    lines[-1]["valid/nll_nats"] = None
                if task.variant in self.scored:
                    lines[-1]["scored_tokens"] = self.scored[task.variant]
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        else:
            self.kept += (
                [line[line.index("--token_losses") + 1]] if "--token_losses" in line else []
            )
            nats = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])[
                "valid/nll_nats"
            ]
            row = {
                "split": "test",
                "tgt_len": 4,
                "added": "",
                "nats_per_token": nats,
                "bits_per_byte": None,
            }
            row["perplexity"] = None if call == f"eval {self.without}" else math.exp(nats)
            rows: list[dict[str, Any]] = [{**row, "mem_len": mem_len} for mem_len in (0, 8)]
            bins = (
                ("from", 0, 3),
                ("to", 2, 9),
                ("tokens", 5, 7),
                ("nats_per_token", nats, nats - 1),
            )
            rows[1]["loss_by_distance"] = [{key: pair[i] for key, *pair in bins} for i in (0, 1)]
            Path(line[4]).write_text(json.dumps({"rows": rows}))


def write_splits(folder: Path, names: tuple[str, ...] = ("train", "valid", "test")) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.txt").write_text(" a text\n")


WRITE_PICTURES = report.write_pictures


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.chdir(tmp_path)
    write_splits(Path("data/wikitext-103"))
    programs = Programs()
    monkeypatch.setattr(runner, "_program", programs)
    monkeypatch.setattr(report, "write_pictures", lambda *_: [])  # each of them takes a second
    return programs


def study(text: str = STUDY, *flags: str) -> int:
    """Run a study in the folder out; its exit status."""
    Path("mine.toml").write_text(text)
    return main(["mine.toml", "--folder", "out", *flags])


def test_the_tables_hold_every_figure(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.image import imread

    monkeypatch.setattr(report, "write_pictures", WRITE_PICTURES)
    assert study() == 0
    assert len(programs.called) == 12
    each = [math.exp(5 + 0.001 * seed) for seed in (1, 2, 3)]
    mean, spread = statistics.fmean(each), statistics.stdev(each)
    content = json.loads(Path("out/study.json").read_text())
    small, large = (content["runs"][name] for name in ("small", "large"))
    assert [run["seed"] for run in small] == [1, 2, 3]
    assert [run["values"]["test, mem_len 8"] for run in small] == pytest.approx(each)
    assert [run["ms_per_step"] for run in large] == [500.0] * 3
    assert [run["cpu_seconds"] for run in large] == [3.0] * 3
    assert small[0]["curve"][0] == [20, 6.001]
    near, far = large[0]["distances"]["test, mem_len 8"]
    assert (near["from"], near["to"], near["tokens"]) == (0, 2, 5)
    assert (far["from"], far["to"], far["tokens"]) == (3, 9, 7)
    table = Path("out/table.md").read_text()
    assert f" {mean:.2f} ± {spread:.2f} " in table
    # of the losses 5.9 and 4.9 it passes 5.0 at nine tenths of the way from 20 to 40
    assert " 38 " in table
    assert [(one["run"], one["column"], one["verdict"]) for one in content["comparisons"]] == [
        ("large", f"test, mem_len {n}", "better") for n in (0, 8)
    ]
    assert content["comparisons"][1]["difference"] == pytest.approx(-0.1)
    written = {path.name for path in Path("out").iterdir()} - {"runs"}
    pictures = {f"{name}.{kind}" for name in ("study", "distances") for kind in ("png", "svg")}
    assert written == {"study.json", "table.md", *pictures}
    for name in ("study", "distances"):
        assert imread(f"out/{name}.png").std() > 0


@pytest.mark.parametrize("what", ["texts", "git_commit"])
def test_runs_of_another_text_or_code_are_rows_of_their_own(what: str, programs: Programs) -> None:
    for seeds, source in (("[1, 2]", "a" * 40), ("[1, 2, 3]", "b" * 40)):
        programs.start[what] = {"train": source} if what == "texts" else source
        assert study(STUDY.replace("[1, 2, 3]", seeds)) == 0
    content = json.loads(Path("out/study.json").read_text())
    names = list(content["runs"])
    assert len(names) == 4
    assert [name.partition(" (")[0] for name in names] == ["small", "small", "large", "large"]
    # never across sources
    assert [one["seeds"] for one in content["comparisons"]] == [2, 2, 1, 1]


@pytest.mark.parametrize(("device", "named"), [("cpu", "EPYC"), ("NVIDIA H200", "NVIDIA H200")])
def test_a_report_names_what_the_rows_were_trained_on(
    device: str, named: str, programs: Programs
) -> None:
    programs.start |= {"processor": "EPYC", "device": device}
    assert study() == 0
    assert f"\n\nProcessor: {named}.\n" in Path("out/table.md").read_text()


def test_what_is_done_is_not_done_again_or_overwritten(
    programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study() == 0
    before = {path.name: path.read_bytes() for path in Path("out").iterdir() if path.is_file()}
    programs.called.clear()
    assert study(STUDY, "--jobs", "2") == 0
    assert programs.called == []
    for change in (("max_step = 4", "max_step = 5"), ("d_model = 32", "d_model = 64")):
        with pytest.raises(
            UsageError, match="holds 12 figures of finished runs, and the study file now gives"
        ):
            study(STUDY.replace(*change))
        said = capsys.readouterr().out
        assert said.count("was trained with other flags; name another --folder") >= 3
        assert "remove" not in said
    assert {
        path.name: path.read_bytes() for path in Path("out").iterdir() if path.is_file()
    } == before
    assert programs.called == []
    assert study(STUDY + "[evaluations.valid]\nsplit = 'valid'\n") == 0
    expected = sorted(f"eval {name} {seed}" for name in ("small", "large") for seed in (1, 2, 3))
    assert sorted(programs.called) == expected


def test_a_training_that_was_stopped_is_not_gone_on_with_by_other_flags(
    programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    """train.py would go on: of how long a run is, another length may be asked for."""
    one = ["--only", "small", "--seeds", "1"]
    programs.fail = "train small 1"
    assert study(STUDY, *one) == 1
    Path("out/runs/small/seed_1/run").mkdir()
    programs.fail = ""
    assert study(STUDY.replace("max_step = 4", "max_step = 3"), *one) == 1
    said = capsys.readouterr().out
    assert "small, seed 1: failed: out/runs/small/seed_1: its training began with other" in said
    assert "train small 1" not in programs.called


def test_an_evaluation_with_other_flags_is_not_reported_and_made_again(programs: Programs) -> None:
    assert study() == 0
    programs.called.clear()
    other = STUDY.replace('split = "test"', 'split = "valid"')
    with pytest.raises(UsageError, match="now gives 0"):
        study(other, "--report_only")
    assert study(other) == 0
    assert sorted(programs.called) == sorted(
        f"eval {name} {n}" for name in ("small", "large") for n in (1, 2, 3)
    )


def test_a_figure_that_there_is_not_is_an_empty_cell(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bits per byte of ids, or a perplexity beyond all numbers, which is null in JSON."""
    monkeypatch.setattr(report, "write_pictures", WRITE_PICTURES)
    programs.without = "large 2"
    assert study() == 0
    runs = json.loads(Path("out/study.json").read_text())["runs"]["large"]
    values = [run["values"].get("test, mem_len 0") for run in runs]
    assert [value is None for value in values] == [False, True, False]
    known = [values[0], values[2]]
    shown = f"{statistics.fmean(known):.2f} ± {statistics.stdev(known):.2f} (2 of 3)"
    assert f"| large | 3 | {shown} |" in Path("out/table.md").read_text()
    table = TABLES["metric"](Figures(Path("out/study.json")), digits={"test, mem_len 0": 2})
    assert f"| large | 3 | {shown} |" in table
    Path("out/study.json").unlink()
    assert study(f"metric = 'bits_per_byte'\n{STUDY}") == 0
    assert "| small | 3 |  |" in Path("out/table.md").read_text()


def test_a_typo_is_found_before_the_first_training(programs: Programs) -> None:
    wrongs = {
        "mem_lne = [0, 8]": "evaluations: test: --mem_lne",
        "tgt_len = 'x'": "tgt_len",
        "cache_lambda = 2": "1",
    }
    for wrong, named in wrongs.items():
        with pytest.raises(UsageError, match=named):
            study(STUDY.replace("mem_len = [0, 8]", wrong))
    with pytest.raises(UsageError, match="runs: large: --d_model 31: must be even"):
        study(STUDY.replace("d_model = 32", "d_model = 31"))
    assert programs.called == []


CONTRAST = """
[contrasts.size]
of = [["large", "test, mem_len 8"]]
against = [["small", "test, mem_len 8"]]
"""


def test_a_contrast_that_never_comes_is_refused_before_the_first_training(
    programs: Programs,
) -> None:
    wrong = CONTRAST.replace('"small", "test, mem_len 8"', '"small", "test, mem_len 64"')
    with pytest.raises(
        UsageError,
        match=r"contrasts.size: 'test, mem_len 64': no such column of 'small'; there are",
    ):
        study(STUDY + wrong)
    both = STUDY.replace('split = "test"', "") + CONTRAST.replace("test, mem", "test, test, mem")
    Path("data/wikitext-103/valid.txt").rename("valid.txt")
    with pytest.raises(UsageError, match=r"valid.txt: no such file"):
        study(both)
    Path("valid.txt").rename("data/wikitext-103/valid.txt")
    assert programs.called == []
    assert not Path("out").exists()
    assert study(STUDY + CONTRAST) == 0


def test_columns_of_one_name_are_refused_before_the_first_training(programs: Programs) -> None:
    """Of the two only the last would be reported."""
    for other in (
        '[evaluations."test, mem_len 8"]\nsplit = "test"\nmem_len = [4]\n',
        '[evaluations.all]\n[best]\n"test, mem_len 8" = "all"\n',
    ):
        with pytest.raises(UsageError, match=r"'test, mem_len 8': is a column of two evaluations"):
            study(STUDY + other)
    assert programs.called == []


def test_the_best_memory_is_chosen_on_valid_and_read_on_test() -> None:
    def row(split: str, mem_len: int, nats: float) -> dict[str, Any]:
        return {
            "split": split,
            "tgt_len": 4,
            "mem_len": mem_len,
            "added": "",
            "nats_per_token": nats,
        }

    rows = [row("valid", 0, 5.0), row("valid", 8, 4.0), row("test", 0, 3.0), row("test", 8, 3.5)]
    assert best_row(rows) == rows[3]
    assert best_row(rows[2:]) is None
    assert best_row(rows[:2]) is None


def test_a_contrast_may_be_of_the_best_memory(programs: Programs) -> None:
    text = (
        STUDY.replace('split = "test"', "")
        + '[best]\nown = "test"\n'
        + CONTRAST.replace("test, mem_len 8", "own")
    )
    assert study(text, "--report_only") == 0
    with pytest.raises(UsageError, match="'owm': no such column; it begins with one of test, own"):
        study(text.replace('"own"]', '"owm"]'))


@pytest.mark.parametrize(
    ("flags", "columns"),
    [
        ({}, ["one, valid", "one, test"]),
        ({"split": "test", "mem_len": [8, 8]}, ["one"]),
        ({"split": "test", "mem-len": [0, 8]}, ["one, mem_len 0", "one, mem_len 8"]),
        ({"split": "test", "cache_size": 10}, ["one, plain", "one, cache"]),
        ({"text": "a.txt", "tgt_len": [2, 4]}, ["one, tgt_len 2", "one, tgt_len 4"]),
    ],
)
def test_columns_are_known_before_the_evaluation(flags: dict[str, Any], columns: list[str]) -> None:
    assert expected_columns("one", flags, lambda: ("valid", "test")) == columns


def test_a_text_that_is_missing_is_named_before_the_first_training(programs: Programs) -> None:
    elsewhere = STUDY.replace("d_model = 32", 'd_model = 32\ndata = "nowhere"')
    scored = STUDY.replace('split = "test"', 'text = "my.txt"')
    cases = {
        "runs: large: nowhere: no such folder": elsewhere,
        "evaluations: test: my.txt: no such file": scored,
        "evaluations: test: other: no such folder": STUDY.replace(
            'split = "test"', 'split = "test"\ndata = "other"'
        ),
    }
    for why, text in cases.items():
        with pytest.raises(UsageError, match=why):
            study(text)
    Path("data/wikitext-103/test.txt").unlink()
    with pytest.raises(UsageError, match=r"evaluations: test: .*test.txt: no such file"):
        study()
    assert programs.called == []
    for later in (
        'data = "https://example.org/text"',
        'init_from = "model"',
        'dataset = "pydoc"\ndata = "docs"',
    ):
        require_texts(
            plan_of(STUDY.replace("[train]", f"[train]\n{later}").replace('split = "test"', ""))
        )


def plan_of(text: str) -> Study:
    Path("mine.toml").write_text(text)
    return read_study(Path("mine.toml"))


def test_a_part_of_a_study_is_trained_alone(
    programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study(STUDY, "--only", "small", "--seeds", "2", "3") == 0
    assert programs.called == [
        f"{program} small {seed}" for seed in (2, 3) for program in ("train", "eval")
    ]
    assert "| large | 0 |" in capsys.readouterr().out
    programs.called.clear()
    assert study(STUDY, "--only", "large", "--only", "small", "--seeds", "1") == 0
    assert programs.called == [
        f"{program} {name} 1" for name in ("small", "large") for program in ("train", "eval")
    ]
    with pytest.raises(UsageError, match="--only tiny: no such row; there are small, large"):
        study(STUDY, "--only", "tiny")
    with pytest.raises(UsageError, match="--seeds 9: no such seed; the study has 1, 2, 3"):
        study(STUDY, "--seeds", "9")


def test_what_is_evaluated_keeps_the_loss_of_each_token(programs: Programs) -> None:
    """But where tokens have no place in a split."""
    assert study() == 0
    assert {Path(name).name for name in programs.kept} == {"test.npz"}
    assert keeps_losses({"split": "test", "convention": "original"}, {})
    assert not keeps_losses({"convention": "original"}, {"dataset": "lm1b"})
    assert not keeps_losses({"text": "my.txt"}, {})


def test_contrasts_that_were_chosen_late_have_no_verdict(programs: Programs) -> None:
    """Though those of before them are corrected for without them."""
    late = CONTRAST.replace("size", "late").replace("mem_len 8", "mem_len 0")
    late = late.replace("[contrasts]\n", "").rstrip() + "\nexploratory = true\n"
    assert study(STUDY + CONTRAST + late) == 0
    table = Path("out/table.md").read_text()
    verdicts = [line.split(" | ")[-1].strip(" |") for line in table.splitlines() if "| " in line]
    assert {"better", "exploratory"} <= set(verdicts)
    assert "corrected for the 1 comparisons" in table
    assert "1 of 2 contrasts were chosen with figures in sight" in table


SEARCH = """
[search]
factor = 2
[search.train]
max_step = 2
"""


def test_a_rate_is_searched_for_every_row_alike(programs: Programs) -> None:
    """Until the best has a worse one on both sides; trainings that diverge are the worst."""
    text = STUDY.replace("max_step = 4", "max_step = 4\nlr = 0.01") + SEARCH
    programs.best_rate = {"small": 0.01, "large": 0.04}
    programs.diverges = "large, lr 0.08"
    assert study(text, "--seeds", "1") == 0
    tried = [call.removeprefix("train ") for call in programs.called if ", lr" in call]
    small = [f"small, lr {lr} 101" for lr in (0.01, 0.005, 0.02)]
    assert tried == [*small, *(f"large, lr {lr} 101" for lr in (0.01, 0.005, 0.02, 0.04, 0.08))]
    assert (programs.rates["small 1"], programs.rates["large 1"]) == (0.01, 0.04)
    programs.called.clear()
    programs.diverges = ""
    assert study(text, "--report_only") == 0
    assert study(text, "--seeds", "2") == 0
    assert [call for call in programs.called if ", lr" in call] == []
    assert programs.rates["large 2"] == 0.04
    content = json.loads(Path("out/study.json").read_text())
    losses: dict[str, Any] = {
        f"{lr:g}": 5 + abs(math.log(lr / 0.04)) for lr in (0.01, 0.005, 0.02, 0.04)
    }
    losses = {lr: pytest.approx(loss) for lr, loss in losses.items()} | {"0.08": None}
    assert content["search"]["large"] == {"lr": 0.04, "tried": losses}
    assert "| large | 0.005: 7.0794; " in Path("out/table.md").read_text()
    assert "; 0.08: diverged |" in Path("out/table.md").read_text()


def test_the_last_validation_of_a_search_counts_though_it_is_not_finite(
    programs: Programs,
) -> None:
    """One before it may be the best of all."""
    text = STUDY.replace("max_step = 4", "max_step = 4\nlr = 0.01") + SEARCH
    programs.best_rate = {"small": 0.02, "large": 0.01}
    programs.overflows = "small, lr 0.02"
    assert study(text, "--seeds", "1") == 0
    assert "| small | 0.005: 6.3863; **0.01: 5.6931**; 0.02: diverged |" in (
        Path("out/table.md").read_text()
    )


def test_a_search_without_a_training_that_stays_finite_has_no_best(programs: Programs) -> None:
    text = STUDY.replace("max_step = 4", "max_step = 4\nlr = 0.01") + SEARCH
    text += '[search.like]\nlarge = "small"\n'
    programs.best_rate = {"small": 0.01}
    programs.diverges = "small, lr "
    assert study(text, "--seeds", "1") == 1
    table = Path("out/table.md").read_text()
    assert "| small | 0.005: diverged; 0.01: diverged; 0.02: diverged |" in table
    assert "| none, taken from small |" in table


def test_a_search_may_be_a_share_of_the_training(programs: Programs) -> None:
    """Of each row's own; rows that differ in their length only no longer share trainings."""
    text = STUDY.replace("max_step = 4", "max_step = 4\nwarmup_step = 2\nlr = 0.01") + SEARCH
    text = text.replace("[search.train]\nmax_step = 2", "share = 0.5")
    text = text.replace("[runs.large]", "[runs.large]\nmax_step = 12")
    programs.best_rate = {"small": 0.01, "large": 0.01}
    assert study(text, "--seeds", "1") == 0
    lengths = set()
    for path in Path("out/runs/search").glob("*/done.json"):
        flags = json.loads(path.read_text())["train"]
        lengths.add((flags["max_step"], flags["warmup_step"], flags["eval_interval"]))
    assert lengths == {(2, 1, 2), (6, 1, 6)}


def test_a_row_may_take_the_value_found_for_another(programs: Programs) -> None:
    text = STUDY.replace("max_step = 4", "max_step = 4\nlr = 0.01")
    text += '[search]\nfactor = 2\nshare = 0.5\n[search.like]\nlarge = "small"\n'
    programs.best_rate = {"small": 0.02, "large": 0.01}
    assert study(text, "--seeds", "1") == 0
    tried = [call for call in programs.called if ", lr" in call]
    assert tried == [f"train small, lr {lr} 101" for lr in (0.01, 0.005, 0.02, 0.04)]
    assert (programs.rates["small 1"], programs.rates["large 1"]) == (0.02, 0.02)
    assert "| small | 0.005: " in Path("out/table.md").read_text()
    assert "| large | **0.02**, taken from small |" in Path("out/table.md").read_text()
    content = json.loads(Path("out/study.json").read_text())
    assert content["search"]["large"] == {"lr": 0.02, "like": "small"}


def test_a_whole_number_is_not_searched(programs: Programs) -> None:
    """It would be asked for as 1.0 after all checks."""
    text = STUDY.replace("max_step = 4", "max_step = 4\nwarmup_step = 2") + SEARCH
    with pytest.raises(UsageError, match=r"search: small: --warmup_step: invalid int value"):
        study(text.replace("factor", 'of = "warmup_step"\nfactor'))
    assert programs.called == []


def test_the_next_value_of_a_search() -> None:
    assert next_value(1.0, 2.0, {1.0: 3.0, 0.5: 2.0, 2.0: 9.0}) == 0.25
    assert next_value(1.0, 2.0, {1.0: 3.0, 0.5: 2.0, 2.0: 9.0, 0.25: 2.5}) is None
    assert next_value(1.0, 2.0, dict.fromkeys([1.0, 0.5, 2.0], math.inf)) is None
    rising = {1.0 * 2**n: -n for n in range(-1, 6)}
    assert next_value(1.0, 2.0, rising) is None  # enough is tried


def test_a_second_training_with_the_same_seed_is_a_part_of_the_spread(programs: Programs) -> None:
    programs.again = 0.25
    assert study(STUDY + "[reruns]\nlarge = [2]\n", "--seeds", "1", "2", "3") == 0
    assert programs.called.count("train large 2") == 1  # on another day
    assert study(STUDY + "[reruns]\nlarge = [2]\n") == 0
    assert programs.called[-2:] == ["train large 2", "eval large 2"]
    table = Path("out/table.md").read_text()
    assert "| large | 3 + 1 again |" in table
    assert (
        "large, seed 2, was trained on 1970-01-01 and again on 1970-01-01: at most +0.2500 nats"
        in table
    )
    content = json.loads(Path("out/study.json").read_text())
    assert [run["is_rerun"] for run in content["runs"]["large"]] == [False] * 3 + [True]
    assert content["reruns"][0]["differences"]["test, mem_len 8"] == pytest.approx(0.25)
    assert content["comparisons"][0]["spread"] > 0.05


def test_a_row_may_have_seeds_of_its_own(programs: Programs) -> None:
    assert study(STUDY.replace("d_model = 32", "d_model = 32\nseeds = [1, 7]")) == 0
    assert [call for call in programs.called if call.startswith("train large")] == [
        "train large 1",
        "train large 7",
    ]
    content = json.loads(Path("out/study.json").read_text())
    assert [one["seeds"] for one in content["comparisons"]] == [1, 1]


def test_a_row_may_be_read_with_flags_of_its_own(programs: Programs) -> None:
    """They are part of what was done: others are evaluated anew, of that row alone."""
    own = "[runs.large.evaluations.test]\nmem_len = 4\n"
    text = STUDY.replace("[evaluations", own + "[evaluations", 1)
    assert study(text) == 0
    flags = [
        json.loads(path.read_text())["evaluations"]["test"]["flags"]
        for path in sorted(Path("out").glob("runs/*/seed_1/done.json"))
    ]
    assert [one["mem_len"] for one in flags] == [4, [0, 8]]
    programs.called.clear()
    assert study(text.replace("mem_len = 4", "mem_len = 5")) == 0
    assert {call.split()[0] + " " + call.split()[1] for call in programs.called} == {"eval large"}


@pytest.mark.parametrize(("n_large", "dataset"), [(640, "text"), (64, "text"), (640, "bpe")])
def test_curves_of_other_tokens_are_not_compared(
    n_large: int, dataset: str, programs: Programs
) -> None:
    """As with max_eval_steps, where memories are read by as many streams as they allow."""
    programs.scored = {"small": 640, "large": n_large}
    programs.dataset = {"small": "text", "large": dataset}
    assert study() == 0
    text = Path("out/table.md").read_text()
    are_alike = (n_large, dataset) == (640, "text")
    assert ("of other tokens from run to run" in text) != are_alike
    assert (" 38 " in text) == are_alike
    if not are_alike:
        assert "max_eval_steps" in text
        both = STUDY.replace(
            "max_step = 4", "max_step = 4\nmax_eval_steps = 2\neval_batch_size = 2"
        )
        shutil.rmtree("out")
        assert study(both) == 0
        text = Path("out/table.md").read_text()
        assert "of other tokens from run to run" in text
        assert "max_eval_steps" not in text, "both were given"


def test_a_failed_run_is_named_and_stops_no_other(programs: Programs) -> None:
    programs.fail = "train large 2"
    assert study() == 1
    table = Path("out/table.md").read_text()
    assert "large, seed 2: failed: the disk is full" in table
    cells = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][:4]
    assert {line[0]: line[1] for line in cells if line[0] in ("| small", "| large")} == {
        "| small": "3",
        "| large": "2",
    }


def ending(status: int, says: str) -> Any:
    """Programs of which each prints that and ends."""

    class Ending:
        @staticmethod
        def run(_: list[str], *, stdout: IO[bytes], **__: Any) -> int:
            stdout.write(f"{says}\n\n".encode())
            stdout.flush()
            return status

    return Ending()


@pytest.mark.parametrize("says", ["txl train: the disk is full", "the disk is full", ""])
def test_a_failure_names_the_program(says: str, tmp_path: Path) -> None:
    programs = ending(9, says)
    lock = Lock(tmp_path / ".lock")
    with pytest.raises(TaskError) as caught:
        _program(Task("a", 1, {}, tmp_path), ["train"], programs=programs, n_thread=1, lock=lock)
    lock.remove()
    assert str(caught.value) == "txl train: " + (
        "the disk is full" if says else f"ended with status 9; see {tmp_path / 'log.txt'}"
    )


def test_a_training_that_was_stopped_is_not_done_whatever_its_status(tmp_path: Path) -> None:
    """A time limit, or what Slurm sends before one, ends it with 0."""
    says = f"txl train: stopped by --max_hours after step 1; saved in step_1; {GO_ON}"
    lock = Lock(tmp_path / ".lock")
    how: dict[str, Any] = {"programs": ending(0, says), "n_thread": 1, "lock": lock}
    with pytest.raises(TaskError, match="stopped by --max_hours after step 1"):
        _program(Task("a", 1, {}, tmp_path), ["train"], **how)
    how["programs"] = ending(0, "| End of training")
    _program(Task("a", 1, {}, tmp_path), ["train"], **how)
    lock.remove()


def test_a_page_is_of_the_first_training_of_each_row(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[list[str]] = []
    monkeypatch.setattr(page, "report", lambda words: drawn.append(words) or 0)
    assert study() == 0
    assert drawn == [], "not unasked"
    large = 'baseline = "large"' + STUDY
    assert study(large, "--report_only", "--page") == 0
    assert study(STUDY, "--report_only", "--page", "--only", "large", "--seeds", "2") == 0
    runs = {
        name: f"out/runs/{name}/run" for name in ("large/seed_1", "small/seed_1", "large/seed_2")
    }
    ends = ["--out", "out/report.html"]
    assert drawn == [
        ["--runs", runs["large/seed_1"], runs["small/seed_1"], *ends],
        ["--runs", runs["large/seed_2"], *ends],
    ]
    capsys.readouterr()
    many = STUDY.replace("seeds = [1, 2, 3]", "seeds = [1]")
    many += "[grid]\nlr = [0.1, 0.2, 0.3, 0.4]\n"
    assert study(many, "--page", "--runs", "others") == 0
    assert [word for word in drawn[-1] if "seed" in word] == [
        f"others/{row}__lr_{lr}/seed_1/run"
        for row in ("small", "large")
        for lr in (0.1, 0.2, 0.3, 0.4)
    ][:6]
    assert "without large, lr 0.3, large, lr 0.4 (see --only)" in capsys.readouterr().out


def test_what_no_page_can_be_drawn_of_is_said(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "report", lambda _: 2)
    with pytest.raises(UsageError, match="--page: out/runs has no finished training"):
        study(STUDY, "--report_only", "--page")
    with pytest.raises(UsageError, match="--page: txl report ended with status 2"):
        study(STUDY, "--page")
    assert Path("out/table.md").is_file()


def test_a_study_ends_with_a_page_if_it_is_asked_for(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report_in_here(words: list[str]) -> int:
        more = ["--sample_length", "3", "--attended", "20", "--mem_len", "0", "8"]
        import_module("txl.programs.report").main([*words, *more])
        return 0

    monkeypatch.setattr(runner, "_program", in_here)
    monkeypatch.setattr(page, "report", report_in_here)
    out = tmp_path / "out"
    assert main([str(real), "--folder", str(out), "--page"]) == 0
    assert (out / "report.html").is_file()
    assert (out / "runs/a/seed_1/run/report.json").is_file()


def test_tokens_until_a_loss() -> None:
    run = RunFigures(1, 1, 1, 1.0, None, {}, {}, [(100, 6.0), (200, 5.0), (300, 4.5)])
    assert [tokens_until(run, nats) for nats in (6.5, 6.0, 5.5, 4.75, 4.0)] == [
        100,
        100,
        150,
        250,
        None,
    ]


# real programs


@pytest.fixture
def real(write_text: Callable[..., Path], tmp_path: Path) -> Path:
    """The file of a study of one run."""
    path = tmp_path / "s.toml"
    path.write_text(REAL.replace("TEXT", str(write_text(tmp_path / "text"))))
    return path


def in_here(task: Task, line: list[str], **_: Any) -> None:
    assert not import_module(f"txl.programs.{line[0]}").main(line[1:])


def test_a_stopped_training_is_gone_on_with(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_study_whose_runner_was_killed_in_a_training_goes_on_with_it(
    to: str, real: Path, tmp_path: Path
) -> None:
    """With its training, or without it: that goes on alone, and the next runner waits for its lock."""
    (tmp_path / "sitecustomize.py").write_text(TRAPPED)
    trap = {"at": ["step", 15], "send": signal.SIGKILL, "to": to, "once": str(tmp_path / "killed")}
    own = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "TRAP": json.dumps(trap)}
    words = [sys.executable, "-m", "lab.studies", str(real), "--folder", str(tmp_path / "out")]
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


STANDS_IN = """
import signal
from pathlib import Path
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with open("started", "w") as fifo:
    fifo.write("x")
signal.sigwait([signal.SIGTERM])
Path("saved").touch()
"""


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGINT, 130),
        (signal.SIGHUP, 129),
        (signal.SIGUSR1, 0),
        (signal.SIGUSR2, 0),
    ],
)
def test_a_study_that_is_asked_to_stop_asks_its_programs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    status: int,
) -> None:
    """A program that has saved and ends with 0 is not taken for a finished training, and no other begins."""
    monkeypatch.chdir(tmp_path)
    write_splits(Path("data/wikitext-103"))
    program = tmp_path / "program"
    write_program(program, STANDS_IN)
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
