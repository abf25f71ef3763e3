"""Running a study: one task after another or several at once, each finished task only once."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm

from txl.cli.flags import read_flags
from txl.config import Context, ModelConfig, UsageError, build
from txl.data_utils.datasets import DataConfig
from txl.evaluation.config import EVAL, SCORE
from txl.evaluation.report import write_json
from txl.files import not_through_a_link, require_no_link
from txl.runtime.lock import Lock
from txl.runtime.log import print_line
from txl.runtime.records import read_json
from txl.runtime.signals import StopNow, StopRequest
from txl.studies.plan import Flags, Study, Task, slug, tasks, words
from txl.training.config import TrainConfig

DONE, LOG = "done.json", "log.txt"
"""In the folder of a task: what has been done with which flags, and what its programs printed."""


class TaskError(Exception):
    """A task has failed; the message is the last line of its program."""


class _Programs(StopRequest):
    """The programs that run now. A signal that asks this process to stop asks them too: they save and end."""

    def __init__(self) -> None:
        super().__init__()
        self._running: set[subprocess.Popen[Any]] = set()

    def run(self, line: list[str], **how: Any) -> int:
        """The exit status of a program. Raises `StopNow` if it, or this process, was asked to stop."""
        program = subprocess.Popen(line, **how)
        self._running.add(program)
        if self.noted:  # between the two lines above
            program.terminate()
        status = program.wait()
        self._running.discard(program)
        if self.noted:
            raise StopNow(self.noted)
        return status

    def _note(self, number: int, frame: FrameType | None) -> None:
        super()._note(number, frame)
        for program in tuple(self._running):
            program.terminate()


def require_flags(study: Study) -> None:
    """Raise `UsageError` if train.py or eval.py would refuse a flag of the study."""
    training = (DataConfig, TrainConfig, ModelConfig, Context)
    lines: list[Any] = [(f"runs: {name}", flags, training) for name, flags in study.variants.items()]
    for name, flags in study.evaluations.items():
        lines.append((f"evaluations: {name}", flags, (*(SCORE if "text" in flags else EVAL), DataConfig)))
    for name, flags, configs in lines:
        try:
            typed = read_flags(words(flags, Path("run")), *configs, description="")
            typed.pop("cutoffs", None)  # of which the vocabulary decides
            of_model = {ModelConfig, Context} if "init_from" in typed else set()  # whose own settings are not known
            for config in configs:
                if config not in of_model:
                    build(config, typed)
        except UsageError as error:
            raise UsageError(f"{study.name}: {name}: {error}") from None


def run_study(study: Study, runs: Path, *, jobs: int) -> dict[str, str]:
    """Train and evaluate what is not yet done. Returns the errors of failed tasks by "variant, seed N".

    Several runners may share the folder `runs`: each task is locked while it is worked on.

    Raises:
        StopNow: if a signal asks to stop; what runs then has saved.
    """
    failed: dict[str, str] = {}
    todo = tasks(study, runs)
    n_thread = max(1, (os.cpu_count() or 1) // jobs)
    bar = tqdm(total=len(todo), desc=study.name, unit="run", disable=None)
    with bar, _Programs() as programs, ThreadPoolExecutor(jobs) as pool:

        def work(task: Task) -> None:
            name = f"{task.variant}, seed {task.seed}"
            try:
                start = time.monotonic()
                if _do(study, task, n_thread, programs):
                    print_line(f"| {name}: done in {time.monotonic() - start:.0f} s")
            except (TaskError, UsageError, OSError) as error:
                if programs.noted:  # of another runner's task, no longer waited for
                    raise StopNow(programs.noted) from None
                failed[name] = str(error)
                print_line(f"| {name}: failed: {error}")
            bar.update()

        try:
            list(pool.map(work, todo))
        except StopNow:
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _do(study: Study, task: Task, n_thread: int, programs: _Programs) -> bool:
    """Do what is left of a task; False if nothing was."""
    if programs.noted:
        raise StopNow(programs.noted)
    task.folder.mkdir(parents=True, exist_ok=True)
    require_no_link(task.folder)
    # another runner's work is then found done
    lock = Lock(task.folder / ".lock", wait_s=math.inf, gives_up=lambda: programs.noted)
    try:
        done = finished(task)
        if done.get("train", task.flags) != task.flags:
            raise TaskError(f"{task.folder} was trained with other flags; name another --folder")
        left = unevaluated(study, done)
        if "train" in done and not left:
            return False
        program = partial(_program, task, programs=programs, n_thread=n_thread, lock=lock)
        run = task.folder / "run"
        if "train" not in done:
            program(["train", "--work_dir", str(run), "--resume", *words(task.flags, run)])
            done = {"train": task.flags, "evaluations": {}}
            write_json(task.folder / DONE, done)
        for name, flags in left.items():
            path = task.folder / f"{slug(name)}.json"
            program(["eval", "--work_dir", str(run), "--json", str(path), *words(flags, run)])
            results = read_json(path)
            done["evaluations"][name] = {"flags": flags, "rows": results["rows"], "texts": results.get("texts", {})}
            write_json(task.folder / DONE, done)
        return True
    finally:
        lock.remove()


def finished(task: Task) -> dict[str, Any]:
    """What has been done: `train` (its flags) and `evaluations` (flags and rows by name); empty before the training."""
    try:
        done = read_json(task.folder / DONE)
    except (OSError, ValueError):
        return {}
    return done if isinstance(done, dict) else {}


def unevaluated(study: Study, done: Mapping[str, Any]) -> dict[str, Flags]:
    """The evaluations of the study that have not been made, or with other flags."""
    noted = done.get("evaluations", {})
    return {name: flags for name, flags in study.evaluations.items() if noted.get(name, {}).get("flags") != flags}


def _program(task: Task, line: list[str], *, programs: _Programs, n_thread: int, lock: Lock) -> None:
    """Run a program of txl with what it prints in the log. Raises `TaskError` if it fails."""
    log = task.folder / LOG
    environment = {"OMP_NUM_THREADS": str(n_thread)} | os.environ
    with open(log, "ab", opener=not_through_a_link) as out:
        # the program holds the lock too: if the runner is killed, the next one waits for it
        status = programs.run(
            [sys.executable, "-m", "txl", *line],
            **{"stdout": out, "stderr": out, "stdin": subprocess.DEVNULL},
            env=environment,
            pass_fds=[lock.descriptor],
        )
    if status:
        lines = [text for text in log.read_text(encoding="utf-8", errors="replace").splitlines() if text.strip()]
        raise TaskError(lines[-1] if lines else f"{line[0]} ended with status {status}")
