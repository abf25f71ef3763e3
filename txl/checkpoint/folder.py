"""The checkpoints in a run directory: listing and removing them, the pointers `latest` and `best`,
digests, weights in shards.

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

SHA256SUMS is a file that `sha256sum --check` reads; its last line is its own digest. While
config.json and progress.json are written anew they have two digests each: a kill in between leaves
the checkpoint whole.

In place of one file, weights and optimizer state may be one file a rank, through
torch.distributed.checkpoint. The files are safetensors, whose headers say which rows of a tensor
they hold: nothing in them is unpickled, and a checkpoint in one file is read the same way. The
library is imported where shards are: it takes half a second.
"""

import hashlib
import logging
import math
import os
import re
import shutil
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from txl.config import UsageError, require
from txl.files import (
    NoFileError,
    content_of,
    discard,
    errors_naming,
    require_readable,
    write_whole,
    written_whole,
)
from txl.registry import NoSuchPart
from txl.runtime.distributed import Ranks, lost_contact_errors

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


def all_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, and those set aside."""
    aside = filter(is_checkpoint, run.glob("step_*.aside*"))
    return [*checkpoints(run), *aside]


def remove_checkpoints(run: Path) -> None:
    """Remove all checkpoints of a run, also those set aside, and the leftovers of killed writes."""
    for pointer in ("latest", "best"):
        unpoint(run / pointer)
    _remove_half_written(run)
    for old in all_checkpoints(run):
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


def require_own_pointers(run: Path) -> None:
    """Raise `UsageError` if a file stands where a pointer belongs that names no checkpoint: a run
    would write over it.
    """
    for pointer in (run / "latest", run / "best"):
        if pointer.is_symlink() or not pointer.is_file() or not pointer.stat().st_size:
            continue
        name = pointer.read_bytes()[:99].decode(errors="replace").strip()
        require(
            _NAME.fullmatch(name) is not None,
            f"{pointer}: not written by txl; name another folder with --work_dir, or move the file",
        )


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


DIGESTS = "SHA256SUMS"
Digests = Mapping[str, Collection[str]]
"""Of each file, by its name, the SHA-256 that it may have."""


def digest_of(content: bytes) -> str:
    """Hex digest, SHA-256."""
    return hashlib.sha256(content).hexdigest()


def write_digests(folder: Path, digests: Digests) -> None:
    """Write the digests of a folder's files, whole or not at all."""
    lines = []
    for name in sorted(digests):
        for digest in sorted(digests[name]):
            lines.append(f"{digest}  {name}\n")
    body = "".join(lines).encode()
    with written_whole(folder / DIGESTS) as temporary:
        temporary.write_bytes(body + _own_line(body))


def read_digests(folder: Path) -> Digests | None:
    """The digests of a folder's files; None if it has none, as checkpoints of version 0.2 and
    before. Raises `UsageError` if they are damaged.
    """
    path = folder / DIGESTS
    try:
        content = content_of(path)
    except FileNotFoundError:
        return None
    except NoFileError as error:
        raise damaged(path, error.strerror) from None
    body = content[: content.rfind(b"#")]
    if content != body + _own_line(body):
        raise damaged(path)
    found: dict[str, set[str]] = {}
    for line in body.decode(errors="replace").splitlines():
        digest, _, name = line.partition("  ")
        if Path(name).name != name:  # not by us, and leads elsewhere
            raise damaged(path)
        found.setdefault(name, set()).add(digest)
    return found


def _own_line(body: bytes) -> bytes:
    """A comment to sha256sum."""
    return f"# {digest_of(body)} of the lines above\n".encode()


SHARDS = "shard-*.safetensors"


def shards_in(folder: Path) -> list[Path]:
    """The files of the ranks in a checkpoint; none if its tensors are in one file."""
    return sorted(folder.glob(SHARDS))


def write_shards(tensors: Mapping[str, Tensor], folder: Path, ranks: Ranks) -> list[Path]:
    """Write this rank's rows; returns its files. All ranks call it together."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with lost_contact_errors(ranks.rank), errors_naming(folder):
        try:
            writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
            save(dict(tensors), storage_writer=writer, process_group=ranks.control)
        except CheckpointException as error:  # no Exception, and a traceback of every rank long
            raise next(iter(error.failures.values()))[0] from None
    return sorted(folder.glob(f"shard-{ranks.rank + 1:05d}-*"))


def read_into(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Read tensors, whole ones and shards, from all files of a checkpoint.

    Raises `UsageError` if one is damaged.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        _require_files(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this process reads alone, as it should
            load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    except (CheckpointException, OSError, SafetensorError, RuntimeError, ValueError, KeyError):
        raise damaged(folder / SHARDS) from None


def tensors_in(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of the tensors in all files of a checkpoint, without reading them. Raises
    `UsageError` if a file is damaged, or rows of a tensor are missing.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        _require_files(folder)
        metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
    except (OSError, SafetensorError, ValueError, KeyError, IndexError, TypeError):
        raise damaged(folder / SHARDS) from None
    found = {}
    for name, stored in metadata.state_dict_metadata.items():
        assert isinstance(stored, TensorStorageMetadata)  # the reader knows no others
        if name.startswith(("memory.", "rng.")):  # of the streams, once in each of their files
            continue
        if sum(math.prod(chunk.sizes) for chunk in stored.chunks) != math.prod(stored.size):
            raise damaged(folder / SHARDS, f"rows of {name} are missing")
        found[name] = (stored.size, stored.properties.dtype)
    return found


def _require_files(folder: Path) -> None:
    """Raise `OSError` if one of the files of tensors, all of which are opened, cannot be read, or
    is a pipe.
    """
    for path in folder.glob("*.safetensors"):
        require_readable(path)
