"""Running a study: one task after another or several at once, each finished task only once. Before
them, a flag may be searched, the same for every variant, by short trainings of one seed.
"""

import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tqdm import tqdm

from lab.perturbed import FLAGS as PERTURBED
from lab.studies.plan import Flags, Search, Study, Task, slug, tasks, words
from txl.config import Context, ModelConfig, UsageError, build
from txl.data_utils.config import DATA_SETS, DataConfig
from txl.evaluation.config import EVAL, SCORE
from txl.evaluation.conventions import DEALING
from txl.files import not_through_a_link, require_no_link, write_whole
from txl.plugins import plugin
from txl.runtime.lock import Lock
from txl.runtime.log import print_line
from txl.runtime.records import json_text, read_json, read_json_lines
from txl.runtime.signals import GO_ON, StopNow, StopRequest
from txl.settings.flags import read_flags
from txl.training.config import TrainConfig
from txl.training.metrics import RECORDS

DONE = "done.json"
BEGUN = "begun.json"
LOG = "log.txt"
"""In the folder of a task: what has been done with which flags, the flags that its training began
with, and what its programs printed.
"""


NOT_FINITE = "is not finite"
"""In the last line of a training that diverges."""


class TaskError(Exception):
    """A task has failed; the message names the program and has its last line."""


class Choice(NamedTuple):
    """Which trainings of a study are done now; empty: all. Second ones are left for a day on which
    all are.

    Attributes:
        variants, seeds: their names and seeds.
    """

    variants: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()

    def holds(self, task: Task) -> bool:
        """Whether a training is one of them."""
        if task.is_rerun:
            return self == ALL
        is_named = not self.variants or task.variant in self.variants
        return is_named and (not self.seeds or task.seed in self.seeds)


ALL = Choice()


CLONE = str(Path(__file__).parents[2])
"""Where the laboratory is imported from, which is not installed."""
TRAINING = (DataConfig, TrainConfig, ModelConfig, Context)


