"""Checkpoints: a folder each, whole or not there.

    run/step_00004000/config.json                  configurations, step, validation loss, versions: readable
                      model.safetensors            parameters, tied ones once, and what was drawn at random for good
                      vocab.txt, ...               what the caller attaches
                      progress.json                where the training is
                      optimizer.safetensors        what the optimizer remembers
                      streams_00000_00060.safetensors  the memory of these streams, random states of their process
    run/latest, run/best                           each holds the name of such a folder

A checkpoint is written under a temporary name, flushed and renamed, so that a folder named step_* is whole; `latest`
and `best` move afterwards. Memory is kept by stream, not by process: another number of processes can go on.
"""

import hashlib
import json
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from txl.config import Context, ModelConfig, UsageError, as_dict, read_from
from txl.files import flush, naming, written_whole
from txl.memory import Memory
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks

FORMAT = 1
_RECORD, _WEIGHTS, _PROGRESS, _OPTIMIZER = "config.json", "model.safetensors", "progress.json", "optimizer.safetensors"


@dataclass(frozen=True)
class Snapshot:
    """What a run needs besides its weights to go on as if it had never stopped.

    Attributes:
        progress: JSON-ready values.
        optimizer: tensors by name.
        memory: of the streams of this process, or None.
        rng: random states of this process, by kind.
    """

    progress: dict[str, Any]
    optimizer: dict[str, Tensor] = field(repr=False)
    memory: Memory | None = field(repr=False)
    rng: dict[str, Tensor] = field(repr=False)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder and what its config.json says; the weights are read by `load_model`."""

    folder: Path
    record: dict[str, Any]
    model_config: ModelConfig
    context: Context

    def attachment(self, name: str) -> str:
        """The text that was attached under this name when the checkpoint was saved.

        Raises:
            UsageError: if it is no longer that text.
        """
        try:
            text = (self.folder / name).read_bytes()
        except FileNotFoundError:
            raise damaged(self.folder / name) from None
        if _digest(text) != self.record["attachments"].get(name):
            raise damaged(self.folder / name)
        return text.decode()

    def fingerprint(self) -> str:
        """Hex digest of the weights."""
        with (self.folder / _WEIGHTS).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


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

    Args:
        record: what else config.json shall hold.
        attachments: text files to keep with the weights, by name.
        streams: the columns of the global batch whose memory `snapshot` holds.
        keep_last: so many checkpoints stay besides the best one.
    Returns:
        The checkpoint's folder.
    """
    folder = run / f"step_{step:08d}"
    temporary = run / f".{folder.name}.tmp"
    try:
        if ranks.is_main and not folder.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        ranks.barrier()
        if not folder.is_dir():
            _write_streams(temporary, snapshot, streams)
            if ranks.is_main:
                full = _full_record(model, context, step=step, best=best, record=record, attachments=attachments)
                _write_main(temporary, model, full, attachments, snapshot)
        ranks.barrier()
        if ranks.is_main and not folder.is_dir():
            flush(temporary)
            temporary.rename(folder)
            flush(run)
    except BaseException:
        if ranks.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    if ranks.is_main:
        for pointer in ("latest", "best") if best else ("latest",):
            _point(run / pointer, folder.name)
        _remove_old(run, keep_last)
    ranks.barrier()  # nobody returns before it is there
    return folder


def has_checkpoint(run: Path) -> bool:
    """True if a run has left a checkpoint in this folder."""
    return bool(_whole(run))


def remove_checkpoints(run: Path) -> None:
    """Forget all checkpoints of a run, and what killed writes have left."""
    for pointer in ("latest", "best"):
        (run / pointer).unlink(missing_ok=True)
    for old in _whole(run):
        _remove(old)
    for left in run.glob(".step_*.tmp"):
        shutil.rmtree(left)


def open_checkpoint(path: Path) -> Checkpoint:
    """The best checkpoint of a run's folder, else its last; or the one whose folder is given.

    Raises:
        UsageError: if there is none, or it is damaged.
    """
    if not path.is_dir():
        raise UsageError(f"--work_dir {path}: no such folder; give the folder of a run, as in train.py --work_dir")
    if (path / _RECORD).is_file():
        return _open(path)
    best = _pointed(path / "best")
    if best is None:
        return last_checkpoint(path)
    return _open(path / best)


def last_checkpoint(run: Path) -> Checkpoint:
    """The checkpoint of the highest step.

    Raises:
        UsageError: if there is none, or it is damaged.
    """
    whole = _whole(run)
    if not whole:
        raise UsageError(f"--work_dir {run}: holds no checkpoint; train first, or give the folder of another run")
    return _open(whole[-1])


def point_at_best(run: Path) -> None:
    """Let `best` name the last checkpoint that was the best when it was saved: a kill may have come in between."""
    for folder in reversed(_whole(run)):
        if _open(folder).record.get("best"):
            _point(run / "best", folder.name)
            return


def load_model(checkpoint: Checkpoint, *, dropout: float = 0.0, dropatt: float = 0.0) -> TransformerXL:
    """The model with its trained weights, in evaluation mode.

    Raises:
        UsageError: if the weights are damaged, not finite, or do not fit the configuration.
    """
    path = checkpoint.folder / _WEIGHTS
    saved = _load(path)
    model = TransformerXL(checkpoint.model_config, dropout=dropout, dropatt=dropatt)
    parameters = _weights(model)
    if {n: p.shape for n, p in parameters.items()} != {n: t.shape for n, t in saved.items()}:
        raise UsageError(f"{path}: the weights do not fit {_RECORD} beside them; use another checkpoint")
    if not all(tensor.isfinite().all() for tensor in saved.values()):
        raise UsageError(f"{path}: holds weights that are not finite numbers; use another checkpoint")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.data = parameter.data.to(saved[name].dtype)
            parameter.copy_(saved[name])
    return model.eval()


