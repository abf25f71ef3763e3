"""Writing a checkpoint.

It is written under a temporary name, flushed and renamed, so that a folder named step_* is whole; `latest` and `best`
move afterwards. Memory is kept by stream, not by process: another number of processes can go on.
"""

import hashlib
import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from txl.checkpoint.folder import (
    OPTIMIZER,
    PROGRESS,
    RECORD,
    STREAMS,
    WEIGHTS,
    is_checkpoint,
    name_of,
    point,
    remove_old,
    set_aside,
)
from txl.config import Context, UsageError, as_dict
from txl.files import flush, naming, sha256, written_whole
from txl.memory import Memory
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks

FORMAT = 1


@dataclass(frozen=True)
class Snapshot:
    """What a run needs besides its weights to go on as if it had never stopped.

    Attributes:
        progress: JSON-ready values.
        optimizer: tensors by name.
        memory: of the streams of this process, or None.
        rng: random states of this process, by kind.
        folder: the checkpoint it was read from.
    """

    progress: dict[str, Any]
    optimizer: dict[str, Tensor] = field(repr=False)
    memory: Memory | None = field(repr=False)
    rng: dict[str, Tensor] = field(repr=False)
    folder: Path = Path()


def save_checkpoint(
    run: Path,
    model: TransformerXL,
    context: Context,
    *,
    step: int,
    best: bool,
    record: Mapping[str, Any],
    attachments: Mapping[str, str],
    snapshot: Snapshot,
    streams: slice,
    ranks: Ranks,
    keep_last: int = 1,
) -> Path:
    """Write the checkpoint of a step and let `latest` (and `best`) name it. All ranks call it together.

    Called again after the same step, for what an evaluation has found, it rewrites config.json and progress.json only.

    Args:
        record: what else config.json shall hold.
        attachments: text files to keep with the weights, by name.
        streams: the columns of the global batch whose memory `snapshot` holds.
        keep_last: so many checkpoints stay besides the best one.
    Returns:
        The checkpoint's folder.
    """
    folder = run / name_of(step)
    full = {
        "format": FORMAT,
        "step": step,
        "best": best,
        "model": as_dict(model.config),
        "context": as_dict(context),
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "attachments": {name: digest_of(text.encode()) for name, text in attachments.items()},
        **record,
    }
    if ranks.gathered(is_checkpoint(folder))[0]:
        if ranks.is_main:
            _rewrite(folder, full, snapshot)
    else:
        _write(folder, model, full, attachments, snapshot, streams, ranks)
    if ranks.is_main:
        for pointer in ("latest", "best") if best else ("latest",):
            point(run / pointer, folder.name)
        remove_old(run, keep_last)
    ranks.barrier()  # nobody returns before it is there
    return folder


def as_json(values: Mapping[str, Any]) -> str:
    """A record as JSON, a field a line.

    Raises:
        UsageError: naming a value that JSON cannot hold.
    """
    try:
        return json.dumps(values, indent=1, allow_nan=False) + "\n"
    except ValueError:
        for name, value in values.items():
            if isinstance(value, Mapping):
                as_json(value)
            elif value in (float("inf"), float("-inf")) or value != value:
                raise UsageError(f"--{name} {value}: must be a finite number") from None
        raise


def weights_of(model: TransformerXL) -> dict[str, Tensor]:
    """The parameters, tied ones once, and the buffers that belong to the state."""
    state = model.state_dict()
    return dict(model.named_parameters()) | {name: b for name, b in model.named_buffers() if name in state}


def digest_of(content: bytes) -> str:
    """Hex digest, SHA-256."""
    return hashlib.sha256(content).hexdigest()


def _write(
    folder: Path,
    model: TransformerXL,
    full: dict[str, Any],
    attachments: Mapping[str, str],
    snapshot: Snapshot,
    streams: slice,
    ranks: Ranks,
) -> None:
    """A whole checkpoint, each rank its streams."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        if ranks.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        ranks.barrier()
        written = ranks.gathered(_write_streams(temporary, snapshot, streams))
        if ranks.is_main:
            digests = {name: digest for files in written for name, digest in files.items()}
            digests |= _save(weights_of(model), temporary / WEIGHTS)
            digests |= _save(snapshot.optimizer, temporary / OPTIMIZER)
            texts = {RECORD: as_json(full | {"files": digests}), PROGRESS: as_json(snapshot.progress), **attachments}
            for name, text in texts.items():
                with naming(temporary / name):
                    (temporary / name).write_text(text, encoding="utf-8")
                flush(temporary / name)
            flush(temporary)
            if folder.exists() and any(folder.iterdir()):
                set_aside(folder)  # it is not ours
            temporary.rename(folder)
            flush(folder.parent)
    except BaseException:
        if ranks.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def _rewrite(folder: Path, full: dict[str, Any], snapshot: Snapshot) -> None:
    """The evaluation's loss first, then that it is no longer owed: between the two it would be made once more."""
    full["files"] = json.loads((folder / RECORD).read_text(encoding="utf-8")).get("files", {})
    for name, values in ((RECORD, full), (PROGRESS, snapshot.progress)):
        with written_whole(folder / name) as temporary:
            temporary.write_text(as_json(values), encoding="utf-8")


def _write_streams(folder: Path, snapshot: Snapshot, streams: slice) -> dict[str, str]:
    layers = snapshot.memory.layers if snapshot.memory is not None else ()
    tensors = {f"memory.{i}": layer for i, layer in enumerate(layers)}
    tensors |= {f"rng.{kind}": state for kind, state in snapshot.rng.items()}
    return _save(tensors, folder / STREAMS.format(streams.start, streams.stop))


def _save(tensors: dict[str, Tensor], path: Path) -> dict[str, str]:
    """Write tensors to a file; its name and digest."""
    with naming(path):
        save_file({name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}, path)
        path.chmod(path.parent.stat().st_mode & 0o666)  # the library writes files that only their owner may read
    flush(path)
    return {path.name: sha256(path)}
