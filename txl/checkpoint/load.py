"""Reading checkpoints, which may be damaged, old, or made by others: nothing is built before it is known to fit."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from txl.checkpoint.folder import (
    OPTIMIZER,
    PROGRESS,
    RECORD,
    WEIGHTS,
    checkpoints,
    damaged,
    is_checkpoint,
    name_of,
    point,
    pointed,
)
from txl.checkpoint.save import FORMAT, Snapshot, digest_of, digest_of_file, weights_of
from txl.config import Context, ModelConfig, UsageError
from txl.memory import Memory
from txl.model.transformer import TransformerXL
from txl.records import read_json, require_fields

_FIELDS = {
    **{"format": int, "step": int, "best": bool, "parameters": int, "versions": dict[str, str]},
    **{"model": dict[str, Any], "context": dict[str, Any], "train": dict[str, Any], "data": dict[str, Any]},
    **{"attachments": dict[str, str], "files": dict[str, str], "texts": dict[str, str]},
}
"""Of config.json; others may stand beside them."""
_FLOATS = ("F64", "F32", "F16", "BF16")
Header = dict[str, tuple[tuple[int, ...], str]]
"""Shape and kind of number of each tensor in a file."""


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
        except OSError:
            raise damaged(self.folder / name) from None
        if digest_of(text) != self.record.get("attachments", {}).get(name):
            raise damaged(self.folder / name)
        return text.decode()

    def fingerprint(self) -> str:
        """Hex digest of the weights."""
        return digest_of_file(self.folder / WEIGHTS)

    def require_whole(self) -> None:
        """Look at every file: one that was written with a checksum must still have it.

        Raises:
            UsageError: naming the file that is missing or damaged.
        """
        require_weights(self)
        for path in (self.folder / OPTIMIZER, *_stream_files(self)):
            self.require_digest(path)
            header_of(path)
        progress_of(self)
        for name in self.record.get("attachments", {}):
            self.attachment(Path(name).name)

    def require_digest(self, path: Path) -> None:
        """Raise `UsageError` unless a file has the checksum that config.json holds of it, if it holds one."""
        files = self.record.get("files", {})
        if not path.is_file() or digest_of_file(path) != files.get(path.name, digest_of_file(path)):
            raise damaged(path)


def open_checkpoint(path: Path) -> Checkpoint:
    """The best checkpoint of a run's folder, else its last; or the one whose folder is given.

    Raises:
        UsageError: if there is none, or it is damaged.
    """
    if not path.is_dir():
        raise UsageError(f"--work_dir {path}: no such folder; give the folder of a run, as in train.py --work_dir")
    if is_checkpoint(path):
        return _open(path)
    best = pointed(path / "best")
    return last_checkpoint(path) if best is None else _open(path / best)


def last_checkpoint(run: Path) -> Checkpoint:
    """The checkpoint of the highest step.

    Raises:
        UsageError: if there is none, or it is damaged.
    """
    return _open(_require_some(run)[-1])


def checkpoint_of(run: Path, step: int) -> Checkpoint:
    """The checkpoint of a step, every file looked at.

    Raises:
        UsageError: if there is none, or it is damaged.
    """
    found = _require_some(run)
    if run / name_of(step) not in found:
        steps = ", ".join(path.name.removeprefix("step_").lstrip("0") for path in found)
        raise UsageError(f"--resume {step}: {run} holds no checkpoint of this step; there are {steps}")
    checkpoint = _open(run / name_of(step))
    checkpoint.require_whole()
    return checkpoint


def newest_whole(run: Path) -> tuple[Checkpoint, list[UsageError]]:
    """The checkpoint of the highest step that is whole, and what is wrong with those of higher steps.

    Raises:
        UsageError: if none is whole.
    """
    errors: list[UsageError] = []
    for folder in reversed(_require_some(run)):
        try:
            checkpoint = _open(folder)
            checkpoint.require_whole()
            return checkpoint, errors
        except UsageError as error:
            errors.append(error)
    raise errors[0]


def point_at_best(run: Path) -> None:
    """Let `best` name the last checkpoint that was the best when it was saved: a kill may have come in between."""
    for folder in reversed(checkpoints(run)):
        try:
            is_best = _open(folder).record.get("best")
        except UsageError:  # damaged
            continue
        if is_best:
            point(run / "best", folder.name)
            return


def load_model(checkpoint: Checkpoint, *, dropout: float = 0.0, dropatt: float = 0.0) -> TransformerXL:
    """The model with its trained weights, in evaluation mode.

    Raises:
        UsageError: if the weights are damaged, not finite, or do not fit the configuration.
    """
    path = checkpoint.folder / WEIGHTS
    require_weights(checkpoint)
    saved = _load(path)
    if not all(tensor.isfinite().all() for tensor in saved.values()):
        raise damaged(path, "holds weights that are not finite numbers")
    model = TransformerXL(checkpoint.model_config, dropout=dropout, dropatt=dropatt)
    with torch.no_grad():
        for name, parameter in weights_of(model).items():
            parameter.data = parameter.data.to(saved[name].dtype)
            parameter.copy_(saved[name])
    return model.eval()


def require_weights(checkpoint: Checkpoint) -> None:
    """Compare the header of the weights with the configuration, before anything of its size is built.

    Raises:
        UsageError: if the weights are damaged or do not fit.
    """
    path, config = checkpoint.folder / WEIGHTS, checkpoint.model_config
    header = header_of(path)
    wrong = damaged(path, f"the weights do not fit {RECORD} beside them")
    n_element = sum(math.prod(shape) for shape, _ in header.values())
    loops = max(config.n_bucket, config.n_feature), max(config.n_layer, len(config.cutoffs), len(config.tie_projs))
    if loops[0] > max(n_element, 2**10) or loops[1] > len(header) or (config.max_distance or 0) >= 2**31:
        raise wrong  # what a model of such sizes would be built with takes for ever
    try:
        with torch.device("meta"):
            expected = {name: tuple(tensor.shape) for name, tensor in weights_of(TransformerXL(config)).items()}
    except (RuntimeError, OverflowError, TypeError):  # sizes beyond a tensor's
        raise wrong from None
    except (ValueError, KeyError) as error:
        raise damaged(checkpoint.folder / RECORD, error) from None
    if expected != {name: shape for name, (shape, _) in header.items()}:
        raise wrong
    if any(kind not in _FLOATS for _, kind in header.values()):
        raise damaged(path, "holds weights that are not floating-point numbers")
    checkpoint.require_digest(path)


def load_snapshot(checkpoint: Checkpoint, streams: slice) -> Snapshot:
    """What a run needs to go on with these streams of the global batch.

    Random states are there only if one process computed just these streams before.

    Raises:
        UsageError: if a file is missing or damaged.
    """
    folder = checkpoint.folder
    layers: dict[int, list[Tensor]] = {}
    rng: dict[str, Tensor] = {}
    for path in _stream_files(checkpoint):
        first, end = map(int, path.stem.split("_")[1:])
        if end <= streams.start or streams.stop <= first:
            continue
        inside = slice(max(streams.start, first) - first, min(streams.stop, end) - first)
        for name, tensor in _load(path).items():
            kind, _, key = name.partition(".")
            if kind == "memory":
                if not _is_memory(tensor, end - first, checkpoint.model_config.d_model):
                    raise damaged(path)
                layers.setdefault(int(key), []).append(tensor[inside])
            elif (first, end) == (streams.start, streams.stop):
                rng[key] = tensor
    n_layer, n_stream = checkpoint.model_config.n_layer, streams.stop - streams.start
    sizes = {sum(map(len, parts)) for parts in layers.values()}
    if layers and (sorted(layers) != list(range(n_layer)) or sizes != {n_stream}):
        raise damaged(folder / "streams_*.safetensors")
    memory = Memory(tuple(torch.cat(layers[i]) for i in range(n_layer))) if layers else None
    return Snapshot(progress_of(checkpoint), _load(folder / OPTIMIZER), memory, rng, folder)


def progress_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """What progress.json says.

    Raises:
        UsageError: if it is damaged.
    """
    path = checkpoint.folder / PROGRESS
    try:
        progress = read_json(path)
    except (OSError, ValueError):
        raise damaged(path) from None
    if not isinstance(progress, dict) or progress.get("step") != checkpoint.record["step"]:
        raise damaged(path, "tells of another step than the checkpoint is of")
    return progress


def header_of(path: Path) -> Header:
    """Shapes and kinds of numbers in a file of tensors, without reading them.

    Raises:
        UsageError: if it is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except (OSError, SafetensorError):
        raise damaged(path) from None


