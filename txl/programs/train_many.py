"""Start a training in many processes: torchrun, once one process has asked what all would refuse.

python -m txl.programs.train_many FLAGS_OF_TORCHRUN train.py --data FOLDER ...

Under torchrun alone each process says what is wrong, torchrun starts them all again, and ends in a
traceback. `run_wt103.sh train` and its like start this.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TypeVar

import torch
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from txl.config import build
from txl.programs.run import run
from txl.programs.train import asked_of
from txl.runs.resolve import resolve_training
from txl.runs.training import open_text
from txl.runtime.distributed import Ranks
from txl.runtime.log import print_error
from txl.runtime.signals import status_after
from txl.training.config import TrainConfig
from txl.training.folder import locked_run_directory

T = TypeVar("T")
BAD_INPUT = 2


class RanksToBe(Ranks):
    """Ranks before they are started: one process decides, and all would agree."""

    def gathered(self, value: T) -> list[T]:
        return [value] * self.world

    def main_first(self, work: Callable[[], T]) -> T:
        return work()


def main(argv: Sequence[str]) -> int:
    """Start the processes and wait for them; returns the exit status of the training.

    Raises:
        UsageError: if they would refuse the flags, the text or the run folder. The latter two are
            looked at on a single host only: where there are others, they may have begun.
    """
    # plugins are loaded here already, and named to the processes
    started = torchrun.parse_args(sys.argv[1:])
    flags = torchrun.parse_args(argv).training_script_args
    n_process = int(started.nproc_per_node)
    check(flags, world=n_process, is_alone=started.standalone)
    n_thread = (os.cpu_count() or 1) // n_process
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, n_thread)))  # else torchrun gives each one
    try:
        torchrun.run(started)
    except ChildFailedError as error:
        return status_of(error)
    except SignalException as ended:  # the processes have saved
        return status_after(ended.sigval)
    return 0


def check(flags: Sequence[str], *, world: int, is_alone: bool) -> None:
    """Raise the `UsageError` with which a training in `world` processes would not begin."""
    asked = asked_of(flags)
    folder = Path(build(TrainConfig, asked).work_dir)
    if not is_alone:
        return
    ranks = RanksToBe(0, world, torch.device("cpu"))
    with unsaid(), locked_run_directory(folder, ranks):
        open_text(resolve_training(asked, ranks, folder, restarted=False), ranks)


@contextmanager
def unsaid() -> Iterator[None]:
    """Without lines and notes, which the training will print again. Progress bars are shown."""
    logging.disable(logging.WARNING)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            yield
    finally:
        logging.disable(logging.NOTSET)


def status_of(error: ChildFailedError) -> int:
    """The exit status for that of the process that failed first. Says what it was, unless that
    process has said why.
    """
    statuses = {failure.exitcode for failure in error.failures.values()}
    if BAD_INPUT in statuses:
        return BAD_INPUT
    rank, first = error.get_first_failure()
    if first.exitcode < 0:
        print_error(f"rank {rank} was ended by signal {-first.exitcode}; start again with --resume")
        return 128 - first.exitcode
    print_error(f"rank {rank} ended with status {first.exitcode}; what it has said is above")
    return first.exitcode


if __name__ == "__main__":
    sys.argv[0] = "train.py"  # whose messages these are
    run(main)
