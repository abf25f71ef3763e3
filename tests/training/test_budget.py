"""Trainings that end by the clock, which the tests turn: rates, evaluations, what is left for what follows."""

import math
from pathlib import Path

import pytest

from tests.ranks import on_ranks
from tests.training.runs import ALONE, Run, config
from txl.runtime import clock as clocks
from txl.runtime.clock import Clock
from txl.runtime.distributed import Ranks
from txl.training.budget import Budget
from txl.training.schedules import schedule_of


class Turned:
    """Seconds of a clock that goes on by as many at each reading."""

    def __init__(self, each: float = 0.0) -> None:
        self.now = 0.0
        self.each = each

    def __call__(self) -> float:
        self.now += self.each
        return self.now


def test_shares_are_of_the_time_between_preparation_and_last_evaluation() -> None:
    clock = Turned()
    clock.now = 10.0
    budget = Budget(2.0, clock, ALONE)
    assert budget.share == 0
    clock.now = 10 + (120 - 10 - 0.03 * 120) / 2
    budget.read()
    assert budget.share == pytest.approx(0.5)
    budget.note_evaluation(20.0)
    assert budget.share == pytest.approx(53.2 / 90)
    assert budget.left_s == pytest.approx(90 - 53.2)
    clock.now = 100.0
    budget.read()
    assert budget.is_over
    assert budget.left_s == 0


def test_time_is_left_for_what_follows_the_training() -> None:
    budget = Budget(2.0, Turned(), ALONE, after_s=lambda seconds: 3 * seconds)
    budget.note_evaluation(10.0)
    assert budget.left_s == pytest.approx(120 - 10 - 30)


def test_evaluations_come_at_every_tenth_and_more_seldom_where_they_are_dear() -> None:
    for seconds, expected in ((0.1, 10), (6.0, 3)):
        clock = Turned()
        budget = Budget(100 / 60, clock, ALONE)
        n = 0
        while not budget.is_over:
            clock.now += 0.5
            budget.read()
            if budget.evaluation_is_due:
                n += 1
                clock.now += seconds
                budget.note_evaluation(seconds)
        assert n == expected


def test_a_training_that_goes_on_counts_what_it_had() -> None:
    clock = Turned()
    clock.now = 5.0
    budget = Budget(10.0, clock, ALONE, trained_s=300.0)
    assert budget.share == pytest.approx(300 / (600 - 5 - 18))
    assert Budget(5.0, clock, ALONE, trained_s=300.0).is_over


def shares_of_one_that_started_late(ranks: Ranks) -> list[tuple[float, float, bool]]:
    """The program of rank 1 was started 40 s after that of rank 0."""
    clock = Turned()
    clock.now = 50.0 - 40.0 * ranks.rank
    budget = Budget(2.0, clock, ranks)
    found = []
    for _ in range(6):
        clock.now += 10.0
        budget.read()
        found.append((budget.share, budget.left_s, budget.evaluation_is_due))
    return found


def test_ranks_that_start_apart_agree_on_the_time() -> None:
    first, other = on_ranks(2, shares_of_one_that_started_late)
    assert first == other
    assert first[-1][0] == pytest.approx(60 / (120 - 50 - 0.03 * 120))


def test_rates_follow_the_clock() -> None:
    cosine = schedule_of(config(lr=1.0, warmup_step=100, max_step_scheduler=2**53 - 1))
    assert cosine.rate(0, 0.0) == pytest.approx(0.01)
    assert cosine.rate(0, 0.05) == pytest.approx(0.5 * (1 + math.cos(0.05 * math.pi)) / 2)
    assert cosine.rate(5000, 0.5) == pytest.approx(0.5)
    assert cosine.rate(5000, 1.0) == pytest.approx(0.0)
    short = schedule_of(config(lr=1.0, max_step_scheduler=100, warmup_step=0))
    assert short.rate(50, 0.1) == pytest.approx(0.5)
    inv_sqrt = schedule_of(config(lr=1.0, scheduler="inv_sqrt", warmup_step=25))
    assert inv_sqrt.rate(99, 0.5) == pytest.approx(0.5)
    assert inv_sqrt.rate(9, 0.5) == 1.0
    assert schedule_of(config(lr=1.0, scheduler="constant")).rate(99, 0.9) == 1.0


def test_a_training_ends_when_its_time_is_used_and_saves_how_much_it_was(tmp_path: Path) -> None:
    """Each reading of the clock takes a second."""
    run = Run(config(minutes=1.0, max_step=2**53 - 1), folder=tmp_path).begin()
    clock = Turned(each=1.0)
    run.state.budget = Budget(1.0, clock, ALONE)
    run.train()
    assert 30 < run.state.progress.step < 60
    assert run.state.progress.n_eval > 5
    assert run.state.lr < 0.1 * run.config.lr
    goes_on = Run(run.config, folder=tmp_path).resume()
    assert goes_on.state.progress.seconds == run.state.progress.seconds > 40
    goes_on.state.budget = Budget(1.0, clock, ALONE, trained_s=goes_on.state.progress.seconds)
    goes_on.train()
    assert goes_on.state.progress.step == run.state.progress.step


def test_checkpoints_come_by_updates_too_where_that_is_asked_for(tmp_path: Path) -> None:
    """--eval_interval has no say, since evaluations come by the clock."""
    sevens = []
    for name, interval in (("asked", 7), ("not", None)):
        settings = {"save_interval": interval, "eval_interval": 7, "keep_last": 99}
        run = Run(config(minutes=1.0, max_step=999, **settings), folder=tmp_path / name).begin()
        run.state.budget = Budget(1.0, Turned(each=1.0), ALONE)
        run.train()
        every = range(7, run.state.progress.step + 1, 7)
        sevens.append([(tmp_path / name / f"step_{step:08}").is_dir() for step in every])
    assert all(sevens[0])
    assert not all(sevens[1])


def test_one_update_is_made_however_short_the_time_is(tmp_path: Path) -> None:
    run = Run(config(minutes=1.0, max_step=50), folder=tmp_path).begin()
    run.state.budget = Budget(1e-9, Turned(each=1.0), ALONE)
    run.train()
    assert run.state.progress.step == 1
    assert run.state.progress.n_eval == 1


def test_a_clock_begins_at_the_launch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Turned()
    monkeypatch.setattr(clocks.time, "monotonic", now)
    clocks.note_launch()
    now.now = 7.0
    of_launch = Clock()
    later = Clock()
    now.now = 9.0
    assert (of_launch.seconds(), later.seconds()) == (9.0, 2.0)
