"""What a training in many processes refuses before they are started, and how it ends; torchrun is a stand-in."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from tests.cli.conftest import TINY, Here, contents

ALONE = "train_many --standalone --nproc_per_node 2 train.py"
HOSTS = "train_many --nnodes 2 --nproc_per_node 2 train.py"
NEW = f"--data text --work_dir new {' '.join(TINY)}"
Started = list[Any]


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """What torchrun is asked to start, in place of being started."""
    asked: Started = []
    monkeypatch.setattr(torchrun, "run", asked.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return asked


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (f"{NEW} --lrr 3", "--lrr: no such flag; did you mean --lr?"),
        (f"{NEW} --lr -1", "--lr -1"),
        (f"{NEW} --batch_size 3", "--batch_size 3: does not divide into 2 processes"),
        (f"{NEW} --data nowhere", "nowhere: no such folder"),
        (f"{NEW} --work_dir run", "--work_dir run: already holds the checkpoints of a run"),
    ],
)
def test_one_line_says_what_all_processes_would(
    here: Here, started: Started, flags: str, why: str
) -> None:
    before = contents(Path("run"))
    assert why in here.refused(f"{ALONE} {flags}")
    assert started == []
    assert contents(Path("run")) == before


def test_where_hosts_may_have_begun_only_the_flags_are_looked_at(
    here: Here, started: Started
) -> None:
    assert "--lrr: no such flag" in here.refused(f"{HOSTS} {NEW} --lrr 3")
    here(f"{HOSTS} {NEW} --data nowhere")
    assert len(started) == 1


def test_the_processes_get_all_flags_share_the_cores_and_find_a_free_folder(
    here: Here, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.setattr(
        "txl.programs.run.without_plugins", lambda words: [*words[:-4], *words[-2:]]
    )
    outcome = here(f"{ALONE} {NEW} --plugin plug.py --reset document")
    (asked,) = started
    assert asked.training_script == "train.py"
    assert asked.training_script_args == f"{NEW} --plugin plug.py --reset document".split()
    assert os.environ["OMP_NUM_THREADS"] == "6"
    assert (outcome.out, outcome.err) == ("", "")  # the training says it
    assert contents(Path("new")) == {}


def failed(*statuses: int) -> ChildFailedError:
    """As torchrun says it; the first one failed first."""
    failures = {}
    for rank, status in enumerate(statuses):
        failure = ProcessFailure(rank, 1, status, "none")
        failure.timestamp = rank
        failures[rank] = failure
    return ChildFailedError("train.py", failures)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (failed(1, 2), 2, ""),
        (failed(-9, 1), 137, "rank 0 was ended by signal 9; start again with --resume"),
        (failed(1, -15), 1, "rank 0 ended with status 1; what it has said is above"),
        (SignalException("", signal.SIGTERM), 143, ""),
        (SignalException("", signal.SIGUSR1), 0, ""),
    ],
)
def test_the_status_is_that_of_the_training(
    here: Here, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, said: str
) -> None:
    def fail(_: Any) -> None:
        raise error

    monkeypatch.setattr(torchrun, "run", fail)
    outcome = here(f"{ALONE} {NEW}", status=status)
    assert outcome.complaints == ([f"train_many.py: {said}"] if said else [])
