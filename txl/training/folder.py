"""The run directory: locking it, starting a run in it, resuming a run."""

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from txl.checkpoint import (
    Checkpoint,
    all_checkpoints,
    checkpoint_of,
    checkpoints,
    damaged,
    is_checkpoint,
    newest_whole,
    open_checkpoint,
    point_at_best,
    remove_checkpoints,
    require_own_pointers,
    set_aside,
)
from txl.config import UsageError, hints_of, require
from txl.files import not_through_a_link
from txl.runtime.distributed import Ranks, from_environment
from txl.runtime.lock import Lock
from txl.runtime.records import require_fields
from txl.training.config import TrainConfig
from txl.training.finite import NonFiniteError
from txl.training.metrics import remove_records, require_own_records
from txl.training.schedules import schedule_of
from txl.training.step import Progress

_LOG = logging.getLogger("txl.training")

OF_ONE_START = ("work_dir", "resume", "overwrite", "max_hours")
"""Settings that a resumed run does not inherit."""
FREE_WHEN_RESUMING = {
    *OF_ONE_START,
    *(
        "minutes",
        "max_step",
        "max_step_scheduler",
        "log_interval",
        "eval_interval",
        "save_interval",
        "keep_last",
    ),
    *(
        "max_eval_steps",
        "on_nonfinite",
        "max_nonfinite",
        "target_perplexity",
        "target_throughput",
        "timeout_s",
    ),
    *(
        "swap_mem",
        "recompute",
        "ff_chunk",
        "compile",
        "cuda_graph",
        "attn_impl",
        "device",
        "local_batch_size",
        "data",
        "cache_dir",
    ),
    *("eval_test", "sample_length", "shard", "async_save", "attn_keep_mib"),
}
LOCK = ".accepted"
"""The lock file in the run directory. If it is there unlocked, a launch was killed."""
_BEGUN = "begun"
"""Written into it once the launch owns the folder: if torchrun restarts it, it resumes from its
checkpoints.
"""


@contextmanager
def locked_run_directory(folder: Path, ranks: Ranks) -> Iterator[bool]:
    """Create the run directory and lock it. Yields whether torchrun has restarted a launch that had
    begun in it.

    Raises:
        UsageError: if another process trains in the folder, the folder is a checkpoint, or a rank
            does not see it.
        OSError: if the folder cannot be written to.
    """
    restarted = any(ranks.gathered(from_environment("TORCHELASTIC_RESTART_COUNT", 0) > 0))
    lock: Lock | None = None
    may_restart = False

    def claim() -> bool:
        nonlocal lock
        require(
            not is_checkpoint(folder),
            f"--work_dir {folder}: is a checkpoint; name the folder of its run,"
            f" {folder.absolute().parent}, and continue from the checkpoint with --resume STEP",
        )
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder / LOCK, wait_s=60 if restarted else 0)
        return _BEGUN in lock.before

    try:
        had_begun = ranks.by_main(claim)
        _require_shared(folder, ranks)
        yield restarted and had_begun
    except (ValueError, OSError, NonFiniteError, KeyboardInterrupt):  # a restart would fail again
        raise
    except BaseException:
        may_restart = True
        raise
    finally:
        if lock is not None:
            lock.close() if may_restart else lock.remove()


def open_run(
    folder: Path, typed: dict[str, Any], ranks: Ranks, *, restarted: bool
) -> Checkpoint | None:
    """The checkpoint to resume from, or None for a new run. Rank 0 decides for all; nothing is
    removed yet.

    With --resume, and when torchrun has restarted the run, it is the newest complete checkpoint, or
    that of the step given to --resume. Raises `UsageError` if the folder holds another run, or a
    flag contradicts the checkpoint.
    """
    found = ranks.by_main(lambda: _decide(folder, typed, restarted=restarted))
    if found is None:
        return None
    return open_checkpoint(Path(found))


def _decide(folder: Path, typed: dict[str, Any], *, restarted: bool) -> str | None:
    require_own_records(folder)
    require_own_pointers(folder)
    resume = typed.get("resume", False)
    if isinstance(resume, bool):
        step = None
    else:
        step = resume
    if not (restarted or resume):
        _require_free(folder, overwrite=bool(typed.get("overwrite")))
        if typed.get("overwrite") and typed.get("init_from"):
            _require_kept(folder, typed["init_from"])
        return None
    if step is None and not checkpoints(folder):
        return None
    # a restarted run resumes from its newest checkpoint, not again from the step of the command
    # line
    checkpoint, errors = (
        newest_whole(folder) if step is None or restarted else (checkpoint_of(folder, step), [])
    )
    for error in errors:
        _LOG.warning("%s; resuming from %s", str(error).partition(";")[0], checkpoint.folder.name)
    _require_agreement(checkpoint, folder, typed)
    return str(checkpoint.folder)