def _is_memory(tensor: Tensor, n_stream: int, d_model: int) -> bool:
    return tensor.is_floating_point() and tensor.ndim == 3 and tensor.shape[::2] == (n_stream, d_model)


def _stream_files(checkpoint: Checkpoint) -> list[Path]:
    """The files of the streams, which follow one another without a gap up to the size of the batch."""
    pattern = re.compile(r"streams_(\d{5,})_(\d{5,})\.safetensors")
    found = [(m, path) for path in checkpoint.folder.glob("streams_*") if (m := pattern.fullmatch(path.name))]
    found.sort(key=lambda pair: int(pair[0][1]))
    ends = [0, *(int(match[2]) for match, _ in found)]
    n_stream = checkpoint.record.get("train", {}).get("batch_size", ends[-1] or 1)
    if [int(match[1]) for match, _ in found] != ends[:-1] or ends[-1] != n_stream:
        raise damaged(checkpoint.folder / "streams_*.safetensors", "not all streams of the batch are there")
    return [path for _, path in found]


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        raise damaged(path) from None


def _open(folder: Path) -> Checkpoint:
    path = folder / RECORD
    try:
        record = read_json(path)
        if not isinstance(record, dict):
            raise ValueError("holds no JSON object")
        if record.get("format") != FORMAT:
            raise ValueError(f"of format {record.get('format')}, this txl reads {FORMAT}")
        require_fields({name: value for name, value in record.items() if name in _FIELDS}, _FIELDS)
        model, context = (
            cls(**require_fields(record[name], cls)) for name, cls in (("model", ModelConfig), ("context", Context))
        )
        return Checkpoint(folder, {"step": 0, **record}, model, context)
    except (OSError, KeyError, json.JSONDecodeError, UnicodeDecodeError):
        raise damaged(path) from None
    except ValueError as error:
        raise damaged(path, error) from None


def _require_some(run: Path) -> list[Path]:
    found = checkpoints(run)
    if not found:
        raise UsageError(f"--work_dir {run}: holds no checkpoint; train first, or give the folder of another run")
    return found
