"""The checkpoints in a run's folder: which there are, what `latest` and `best` name, removal.

    run/step_00004000/config.json                  configurations, step, validation loss, checksums, versions: readable
                      model.safetensors            parameters, tied ones once, and what was drawn at random for good
                      vocab.txt, ...               what the caller attaches
                      progress.json                where the training is
                      optimizer.safetensors        what the optimizer remembers
                      streams_00000_00060.safetensors  the memory of these streams, random states of their process
    run/latest, run/best                           each holds the name of such a folder
    run/step_00004000.aside                        damaged, or left behind by --resume STEP; never read

Only what bears such a name is ever removed.
"""

import re
import shutil
from pathlib import Path

from txl.config import UsageError
from txl.files import written_whole

RECORD, WEIGHTS, PROGRESS, OPTIMIZER = "config.json", "model.safetensors", "progress.json", "optimizer.safetensors"
STREAMS = "streams_{:05d}_{:05d}.safetensors"
_NAME = re.compile(r"step_(\d{8,})")


def name_of(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"step_{step:08d}"


def is_checkpoint(folder: Path) -> bool:
    """True if a folder holds a checkpoint, be it a damaged one, whatever the folder's name."""
    return any((folder / name).is_file() for name in (RECORD, WEIGHTS, PROGRESS))


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, the last one last: a folder bears such a name only once it is whole."""
    named = [(int(match[1]), path) for path in run.glob("step_*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named) if path.is_dir() and not path.is_symlink() and is_checkpoint(path)]


def has_checkpoint(run: Path) -> bool:
    """True if a run has left a checkpoint in this folder."""
    return bool(checkpoints(run))


def remove_checkpoints(run: Path) -> None:
    """Remove all checkpoints of a run, those set aside too, and what killed writes have left."""
    for pointer in ("latest", "best"):
        (run / pointer).unlink(missing_ok=True)
    _remove_half_written(run)
    for old in [*checkpoints(run), *(path for path in run.glob("step_*.aside*") if is_checkpoint(path))]:
        _remove(old)


def remove_old(run: Path, keep_last: int) -> None:
    """Remove what is neither the best nor among the last, and what killed writes have left."""
    _remove_half_written(run)
    best = pointed(run / "best")
    for old in checkpoints(run)[:-keep_last]:
        if old.name != best:
            _remove(old)


def set_aside(folder: Path) -> Path:
    """Rename what has a checkpoint's name, so that it is never read and another can take its place."""
    n = 0
    while (aside := folder.with_name(f"{folder.name}.aside{n or ''}")).exists():
        n += 1
    return folder.rename(aside)


def pointed(pointer: Path) -> str | None:
    """The checkpoint that a pointer names, if it is there; a pointer never leads out of the run."""
    try:
        name = pointer.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return name if pointer.parent / name in checkpoints(pointer.parent) else None


def point(pointer: Path, name: str) -> None:
    """Let a pointer name a checkpoint."""
    with written_whole(pointer) as temporary:
        temporary.write_text(name + "\n", encoding="utf-8")


def damaged(path: Path, why: object = "missing, truncated or damaged") -> UsageError:
    """The error for a file of a checkpoint that does not hold what it should.

    Args:
        why: an error may speak of a flag and of what to do about it, but nobody has typed it.
    """
    reason = str(why).replace("--", "").partition(";")[0]
    return UsageError(f"{path}: {reason}; use another checkpoint of the run, or train again")


def _remove(folder: Path) -> None:
    """Under a hidden name first: a removal cut short must not leave a folder that looks whole."""
    shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.tmp")))


def _remove_half_written(run: Path) -> None:
    for left in run.glob(".step_*.tmp"):
        if _NAME.match(left.name.removeprefix(".")):
            shutil.rmtree(left, ignore_errors=True)
