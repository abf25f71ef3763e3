"""Reading checkpoints.

They may be damaged, old or malicious, so sizes are checked before anything is built.
"""

import math
import re
from collections.abc import Mapping
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
    SHARDS,
    WEIGHTS,
    damaged,
    name_of,
    read_into,
    shards_in,
    tensors_in,
)
from txl.checkpoint.record import Checkpoint, open_folder, require_some
from txl.checkpoint.save import Snapshot
from txl.config import ModelConfig, UsageError
from txl.files import require_readable
from txl.inference.frozen import cast_weights
from txl.memory import empty_memory
from txl.model.sizes import model_without_values, shapes_of, weights_of
from txl.model.streams import of_named, rows_joined
from txl.model.transformer import TransformerXL
from txl.ops.numbers import at_least_float32
from txl.runtime.distributed import local
from txl.runtime.records import read_json

_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Header = dict[str, tuple[tuple[int, ...], bool]]
"""Of each tensor in a file its shape, and whether it holds floating-point numbers."""


def load_model(
    checkpoint: Checkpoint,
    *,
    dropout: float = 0.0,
    dropatt: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> TransformerXL:
    """The model with its trained weights, in evaluation mode. Weights in 16 bits become float32,
    unless `dtype` is one of 16 bits, see `cast_weights`. Raises `UsageError` if the weights are
    damaged, not finite, or do not fit the configuration.
    """
    path = _path_of_weights(checkpoint.folder)
    require_weights(checkpoint)
    saved = {}
    for name, tensor in _tensors(checkpoint.folder, WEIGHTS, {}).items():
        saved[_current_name(name)] = tensor
    if not all(tensor.isfinite().all() for tensor in saved.values()):
        raise damaged(path, "holds weights that are not finite numbers")
    return model_with(
        saved, checkpoint.model_config, dropout=dropout, dropatt=dropatt, dtype=dtype
    ).eval()


def model_with(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    *,
    dropout: float,
    dropatt: float,
    dtype: torch.dtype = torch.float32,
) -> TransformerXL:
    """A model with a copy of these weights; `dtype` as `load_model`."""
    model = model_without_values(config, dropout=dropout, dropatt=dropatt, device="cpu")
    if all(weight.dtype != torch.float64 for weight in weights.values()):
        cast_weights(model, dtype)
    for name, weight in weights_of(model).items():
        if weight.dtype.itemsize == 2:
            half = weight.dtype
        else:
            half = None
        weight.data = weights[name].to(half or at_least_float32(weights[name].dtype), copy=True)
    return model


def load_weights(checkpoint: Checkpoint, model: TransformerXL) -> None:
    """Read the weights into a model, of a sharded one this rank's rows only. Raises `UsageError` if
    the weights are damaged, not finite, or do not fit the model.
    """
    require_weights(checkpoint)
    own = weights_of(model)
    names = {}
    for name in header_of_weights(checkpoint.folder):
        names[_current_name(name)] = name
    read_into({saved: own[name].detach() for name, saved in names.items()}, checkpoint.folder)
    if not all(local(tensor).isfinite().all() for tensor in own.values()):
        raise damaged(
            _path_of_weights(checkpoint.folder), "holds weights that are not finite numbers"
        )


def load_snapshot(
    checkpoint: Checkpoint, streams: slice, model: TransformerXL | None = None
) -> Snapshot:
    """The state that a run needs to resume with these streams of the global batch.

    It has random states only if one process computed exactly these streams before.

    Args:
        model: that is to resume; where it is sharded, so is the state of the optimizer.
    Raises:
        UsageError: if a file is missing or damaged.
    """
    folder = checkpoint.folder
    shape = checkpoint.model_config
    empty = empty_memory(shape, 1, like=torch.empty(0)).named()
    remembered: dict[str, list[Tensor]] = {}
    rng: dict[str, Tensor] = {}
    for path in _stream_files(checkpoint):
        first, end = map(int, path.stem.split("_")[1:])
        if end <= streams.start or streams.stop <= first:
            continue
        inside = slice(max(streams.start, first) - first, min(streams.stop, end) - first)
        for name, tensor in _load(path).items():
            kind, _, key = name.partition(".")
            if kind == "memory":
                if key not in empty or not _is_memory(tensor, end - first, like=empty[key]):
                    raise damaged(path)
                remembered.setdefault(key, []).append(tensor[inside])
            elif (first, end) == (streams.start, streams.stop):
                rng[key] = tensor
    sizes = set()
    for parts in remembered.values():
        sizes.add(sum(map(len, parts)))
    if remembered and (
        remembered.keys() != empty.keys() or sizes != {streams.stop - streams.start}
    ):
        raise damaged(folder / "streams_*.safetensors")
    memory = None
    if remembered:
        memory = of_named({name: rows_joined(parts) for name, parts in remembered.items()})
    if model is not None and model.is_sharded:
        parameters = dict(model.named_parameters())
    else:
        parameters = {}
    return Snapshot(
        progress_of(checkpoint), _tensors(folder, OPTIMIZER, parameters), memory, rng, folder
    )


def _tensors(folder: Path, file: str, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `file` holds where there are no shards: weights, or the state of the optimizer, whose
    names have a colon.

    Args:
        parameters: of a sharded model, whose state comes in shards too.
    """
    if not shards_in(folder) and not parameters:
        return _load(folder / file)
    tensors: dict[str, Tensor] = {}
    for name, (shape, dtype) in tensors_in(folder).items():
        if (":" in name) == (file == OPTIMIZER):
            like = parameters.get(name.rpartition(":")[0])
            if like is not None and like.shape == shape:
                tensors[name] = torch.empty_like(like.detach(), dtype=dtype)
            else:
                tensors[name] = torch.empty(shape, dtype=dtype)
    read_into(tensors, folder)
    return tensors


def _path_of_weights(folder: Path) -> Path:
    return folder / (SHARDS if shards_in(folder) else WEIGHTS)


def header_of_weights(folder: Path) -> Header:
    """`header_of` the weights in a checkpoint.

    Raises `UsageError` if they are missing or damaged.
    """
    if not shards_in(folder):
        return header_of(folder / WEIGHTS)
    found = tensors_in(folder).items()
    header = {}
    for name, (shape, dtype) in found:
        if ":" not in name:
            header[name] = (tuple(shape), dtype in _FLOATS.values())
    return header


def checkpoint_of(run: Path, step: int) -> Checkpoint:
    """The checkpoint of a step, all its files checked.

    Raises `UsageError` if there is none, or it is damaged.
    """
    found = require_some(run)
    if run / name_of(step) not in found:
        steps = ", ".join(path.name.removeprefix("step_").lstrip("0") for path in found)
        raise UsageError(
            f"--resume {step}: {run} holds no checkpoint of this step; there are {steps}"
        )
    checkpoint = open_folder(run / name_of(step))
    require_whole(checkpoint)
    return checkpoint


def newest_whole(run: Path) -> tuple[Checkpoint, list[UsageError]]:
    """The newest complete checkpoint, and the errors of newer ones.

    Raises `UsageError` if none is complete.
    """
    errors: list[UsageError] = []
    for folder in reversed(require_some(run)):
        try:
            checkpoint = open_folder(folder)
            require_whole(checkpoint)
            return checkpoint, errors
        except UsageError as error:
            errors.append(error)
    raise errors[0]


def require_whole(checkpoint: Checkpoint) -> None:
    """Check all files: first that they are those that were written, then that they belong together.
    Raises `UsageError` naming the file that is missing or damaged.
    """
    shards = shards_in(checkpoint.folder)
    if shards:
        in_one = []
    else:
        in_one = [checkpoint.folder / WEIGHTS, checkpoint.folder / OPTIMIZER]
    tensors = [*in_one, *_stream_files(checkpoint)]
    noted = []
    for name in checkpoint.digests:
        noted.append(checkpoint.folder / name)
    for path in dict.fromkeys([*noted, *shards, *tensors, checkpoint.folder / PROGRESS]):
        checkpoint.require_digest(path)
    _require_fit(checkpoint)
    for path in tensors:
        header_of(path)
    progress_of(checkpoint)


def require_weights(checkpoint: Checkpoint) -> None:
    """Check the weights, and compare their header with the configuration, before a model of that
    size is built. Raises `UsageError` if they are damaged or do not fit.
    """
    checkpoint.require_shards()
    if not shards_in(checkpoint.folder):
        checkpoint.require_digest(checkpoint.folder / WEIGHTS)
    _require_fit(checkpoint)


def _require_fit(checkpoint: Checkpoint) -> None:
    """Raise `UsageError` unless the header of the weights has what the configuration asks for."""
    path = _path_of_weights(checkpoint.folder)
    config = checkpoint.model_config
    header = header_of_weights(checkpoint.folder)
    n_element = sum(math.prod(shape) for shape, _ in header.values())
    try:
        expected = shapes_of(config, n_tensor=len(header), n_element=n_element)
    except (ValueError, KeyError) as error:
        raise damaged(checkpoint.folder / RECORD, error) from None
    if expected != {_current_name(name): shape for name, (shape, _) in header.items()}:
        raise damaged(path, f"the weights do not fit {RECORD} beside them")
    if not all(is_float for _, is_float in header.values()):
        raise damaged(path, "holds weights that are not floating-point numbers")


def _current_name(name: str) -> str:
    """The current name of a weight of version 0.1."""
    return name.replace(".attn.kernel.", ".attn.rule.")


def progress_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The content of progress.json. Raises `UsageError` if it is damaged."""
    path = checkpoint.folder / PROGRESS
    try:
        progress = read_json(path)
    except (OSError, ValueError):
        raise damaged(path) from None
    if not isinstance(progress, dict) or progress.get("step") != checkpoint.record["step"]:
        raise damaged(path, "of another step than the checkpoint")
    return progress


def header_of(path: Path) -> Header:
    """The header of a file of tensors. Raises `UsageError` if it is missing or damaged, `OSError`
    if it may not be read.
    """
    require_readable(path)
    try:
        with safe_open(path, framework="pt") as file:
            header = {}
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_slice(name)
                header[name] = (tuple(tensor.get_shape()), tensor.get_dtype() in _FLOATS)
            return header
    except (OSError, SafetensorError):
        raise damaged(path) from None


def _is_memory(tensor: Tensor, n_stream: int, *, like: Tensor) -> bool:
    """True for the tensor of so many streams that has grown from `like` along the axes that are
    empty there.
    """
    sizes = zip(tensor.shape[1:], like.shape[1:], strict=False)
    fits = tensor.ndim == like.ndim and all(size == own or not own for size, own in sizes)
    return (
        fits and len(tensor) == n_stream and tensor.is_floating_point() == like.is_floating_point()
    )


def _stream_files(checkpoint: Checkpoint) -> list[Path]:
    """The files of the streams, which must cover the batch without a gap."""
    pattern = re.compile(r"streams_(\d{5,})_(\d{5,})\.safetensors")
    found = []
    for path in checkpoint.folder.glob("streams_*"):
        match = pattern.fullmatch(path.name)
        if match:
            found.append((match, path))
    found.sort(key=lambda pair: int(pair[0][1]))
    ends = [0, *(int(match[2]) for match, _ in found)]
    n_stream = checkpoint.record.get("train", {}).get("batch_size", ends[-1] or 1)
    if [int(match[1]) for match, _ in found] != ends[:-1] or ends[-1] != n_stream:
        raise damaged(
            checkpoint.folder / "streams_*.safetensors", "not all streams of the batch are there"
        )
    return [path for _, path in found]


def _load(path: Path) -> dict[str, Tensor]:
    require_readable(path)
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        raise damaged(path) from None
