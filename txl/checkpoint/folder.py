"""The checkpoints in a run directory: listing and removing them, the pointers `latest` and `best`.

    run/step_00004000/config.json                  configurations, step, validation loss, versions
                      model.safetensors            parameters, tied ones once, and persistent buffers
                      vocab.txt, ...               attachments of the caller
                      progress.json                counters of the training
                      optimizer.safetensors        state of the optimizer
                      streams_00000_00060.safetensors  the memory of these streams, random states of their process
                      SHA256SUMS                   digests of all these files, and its own
    run/latest, run/best                           text files with the name of a checkpoint
    run/step_00004000.aside                        damaged, or left behind by --resume STEP; never read

Only files and folders with these names are ever removed. A checkpoint may be a link to a folder
elsewhere: it is read through the link, and only the link is ever renamed or removed.
"""

import logging
import os
import re
import shutil
from pathlib import Path

from txl.config import UsageError
from txl.files import content_of, discard, write_whole
from txl.registry import NoSuchPart

RECORD = "config.json"
WEIGHTS = "model.safetensors"
PROGRESS = "progress.json"
OPTIMIZER = "optimizer.safetensors"
STREAMS = "streams_{:05d}_{:05d}.safetensors"
_LOG = logging.getLogger("txl.checkpoint")
_NAME = re.compile(r"step_(\d{8,})")


def name_of(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"step_{step:08d}"


def is_checkpoint(folder: Path) -> bool:
    """True if a folder holds a checkpoint, complete or damaged, whatever the folder's name."""
    return any((folder / name).is_file() for name in (RECORD, WEIGHTS, PROGRESS))


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run by step; a folder gets its name once it is complete. A link that
    leads nowhere, perhaps to a disk that is not mounted, counts as a damaged one.
    """
    named = []
    for path in run.glob("step_*"):
        match = _NAME.fullmatch(path.name)
        if match:
            named.append((int(match[1]), path))
    paths = []
    for _, path in sorted(named):
        if is_checkpoint(path) or (path.is_symlink() and not path.exists()):
            paths.append(path)
    return paths


def remove_checkpoints(run: Path) -> None:
    """Remove all checkpoints of a run, also those set aside, and the leftovers of killed writes."""
    for pointer in ("latest", "best"):
        unpoint(run / pointer)
    _remove_half_written(run)
    for old in [
        *checkpoints(run),
        *(path for path in run.glob("step_*.aside*") if is_checkpoint(path)),
    ]:
        _remove(old)


def remove_old(run: Path, keep_last: int) -> None:
    """Remove all checkpoints but the best and the last ones, and the leftovers of killed writes."""
    _remove_half_written(run)
    best = pointed(run / "best")
    for old in checkpoints(run)[:-keep_last]:
        if old.name != best:
            _remove(old)


def set_aside(folder: Path) -> Path:
    """Rename a folder, so that it is not read and can be written again."""
    n = 0
    while os.path.lexists(aside := folder.with_name(f"{folder.name}.aside{n or ''}")):
        n += 1
    return folder.rename(aside)


def pointed(pointer: Path) -> str | None:
    """The checkpoint that a pointer names, if the run has it."""
    try:
        name = content_of(pointer).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    if pointer.parent / name in checkpoints(pointer.parent):
        return name
    return None


def point(pointer: Path, name: str) -> None:
    """Point to a checkpoint. A folder in the pointer's place is set aside."""
    if pointer.is_dir() and not pointer.is_symlink():
        _LOG.warning(
            "%s: a folder, where the name of a checkpoint belongs; kept as %s",
            pointer,
            set_aside(pointer).name,
        )
    write_whole(pointer, name + "\n")


def unpoint(pointer: Path) -> None:
    """Remove a pointer."""
    if pointer.is_symlink() or not pointer.is_dir():
        pointer.unlink(missing_ok=True)


def damaged(path: Path, why: object = "missing, truncated or damaged") -> UsageError:
    """The error for a damaged file of a checkpoint.

    Args:
        why: an error; flags and remedies in it are left out, since the values come from a file, but
            for parts that are not there.
    """
    if isinstance(why, NoSuchPart):
        return UsageError(f"{path}: {str(why).removeprefix('--')}")
    reason = str(why).replace("--", "").partition(";")[0]
    return UsageError(f"{path}: {reason}; use another checkpoint of the run, or train again")


def _remove(folder: Path) -> None:
    """Rename it first: an interrupted removal must not leave a folder that looks complete."""
    if folder.is_symlink():
        folder.unlink()
    else:
        half_removed = folder.with_name(f".{folder.name}.tmp")
        discard(half_removed)
        shutil.rmtree(folder.rename(half_removed))


def _remove_half_written(run: Path) -> None:
    for left in run.glob(".step_*.tmp"):
        if _NAME.match(left.name.removeprefix(".")):
            discard(left)