def load_snapshot(checkpoint: Checkpoint, streams: slice) -> Snapshot:
    """What a run needs to go on with these streams of the global batch.

    Random states are there only if one process computed just these streams before.

    Raises:
        UsageError: if a file is damaged.
    """
    folder = checkpoint.folder
    try:
        progress = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        raise damaged(folder / _PROGRESS) from None
    layers: dict[int, list[Tensor]] = {}
    rng: dict[str, Tensor] = {}
    for path in sorted(folder.glob("streams_*.safetensors")):
        first, end = map(int, path.stem.split("_")[1:])
        if end <= streams.start or streams.stop <= first:
            continue
        inside = slice(max(streams.start, first) - first, min(streams.stop, end) - first)
        for name, tensor in _load(path).items():
            kind, _, key = name.partition(".")
            if kind == "memory":
                layers.setdefault(int(key), []).append(tensor[inside])
            elif (first, end) == (streams.start, streams.stop):
                rng[key] = tensor
    memory = Memory(tuple(torch.cat(layers[i]) for i in range(len(layers)))) if layers else None
    if memory is not None and memory.batch_size != streams.stop - streams.start:
        raise damaged(folder / "streams_*.safetensors")
    return Snapshot(progress, _load(folder / _OPTIMIZER), memory, rng)


def _weights(model: TransformerXL) -> dict[str, Tensor]:
    """The parameters, tied ones once, and the buffers that belong to the state."""
    state = model.state_dict()
    return dict(model.named_parameters()) | {name: b for name, b in model.named_buffers() if name in state}


def _write_streams(folder: Path, snapshot: Snapshot, streams: slice) -> None:
    layers = snapshot.memory.layers if snapshot.memory is not None else ()
    tensors = {f"memory.{i}": layer for i, layer in enumerate(layers)}
    tensors |= {f"rng.{kind}": state for kind, state in snapshot.rng.items()}
    _save(tensors, folder / f"streams_{streams.start:05d}_{streams.stop:05d}.safetensors")


def _write_main(
    folder: Path, model: TransformerXL, record: dict[str, Any], attachments: Mapping[str, str], snapshot: Snapshot
) -> None:
    _save(_weights(model), folder / _WEIGHTS)
    _save(snapshot.optimizer, folder / _OPTIMIZER)
    texts = {_RECORD: record, _PROGRESS: snapshot.progress}
    for name, value in texts.items():
        _write_text(folder / name, json.dumps(value, indent=1) + "\n")
    for name, text in attachments.items():
        _write_text(folder / name, text)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    with naming(path):
        save_file({name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}, path)
        path.chmod(path.parent.stat().st_mode & 0o666)  # the library writes files that only their owner may read
    flush(path)


def _write_text(path: Path, text: str) -> None:
    with naming(path):
        path.write_text(text, encoding="utf-8")
    flush(path)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (FileNotFoundError, SafetensorError):
        raise damaged(path) from None


def _open(folder: Path) -> Checkpoint:
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise UsageError(f"{folder}: of format {record['format']}, this is {FORMAT}; use the txl that wrote it")
        with read_from(folder / _RECORD):
            return Checkpoint(folder, record, ModelConfig(**record["model"]), Context(**record["context"]))
    except UsageError:
        raise
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        raise damaged(folder / _RECORD) from None


def _full_record(
    model: TransformerXL,
    context: Context,
    *,
    step: int,
    best: bool,
    record: Mapping[str, Any],
    attachments: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "step": step,
        "best": best,
        "model": as_dict(model.config),
        "context": as_dict(context),
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "attachments": {name: _digest(text.encode()) for name, text in attachments.items()},
        **record,
    }


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def damaged(path: Path) -> UsageError:
    """The error for a file of a checkpoint that does not hold what it should."""
    return UsageError(f"{path}: missing, truncated or damaged; use another checkpoint of the run, or train again")


def _whole(run: Path) -> list[Path]:
    """The checkpoints of a run, the last one last: a folder bears this name only once it is whole."""
    found = [path for path in run.glob("step_*") if re.fullmatch(r"step_\d{8,}", path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step_")))


def _remove_old(run: Path, keep_last: int) -> None:
    """Remove what is neither the best nor among the last, and what killed writes have left."""
    best = _pointed(run / "best")
    for old in _whole(run)[:-keep_last]:
        if old.name != best:
            _remove(old)
    for left in run.glob(".step_*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    for pointer in ("latest", "best"):
        for left in run.glob(f".tmp.*.{pointer}"):
            left.unlink()


def _remove(folder: Path) -> None:
    """Under a hidden name first: a removal cut short must not leave a folder that looks whole."""
    shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.tmp")))


def _pointed(pointer: Path) -> str | None:
    """The checkpoint that a pointer names, if it is there."""
    try:
        name = pointer.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return name if name and (pointer.parent / name).is_dir() else None


def _point(pointer: Path, name: str) -> None:
    with written_whole(pointer) as temporary:
        temporary.write_text(name + "\n", encoding="utf-8")
