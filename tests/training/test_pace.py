"""What a training prints and saves besides its intervals, by a clock that the test turns."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.training.runs import Run, config
from txl.training import budget
from txl.training.budget import LINE, SAVE, Pace, read_ballot


def lines_of(printed: str) -> list[int]:
    """The steps of the lines of loss."""
    return [int(line.split()[4]) for line in printed.splitlines() if line.startswith("| epoch")]


def test_lines_and_a_checkpoint_come_by_step_and_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step takes 14 seconds: a minute has passed after the fifth, and in between lines come at the interval."""
    run = Run(config(max_step=24, log_interval=19, keep_last=9), folder=tmp_path).begin()
    monkeypatch.setattr(
        budget, "time", SimpleNamespace(monotonic=lambda: 14.0 * run.state.progress.step)
    )
    run.train()
    assert lines_of(capsys.readouterr().out) == [5, 10, 15, 19, 24]
    saved = sorted(int(path.name.removeprefix("step_")) for path in tmp_path.glob("step_*"))
    assert saved == [5, 24]


def test_a_line_by_time_changes_nothing_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recorded at the interval is the loss of all steps since the last record."""
    measured = []
    for seconds in (0.0, 100.0):
        run = Run(config(log_interval=6)).begin()
        clock = SimpleNamespace(monotonic=lambda each=seconds, r=run: each * r.state.progress.step)
        monkeypatch.setattr(budget, "time", clock)
        with monkeypatch.context() as patch:
            patch.setattr(
                "txl.training.loop._report",
                lambda state, values, *_: measured.append(values["train/nll_nats"]),
            )
            run.train()
    assert len(measured) == 2
    assert measured[0] == measured[1]


def test_what_is_due_is_said_once_and_by_the_first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: now[0]))
    first, second = Pace(is_main=True), Pace(is_main=False)
    assert read_ballot(first.ballot(3)) == (3, 0)
    now[0] = 61.0
    assert read_ballot(first.ballot(3)) == (3, LINE | SAVE)
    assert read_ballot(first.ballot(0)) == (0, 0)  # the vote is still on its way
    assert read_ballot(second.ballot(2)) == (2, 0)
    second.note_line()
    now[0] = 500.0
    assert read_ballot(first.ballot(0)) == (0, LINE)
    assert read_ballot(second.ballot(0)) == (0, 0)
