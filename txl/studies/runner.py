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
from typing import Any

from tqdm import tqdm

from txl.cli.flags import read_flags
from txl.config import Context, ModelConfig, UsageError, build
from txl.data_utils.config import DataConfig
from txl.evaluation.config import EVAL, SCORE
from txl.evaluation.report import write_json
from txl.files import not_through_a_link, require_no_link
from txl.runtime.lock import Lock
from txl.runtime.log import print_line
from txl.runtime.records import read_json
from txl.studies.plan import Flags, Study, Task, slug, tasks, words
from txl.training.config import TrainConfig

DONE, LOG = "done.json", "log.txt"
"""In the folder of a task: what has been done with which flags, and what its programs printed."""


class TaskError(Exception):
    """A task has failed; the message is the last line of its program."""


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
    """
    failed: dict[str, str] = {}
    todo = tasks(study, runs)
    n_thread = max(1, (os.cpu_count() or 1) // jobs)
    with tqdm(total=len(todo), desc=study.name, unit="run", disable=None) as bar, ThreadPoolExecutor(jobs) as pool:

        def work(task: Task) -> None:
            name = f"{task.variant}, seed {task.seed}"
            try:
                start = time.monotonic()
                if _do(study, task, n_thread):
                    print_line(f"| {name}: done in {time.monotonic() - start:.0f} s")
            except (TaskError, UsageError, OSError) as error:
                failed[name] = str(error)
                print_line(f"| {name}: failed: {error}")
            bar.update()

        try:
            list(pool.map(work, todo))
        except KeyboardInterrupt:  # the programs got it too, save and end
            pool.shutdown(cancel_futures=True)
            raise
    return failed


def _do(study: Study, task: Task, n_thread: int) -> bool:
    """Do what is left of a task; False if nothing was."""
    task.folder.mkdir(parents=True, exist_ok=True)
    require_no_link(task.folder)
    lock = Lock(task.folder / ".lock", wait_s=math.inf)  # another runner's work is then found done
    try:
        done = finished(task)
        if done.get("train", task.flags) != task.flags:
            raise TaskError(f"{task.folder} was trained with other flags; name another --folder")
        left = unevaluated(study, done)
        if "train" in done and not left:
            return False
        program = partial(_program, task, n_thread=n_thread, lock=lock)
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


def _program(task: Task, line: list[str], *, n_thread: int, lock: Lock) -> None:
    """Run a program of txl with what it prints in the log. Raises `TaskError` if it fails."""
    log = task.folder / LOG
    environment = {"OMP_NUM_THREADS": str(n_thread)} | os.environ
    with open(log, "ab", opener=not_through_a_link) as out:
        # the program holds the lock too: if the runner is killed, the next one waits for it
        status = subprocess.run(
            [sys.executable, "-m", "txl", *line],
            **{"stdout": out, "stderr": out, "stdin": subprocess.DEVNULL},
            env=environment,
            pass_fds=[lock.descriptor],
            check=False,
        ).returncode
    if status:
        lines = [text for text in log.read_text(encoding="utf-8", errors="replace").splitlines() if text.strip()]
        raise TaskError(lines[-1] if lines else f"{line[0]} ended with status {status}")
