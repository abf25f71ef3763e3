"""kill -9 anywhere: the next start goes on, and the end is that of a run which was never killed."""

import random
import signal
from pathlib import Path

import pytest

from tests.conftest import long_test
from tests.forks import LIMIT_S
from tests.resume.runs import (
    N_STEP,
    command,
    evaluations,
    finish,
    finish_pair,
    hidden,
    last_step,
    pair_of,
    resumed_from,
    torchrun,
    trained_steps,
    trapped,
    weights,
)
from txl.checkpoint import load_model
from txl.checkpoint.record import open_folder

pytestmark = pytest.mark.slow

KILLED = -signal.SIGKILL
# writes that were cut short are not tried again at the same step
RARELY = ("--save_interval", "1000")
DRAWN_FROM = {"step": 4, "flush": 20, "segment": 4, "record": 4, "beside": 20}


def writes_under_way(run: Path) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_mtime_ns) for path in run.glob(".step_*.tmp")}


def finish_as(alone: Path, run: Path, flags: list[str], log: Path) -> None:
    """The run goes on to the end of one that was never killed, and leaves nothing else."""
    finish([*flags, *RARELY], log)
    assert weights(run) == weights(alone)
    assert hidden(run) == []
    assert trained_steps(run) == list(range(1, N_STEP + 1))


def drawn(seed: int, *kinds: str) -> list[tuple[str, int]]:
    dice = random.Random(seed)
    return [(kind, dice.randint(1, DRAWN_FROM[kind])) for kind in kinds]


IN_WRITES = ("step", "flush", "segment", "flush", "record", "flush")
# flags, and where each start is killed
PLACES: dict[str, tuple[list[str], list[tuple[str, int]]]] = {
    "drawn, every other in a write": (["--eval_interval", "4"], drawn(24, *IN_WRITES, *IN_WRITES)),
    "in what writes in the background or beside it": (
        ["--async_save"],
        drawn(10, *("beside", "flush") * 4),
    ),
    "at each flush of a write": ([], [("flush", i) for i in range(1, 14)]),
}


@pytest.mark.parametrize("where", PLACES)
def test_a_run_killed_again_and_again_ends_as_one_never_killed(
    text: Path, alone: Path, tmp_path: Path, where: str
) -> None:
    """It goes on to the end of one that was never killed, loses no more than a write, and leaves nothing else."""
    run, log = tmp_path / "run", tmp_path / "log"
    more, events = PLACES[where]
    flags = command(text, run, "--resume", *more)
    n_in_write, steps = 0, [0]
    for event in events:
        writes = writes_under_way(run)
        # without a checkpoint the records are begun anew
        n_start = len(resumed_from(run)) if steps[-1] else 0
        finish(flags, log, status=KILLED, at=event)
        n_in_write += bool(writes_under_way(run) - writes)
        assert resumed_from(run)[n_start:] in ([], [steps[-1] or None])
        assert trained_steps(run) == list(range(1, len(trained_steps(run)) + 1))
        steps.append(last_step(run) or 0)
    assert steps == sorted(steps)
    assert n_in_write >= 2
    assert len(set(steps)) >= 4
    finish_as(alone, run, flags, log)


@pytest.mark.parametrize(
    ("n_step", "lr"), [(8, "0.01"), (24, "0.5")], ids=["the last", "followed by worse ones"]
)
def test_the_best_checkpoint_is_known_before_it_is_pointed_at(
    n_step: int, lr: str, text: Path, tmp_path: Path
) -> None:
    run, never_killed, log = tmp_path / "run", tmp_path / "never_killed", tmp_path / "log"
    flags = (
        "--max_step",
        f"{n_step}",
        "--eval_interval",
        "2",
        "--scheduler",
        "constant",
        "--lr",
        lr,
    )
    finish(command(text, never_killed, *flags), log)
    losses = [nats for _, nats in evaluations(never_killed)]
    n_best = sum(nats < min([*losses[:i], float("inf")]) for i, nats in enumerate(losses))
    finish(command(text, run, *flags), log, status=KILLED, at=("best", n_best))
    finish(command(text, run, *flags, "--resume"), log)
    assert (run / "best").read_text() == (never_killed / "best").read_text()
    assert (run / (run / "best").read_text().strip()).is_dir()
    assert weights(run, n_step) == weights(never_killed, n_step)


def test_a_run_killed_in_an_evaluation_loses_no_step(
    text: Path, alone: Path, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    finish(command(text, run, *RARELY), log, status=KILLED, at=("evaluation", 3))
    assert last_step(run) == 18
    finish_as(alone, run, command(text, run, "--resume"), log)
    assert evaluations(run) == evaluations(alone)


def test_a_rank_whose_peer_is_killed_says_so_and_ends(text: Path, tmp_path: Path) -> None:
    for victim in (0, 1):
        run, logs = tmp_path / f"run_{victim}", tmp_path / f"logs_{victim}"
        traps = tuple({"at": ("step", 6)} if rank == victim else {} for rank in (0, 1))
        ranks = pair_of(command(text, run), logs, traps=traps)
        statuses, said = [rank.wait() for rank in ranks], ranks[1 - victim].log.read_text()
        assert (statuses[victim], statuses[1 - victim]) == (KILLED, 1), said
        assert f"rank {1 - victim} has lost contact with the other processes" in said
        assert "Traceback" not in said


def whole_weights(run: Path) -> dict[str, bytes]:
    """Of the last step, whatever files they are in."""
    model = load_model(open_folder(run / f"step_{N_STEP:08d}"))
    return {name: p.detach().numpy().tobytes() for name, p in model.named_parameters()}


@long_test
def test_shards_killed_at_6_drawn_places_end_with_the_weights_of_a_run_never_killed(
    text: Path, tmp_path: Path
) -> None:
    """Both ranks at once, or one, of which the other hears; every other time written in the background."""
    dice = random.Random(30)
    never, run, logs = tmp_path / "never", tmp_path / "run", tmp_path / "logs"
    finish_pair(command(text, never, "--shard"), tmp_path / "never_logs")
    flags = command(text, run, "--resume", "--shard", "--sample_length", "20")
    steps = []
    for i in range(6):
        event = ("step", "flush", "segment")[i % 3]
        trap = {"at": (event, dice.randint(3, {"step": 8, "flush": 20, "segment": 6}[event]))}
        traps = ((trap, trap), (trap, {}), ({}, trap))[dice.randrange(3)]
        ranks = pair_of([*flags, "--async_save" if i % 2 else "--no_async_save"], logs, traps=traps)
        assert KILLED in [rank.wait() for rank in ranks]
        steps.append(last_step(run) or 0)
    assert steps == sorted(steps)
    assert len(set(steps)) >= 3
    assert "Traceback" not in (logs / "0").read_text() + (logs / "1").read_text()
    finish_pair([*flags, *RARELY], logs)
    assert whole_weights(run) == whole_weights(never)
    assert hidden(run) == []


@long_test
def test_torchrun_restarts_a_run_with_a_killed_rank(text: Path, pair: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    trap = {"at": ("step", 6), "rank": 1, "once": str(tmp_path / "killed")}
    words = (
        "--standalone",
        "--nproc_per_node=2",
        "--max-restarts=3",
        *trapped(trap, flags=command(text, run)),
    )
    with torchrun(*words, run=run, log=log) as agent:
        assert agent.wait(timeout=LIMIT_S) == 0, log.read_text()
    assert resumed_from(run) == [None, 4]
    assert weights(run) == weights(pair)
    assert hidden(run) == []
