"""kill -9 at any moment: the next start goes on, and the end is that of a run which was never killed."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.resume.runs import (
    N_STEP,
    Starts,
    command,
    evaluations,
    hidden,
    last_step,
    records,
    torchrun,
    trained_steps,
    wait_until,
    weights,
    workers,
)
from txl.checkpoint import load_model
from txl.checkpoint.record import open_folder

pytestmark = pytest.mark.slow


RARELY = ("--save_interval", "1000")  # writes that were cut short are not tried again at the same step


def resumed_from(run: Path) -> list[int | None]:
    return [record["resumed_from_step"] for record in records(run) if record["kind"] == "start"]


def trains(run: Path, began: int, n_start: int) -> bool:
    """True once a start that began then, after so many others, has trained a step."""
    path = run / "metrics.jsonl"
    is_new = path.exists() and path.stat().st_mtime_ns > began and len(resumed_from(run)) > n_start
    return is_new and records(run)[-1]["kind"] != "start"


def writes_under_way(run: Path) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_mtime_ns) for path in run.glob(".step_*.tmp")}


def test_a_run_killed_at_20_random_moments_ends_with_the_weights_of_one_never_killed(
    starts: Starts, text: Path, alone: Path, tmp_path: Path
) -> None:
    """Every other time the moment is drawn from those at which it trains, the other times from all."""
    dice = random.Random(20)
    run, log = tmp_path / "run", tmp_path / "log"
    flags = command(text, run, "--resume")
    n_in_write, came_from = 0, []
    for i in range(20):
        step, writes, began = last_step(run), writes_under_way(run), time.time_ns()
        n_start = len(resumed_from(run)) if step else 0  # without a checkpoint the records are begun anew
        start = starts(flags, log, slow_flush_s=0.015)
        if i % 2:
            wait_until(lambda began=began, n=n_start: trains(run, began, n), 60, log)
        if i % 4 == 3:  # a slow machine might never come to a checkpoint
            wait_until(lambda step=step: last_step(run) != step, 60, log)
        time.sleep(dice.uniform(0, 0.5))
        start.kill()
        assert start.wait() == -signal.SIGKILL, log.read_text()
        n_in_write += bool(writes_under_way(run) - writes)
        new = resumed_from(run)[n_start:]
        came_from += new
        assert new in ([], [step])
        assert trained_steps(run) == list(range(1, len(trained_steps(run)) + 1))
    assert n_in_write >= 3
    assert len(set(came_from)) >= 5
    assert starts([*flags, *RARELY], log).wait() == 0, log.read_text()
    assert weights(run) == weights(alone)
    assert hidden(run) == []
    assert trained_steps(run) == list(range(1, N_STEP + 1))


def whole_weights(run: Path) -> dict[str, bytes]:
    """Of the last step, whatever files they are in."""
    model = load_model(open_folder(run / f"step_{N_STEP:08d}"))
    return {name: p.detach().numpy().tobytes() for name, p in model.named_parameters()}


def test_a_run_killed_at_10_random_moments_of_writing_in_the_background_ends_with_the_same_weights(
    starts: Starts, text: Path, alone: Path, tmp_path: Path
) -> None:
    dice = random.Random(10)
    run, log = tmp_path / "run", tmp_path / "log"
    flags = command(text, run, "--resume", "--async_save")
    n_in_write, steps = 0, []
    for _ in range(10):
        before, writes, began = last_step(run), writes_under_way(run), time.time_ns()
        n_start = len(resumed_from(run)) if before else 0
        start = starts(flags, log, slow_flush_s=0.015)
        wait_until(lambda began=began, n=n_start: trains(run, began, n), 60, log)
        time.sleep(dice.uniform(0, 0.4))
        start.kill()
        assert start.wait() == -signal.SIGKILL, log.read_text()
        n_in_write += bool(writes_under_way(run) - writes)
        steps.append(last_step(run) or 0)
    assert steps == sorted(steps)
    assert n_in_write >= 3
    assert len(set(steps)) >= 4
    assert starts([*flags, *RARELY], log).wait() == 0, log.read_text()
    assert weights(run) == weights(alone)
    assert hidden(run) == []
    assert trained_steps(run) == list(range(1, N_STEP + 1))


def test_shards_killed_at_6_random_moments_end_with_the_weights_of_a_run_never_killed(
    starts: Starts, text: Path, tmp_path: Path
) -> None:
    """Both ranks at once, or one, of which the other hears; every other time written in the background."""
    dice = random.Random(30)
    never, run = tmp_path / "never", tmp_path / "run"
    ranks = starts.pair(command(text, never, "--shard"), tmp_path / "never_logs")
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].log.read_text()
    flags, logs = command(text, run, "--resume", "--shard", "--sample_length", "20"), tmp_path / "logs"
    steps = []
    for i in range(6):
        before, began = last_step(run), time.time_ns()
        n_start = len(resumed_from(run)) if before else 0
        ranks = starts.pair([*flags, "--async_save" if i % 2 else "--no_async_save"], logs)
        wait_until(lambda began=began, n=n_start: trains(run, began, n), 60, logs / "0")
        if i % 3 == 0:  # a slow machine might never come to a checkpoint
            wait_until(lambda before=before: last_step(run) != before, 60, logs / "0")
        time.sleep(dice.uniform(0, 0.6))
        for victim in ((0, 1), (0,), (1,))[i % 3]:
            ranks[victim].kill()
        assert -signal.SIGKILL in [rank.wait() for rank in ranks]
        steps.append(last_step(run) or 0)
    assert steps == sorted(steps)
    assert len(set(steps)) >= 3
    assert "Traceback" not in (logs / "0").read_text() + (logs / "1").read_text()
    ranks = starts.pair([*flags, *RARELY], logs)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].log.read_text()
    assert whole_weights(run) == whole_weights(never)
    assert hidden(run) == []


def test_a_run_killed_at_each_flush_of_a_write_loses_no_more_than_that_write(
    starts: Starts, text: Path, alone: Path, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    flags = command(text, run, "--resume")
    assert starts(command(text, run, "--max_step_scheduler", f"{N_STEP}", "--max_step", "4"), log).wait() == 0
    for i in range(1, 14):
        step = last_step(run)
        assert starts(flags, log, die_at_flush=i).wait() == -signal.SIGKILL, log.read_text()
        assert last_step(run) >= step
    assert step > 4
    assert hidden(run) != []
    assert starts([*flags, *RARELY], log).wait() == 0, log.read_text()
    assert weights(run) == weights(alone)
    assert hidden(run) == []


@pytest.mark.parametrize(("n_step", "lr"), [(8, "0.01"), (40, "0.3")], ids=["the last", "followed by worse ones"])
def test_the_best_checkpoint_is_known_although_a_kill_fell_before_it_was_pointed_at(
    n_step: int, lr: str, starts: Starts, text: Path, tmp_path: Path
) -> None:
    run, never_killed, log = tmp_path / "run", tmp_path / "never_killed", tmp_path / "log"
    flags = ("--max_step", f"{n_step}", "--eval_interval", "2", "--scheduler", "constant", "--lr", lr)
    assert starts(command(text, never_killed, *flags), log).wait() == 0, log.read_text()
    losses = [nats for _, nats in evaluations(never_killed)]
    n_best = sum(nats < min([*losses[:i], float("inf")]) for i, nats in enumerate(losses))
    assert starts(command(text, run, *flags), log, die_at_flush_of_best=n_best).wait() == -signal.SIGKILL
    assert starts(command(text, run, *flags, "--resume"), log).wait() == 0, log.read_text()
    assert (run / "best").read_text() == (never_killed / "best").read_text()
    assert (run / (run / "best").read_text().strip()).is_dir()
    assert weights(run, n_step) == weights(never_killed, n_step)


def test_torchrun_restarts_a_run_with_a_killed_rank_and_the_weights_are_those_of_one_never_killed(
    text: Path, pair: Path, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    words = ("--standalone", "--nproc_per_node=2", "--max-restarts=3", "train.py", *command(text, run))
    with torchrun(*words, run=run, log=log) as agent:
        wait_until(lambda: last_step(run), 60, log)
        os.kill(workers(run)[1], signal.SIGKILL)
        assert agent.wait(timeout=120) == 0, log.read_text()
    assert [r["resumed_from_step"] is None for r in records(run) if r["kind"] == "start"] == [True, False]
    assert weights(run) == weights(pair)
    assert hidden(run) == []


def test_a_rank_whose_peer_is_killed_says_so_and_ends(starts: Starts, text: Path, tmp_path: Path) -> None:
    for victim in (0, 1):
        run, logs = tmp_path / f"run_{victim}", tmp_path / f"logs_{victim}"
        ranks = starts.pair(command(text, run), logs)
        wait_until(lambda run=run: last_step(run), 60, ranks[0].log)
        ranks[victim].kill()
        survivor = ranks[1 - victim]
        status, said = survivor.wait(), survivor.log.read_text()
        assert (ranks[victim].wait(), status) == (-signal.SIGKILL, 1), said
        assert f"rank {1 - victim} has lost contact with the other processes" in said
        assert "Traceback" not in said