class Programs(StopRequest):
    """The programs that run now.

    A signal that asks this process to stop asks them too: they save and end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: set[subprocess.Popen[Any]] = set()

    def run(self, line: list[str], **how: Any) -> int:
        """The exit status of a program.

        Raises `StopNow` if it, or this process, was asked to stop.
        """
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


class Reading(NamedTuple):
    """How an evaluation of a study is made.

    Attributes:
        program: of txl, or a module of the laboratory.
        flags: those that it is given.
        classes: whose fields are its flags.
    """

    program: str
    flags: Flags
    classes: tuple[type, ...]


def reading_by(flags: Flags) -> Reading:
    """How an evaluation with these flags is made; `loss_by_position` and `disturb` name programs of
    the laboratory.
    """
    if "disturb" in flags:
        return Reading("lab.perturbed", flags, (*PERTURBED, DataConfig))
    own = {name: value for name, value in flags.items() if name != "loss_by_position"}
    if flags.get("loss_by_position"):
        return Reading("lab.loss_by_position", own, (*EVAL, DataConfig))
    if "text" in flags:
        return Reading("eval", own, (*SCORE, DataConfig))
    return Reading("eval", own, (*EVAL, DataConfig))


def require_flags(study: Study) -> None:
    """Raise `UsageError` if train.py or eval.py would refuse a flag of the study. Files that define
    parts of its rows (`plugin`) are run.
    """
    for flags in study.variants.values():
        if "plugin" in flags:
            plugin(str(flags["plugin"]))
    lines: list[Any] = []
    for name, flags in study.variants.items():
        lines.append((f"runs: {name}", flags, TRAINING))
    if study.search is not None:
        for name, flags in study.variants.items():
            # as it is tried: no whole number
            tried = {study.search.of: _rounded(flags[study.search.of] / study.search.factor)}
            lines.append((f"search: {name}", {**study.search.shortened(flags), **tried}, TRAINING))
    for variant in study.variants:
        for name, flags in study.evaluations_of(variant).items():
            reading = reading_by(flags)
            line = (f"evaluations: {name}", reading.flags, reading.classes)
            if line not in lines:  # most variants are read alike
                lines.append(line)
    for name, flags, configs in lines:
        try:
            typed = read_flags(words(flags, Path("run")), *configs, description="")
            typed.pop("cutoffs", None)  # of which the vocabulary decides
            # whose own settings are not known
            if "init_from" in typed:
                of_model = {ModelConfig, Context}
            else:
                of_model = set()
            for config in configs:
                if config not in of_model:
                    build(config, typed)
        except UsageError as error:
            raise UsageError(f"{study.name}: {name}: {error}") from None


def run_study(study: Study, runs: Path, *, jobs: int, only: Choice = ALL) -> dict[str, str]:
    """Train and evaluate what is not yet done. Returns the errors of failed tasks by their names.

    Several runners may share the folder `runs`: each task is locked while it is worked on.

    Raises:
        StopNow: if a signal asks to stop; what runs then has saved.
    """
    failed: dict[str, str] = {}
    todo = [task for task in tasks(study, runs) if only.holds(task)]
    n_thread = max(1, (os.cpu_count() or 1) // jobs)
    bar = tqdm(total=len(todo), desc=study.name, unit="run", disable=None)
    with bar, Programs() as programs, ThreadPoolExecutor(jobs) as pool:

        def work(task: Task) -> None:
            try:
                start = time.monotonic()
                found = _searched(study, task, runs, n_thread, programs)
                if _do(study, found, n_thread, programs):
                    print_line(f"| {task.name}: done in {time.monotonic() - start:.0f} s")
            except (TaskError, UsageError, OSError) as error:
                if programs.noted:  # of another runner's task, no longer waited for
                    raise StopNow(programs.noted) from None
                failed[task.name] = str(error)
                print_line(f"| {task.name}: failed: {error}")
            bar.update()

        try:
            list(pool.map(work, todo))
        except StopNow:
            pool.shutdown(cancel_futures=True)
            raise
    return failed


@contextmanager
def _alone(task: Task, programs: Programs) -> Iterator[Lock]:
    """The folder of a task, with nobody else in it.

    What another runner has done there is then found done.
    """
    if programs.noted:
        raise StopNow(programs.noted)
    task.folder.mkdir(parents=True, exist_ok=True)
    require_no_link(task.folder)
    lock = Lock(task.folder / ".lock", wait_s=math.inf, gives_up=lambda: programs.noted)
    try:
        yield lock
    finally:
        lock.remove()


def _do(study: Study, task: Task, n_thread: int, programs: Programs) -> bool:
    """Do what is left of a task; False if nothing was."""
    with _alone(task, programs) as lock:
        done = finished(task)
        if done.get("train", task.flags) != task.flags:
            raise TaskError(f"{task.folder} was trained with other flags; name another --folder")
        left = unevaluated(study, task.variant, done)
        if "train" in done and not left:
            return False
        program = partial(_program, task, programs=programs, n_thread=n_thread, lock=lock)
        if "train" not in done:
            _train(task, program)
            done = {"train": task.flags, "evaluations": {}}
            _note(task.folder / DONE, done)
        for name, flags in left.items():
            done["evaluations"][name] = _evaluate(task, name, flags, program)
            _note(task.folder / DONE, done)
        return True


def _note(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json_text(content, ensure_ascii=False))


def _train(task: Task, program: Callable[[list[str]], None]) -> None:
    """Train a task, or go on with its training.

    Raises `TaskError` if that began with other flags, also where train.py would go on with them:
    a schedule of another length would be counted with the rest.
    """
    run = task.folder / "run"
    begun = task.folder / BEGUN
    if begun.exists() and run.exists():
        if read_json(begun) != task.flags:
            raise TaskError(
                f"{task.folder}: its training began with other flags; name another --folder, or"
                " remove this one"
            )
    else:
        _note(begun, task.flags)
    program(["train", "--work_dir", str(run), "--resume", *words(task.flags, run)])


def _evaluate(
    task: Task, name: str, flags: Flags, program: Callable[[list[str]], None]
) -> dict[str, Any]:
    """Evaluate a run: what is noted of it.

    The nats of each token of a split are kept beside the JSON file.
    """
    run = task.folder / "run"
    path = task.folder / f"{slug(name)}.json"
    reading = reading_by(flags)
    line = [reading.program, "--work_dir", str(run), "--json", str(path)]
    if keeps_losses(flags, task.flags):
        line += ["--token_losses", str(path.with_suffix(".npz"))]
    program([*line, *words(reading.flags, run)])
    results = read_json(path)
    noted = {}
    for key in ("rows", "texts", "checkpoint", "weights"):
        if key in results:
            noted[key] = results[key]
    return {"flags": flags, "texts": {}, **noted}


def keeps_losses(flags: Flags, of_training: Flags) -> bool:
    """Whether the tokens of an evaluation have a place in a split: those of --text and of sentences
    that are dealt to streams have none.
    """
    data_set = DATA_SETS[str(of_training.get("dataset", DataConfig.dataset))]
    dealt = data_set.has_sentences and flags.get("convention") in DEALING
    return "text" not in flags and not dealt


def _searched(study: Study, task: Task, runs: Path, n_thread: int, programs: Programs) -> Task:
    """The task with the value that a search finds, or has found, if the study asks for one."""
    if study.search is None:
        return task
    search = study.search
    row = row_of_search(study, task)
    losses = losses_tried(study, task, runs)
    while (value := next_value(row.flags[search.of], search.factor, losses)) is not None:
        short = task_of(row, search, value, runs)
        losses[value] = _try(short, n_thread, programs)
    best = best_value(losses)
    if math.isinf(losses[best]):
        raise TaskError(
            f"search: {search.of} of {row.variant}: no training stayed finite; give a smaller"
            " first value"
        )
    return with_value(task, search, best)


def _try(short: Task, n_thread: int, programs: Programs) -> float:
    """The last validation loss of a short training, which is trained if it has not been; infinite
    if it diverges.
    """
    with _alone(short, programs) as lock:
        if (loss := loss_of(finished(short))) is not None:
            return loss
        try:
            _train(short, partial(_program, short, programs=programs, n_thread=n_thread, lock=lock))
        except TaskError as error:
            if NOT_FINITE not in str(error):
                raise
            valid_nats = None
        else:
            valid_nats = _last_loss(short.folder / "run" / RECORDS)
        done = {"train": short.flags, "valid_nats": valid_nats, "evaluations": {}}
        _note(short.folder / DONE, done)
        loss = loss_of(finished(short))
        assert loss is not None
        print_line(f"| {short.variant}: valid loss {loss:.4f}")
        return loss


def _last_loss(path: Path) -> float | None:
    """None: it is not finite, which JSON lacks, whatever validations before it were."""
    valid = [record for record in read_json_lines(path) if record["kind"] == "valid"]
    if not valid:
        raise TaskError(
            f"{path}: no validation; let eval_interval of [search.train] be at most its max_step"
        )
    return valid[-1]["valid/nll_nats"]


def row_of_search(study: Study, task: Task) -> Task:
    """The task by whose short trainings a value is found: itself, unless the study names another
    variant.
    """
    assert study.search is not None
    other = study.search.like.get(task.variant)
    if other is None:
        return task
    return replace(task, variant=other, flags=study.variants[other])


def losses_tried(study: Study, task: Task, runs: Path) -> dict[float, float]:
    """The losses of the search of a variant that are known, by value."""
    losses: dict[float, float] = {}
    if study.search is None:
        return losses
    row = row_of_search(study, task)
    while (
        value := next_value(row.flags[study.search.of], study.search.factor, losses)
    ) is not None:
        loss = loss_of(finished(task_of(row, study.search, value, runs)))
        if loss is None:
            break
        losses[value] = loss
    return losses


def as_trained(study: Study, task: Task, runs: Path) -> Task | None:
    """The task with the value that its search has found; None while it has not."""
    if study.search is None:
        return task
    losses = losses_tried(study, task, runs)
    first = row_of_search(study, task).flags[study.search.of]
    if next_value(first, study.search.factor, losses) is not None:
        return None
    return with_value(task, study.search, best_value(losses))


def finished(task: Task) -> dict[str, Any]:
    """What has been done: `train` (its flags) and `evaluations` (flags and rows by name); empty
    before the training.
    """
    try:
        done = read_json(task.folder / DONE)
    except (OSError, ValueError):
        return {}
    if isinstance(done, dict):
        return done
    return {}


def unevaluated(study: Study, variant: str, done: Mapping[str, Any]) -> dict[str, Flags]:
    """The evaluations of a variant that have not been made, or with other flags."""
    noted = done.get("evaluations", {})
    missing = {}
    for name, flags in study.evaluations_of(variant).items():
        if noted.get(name, {}).get("flags") != flags:
            missing[name] = flags
    return missing


def _program(task: Task, line: list[str], *, programs: Programs, n_thread: int, lock: Lock) -> None:
    """Run a program of txl or of the laboratory with what it prints in the log. Raises `TaskError`
    if it fails, or is stopped before its end.
    """
    log = task.folder / LOG
    environment = {"OMP_NUM_THREADS": str(n_thread)} | os.environ
    command = ["txl", *line]
    name = f"txl {line[0]}"
    if line[0].startswith("lab."):
        command = line
        name = line[0]
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [CLONE, environment.get("PYTHONPATH")])
        )
    with open(log, "ab", opener=not_through_a_link) as out:
        # the program holds the lock too: if the runner is killed, the next one waits for it
        status = programs.run(
            [sys.executable, "-m", *command],
            **{"stdout": out, "stderr": out, "stdin": subprocess.DEVNULL},
            env=environment,
            pass_fds=[lock.descriptor],
        )
    last = _last_line(log)
    if status or last.endswith(GO_ON):  # with 0, by what Slurm sends before a time limit
        last = last or f"ended with status {status}; see {log}"
        raise TaskError(last if last.startswith(f"{name}: ") else f"{name}: {last}")


def _last_line(log: Path) -> str:
    """The last line of a log that is not blank; empty: there is none."""
    last = ""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.strip():
            last = line
    return last


MOST = 7
"""Values that are tried at most."""


def next_value(first: float, factor: float, losses: Mapping[float, float]) -> float | None:
    """The value to try next, given the losses of those that were tried; None: the best is known.

    The first three are `first`, and it divided by and times `factor`. While the best is the
    smallest or the largest of all, the next lies beyond it, so that the best has a worse one on
    both sides in the end.
    """
    for value in (first, first / factor, first * factor):
        if _rounded(value) not in losses:
            return _rounded(value)
    best = best_value(losses)
    if len(losses) >= MOST or math.isinf(losses[best]):
        return None
    if best == min(losses):
        return _rounded(best / factor)
    if best == max(losses):
        return _rounded(best * factor)
    return None


def best_value(losses: Mapping[float, float]) -> float:
    """The value of the smallest loss; of equal ones the smallest."""
    return min(sorted(losses), key=lambda value: losses[value])


def best_finite(losses: Mapping[float, float]) -> float | None:
    """The same; None if nothing was tried, or every training diverged."""
    if not any(map(math.isfinite, losses.values())):
        return None
    return best_value(losses)


def _rounded(value: float) -> float:
    """To six digits, as it is written on a command line and in a table."""
    return float(f"{value:.6g}")


def task_of(task: Task, search: Search, value: float, runs: Path) -> Task:
    """The short training of a variant with a value. Its folder is named by its flags, so that
    variants whose short trainings are the same share it.
    """
    flags = {**search.shortened(task.flags), search.of: value, "seed": search.seed}
    digest = hashlib.sha256(json.dumps(flags, sort_keys=True).encode()).hexdigest()[:16]
    return Task(
        f"{task.variant}, {search.of} {value:g}", search.seed, flags, runs / "search" / digest
    )


def with_value(task: Task, search: Search, value: float) -> Task:
    """The training with the value that was found."""
    return replace(task, flags={**task.flags, search.of: value})


def loss_of(done: Mapping[str, Any]) -> float | None:
    """The loss of a short training that is done: infinite if it did not stay finite; None: it is
    not done.
    """
    if "valid_nats" not in done:
        return None
    if done["valid_nats"] is None:
        return math.inf
    return done["valid_nats"]