def saved_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """The settings that a resumed run inherits.

    Raises `UsageError` if they are damaged or of a newer version.
    """
    try:
        saved = checkpoint.record["train"]
        _require_known_parts(saved)
        saved = _with_current_values(saved)
        require_fields(saved, hints_of(TrainConfig, saved))
        inherited = {}
        for name, value in saved.items():
            if name not in OF_ONE_START:
                inherited[name] = value
        TrainConfig(**inherited)
        return inherited
    except (ValueError, KeyError) as error:
        raise damaged(checkpoint.folder / "config.json", error) from None


def _with_current_values(saved: Any) -> Any:
    """The settings with `dense` where attention was blockwise, which had the same result."""
    if isinstance(saved, dict) and saved.get("attn_impl") == "blockwise":
        return {**saved, "attn_impl": "dense"}
    return saved


def _require_known_parts(saved: Any) -> None:
    """Raise `NoSuchPart` for an optimizer of a file that has not been run, whose settings are not
    known either.
    """
    if not isinstance(saved, dict):
        return
    for registry in TrainConfig.parts:
        name = saved.get(registry.flag)
        if isinstance(name, str):
            registry.require_known(name)


def start_new_run(folder: Path, ranks: Ranks, *, overwrite: bool) -> None:
    """Remove an old run from the folder, after checking again that this is allowed."""

    def begin() -> None:
        require_own_records(folder)
        _require_free(folder, overwrite=overwrite)
        remove_checkpoints(folder)
        remove_records(folder)
        _note_begun(folder)

    ranks.by_main(begin)


def prepare_resume(folder: Path, checkpoint: Checkpoint, progress: Progress, ranks: Ranks) -> None:
    """Rename checkpoints later than this one, so that the run can write them again. If the best one
    is not there any more, the next evaluation will be the best: `progress` is told so.
    """

    def prepare() -> bool:
        whole = checkpoints(folder)
        for later in whole[whole.index(checkpoint.folder) + 1 :]:
            _LOG.warning(
                "%s: later than the checkpoint resumed from; kept as %s",
                later,
                set_aside(later).name,
            )
        has_best = point_at_best(folder)
        _note_begun(folder)
        return has_best

    if not ranks.by_main(prepare):
        progress.best_nats = math.inf


def _note_begun(folder: Path) -> None:
    with open(folder / LOCK, "a", opener=not_through_a_link) as file:
        file.write(_BEGUN + "\n")


def _require_free(folder: Path, *, overwrite: bool) -> None:
    require(
        overwrite or not checkpoints(folder),
        f"--work_dir {folder}: already holds the checkpoints of a run; continue with --resume, name"
        " another folder, or delete them with --overwrite",
    )


def _require_agreement(checkpoint: Checkpoint, folder: Path, typed: dict[str, Any]) -> None:
    record = checkpoint.record
    train = saved_settings(checkpoint)
    model = record["model"]
    was = {**record.get("data", {}), **train, **record["context"], **model, **model.get("own", {})}
    for name, asked in typed.items():
        if isinstance(asked, tuple):
            asked = list(asked)
        if name == "d_embed" and typed[name] < 0:
            asked = was["d_model"]
        if name == "clip" and typed[name] == math.inf:
            asked = 0
        if name not in FREE_WHEN_RESUMING and name in was and was[name] != asked:
            raise UsageError(
                f"--{name} {asked}: the run in {folder} was started with {was[name]}; drop the"
                " flag, or start a new run in another --work_dir"
            )
    _require_schedule(TrainConfig(**train), typed)


def _require_schedule(was: TrainConfig, typed: dict[str, Any]) -> None:
    """A cosine schedule ends at eta_min, usually 0, where more updates change nothing. With fewer
    updates its rate does not get there, which is said.
    """
    final_rate = schedule_of(was).final_rate()
    if final_rate is None or "max_step_scheduler" in typed:
        return
    end = was.schedule_length
    asked = typed.get("max_step", was.max_step)
    require(
        asked <= max(end, was.max_step),
        f"--max_step {asked}: the {was.scheduler} schedule of the run ends after step {end}, at"
        f" a learning rate of {final_rate:g}; add --max_step_scheduler {asked} to stretch it,"
        f" or --max_step_scheduler {end} to stay at that rate",
    )
    if asked < min(end, was.max_step) and was.minutes is None:
        _LOG.warning(
            "--max_step %d: the %s schedule of the run goes on to step %d, so training ends before"
            " its rate has fallen to %g; --max_step_scheduler %d ends it there",
            *(asked, was.scheduler, end, final_rate, asked),
        )


def _require_kept(folder: Path, initial: str) -> None:
    """A new run removes the checkpoints of the old one before it has anything to keep."""
    removed = [folder, *all_checkpoints(folder)]
    require(
        os.path.realpath(initial) not in map(os.path.realpath, removed),
        f"--init_from {initial}: lies in --work_dir {folder}, whose checkpoints --overwrite removes;"
        " name another --work_dir",
    )


def _require_shared(folder: Path, ranks: Ranks) -> None:
    for rank, sees in enumerate(ranks.gathered((folder / LOCK).exists())):
        require(
            sees,
            f"--work_dir {folder}: rank {rank} does not see it; all hosts need the same folder, on"
            " a disk they share",
        )
