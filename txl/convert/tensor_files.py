"""Weights in the folder of a Hugging Face model: in one file, or in several with an index."""

import functools
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from txl.config import UsageError, require
from txl.convert.pickles import PickledTensor, read_pickle
from txl.files import require_readable, sha256
from txl.runtime.records import read_json

ONE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"
WEIGHTS = (ONE, INDEX, PICKLED, PICKLED_INDEX)
"""In the order in which transformers looks for them."""
_INDEXES = (INDEX, PICKLED_INDEX)


def weights_file(folder: Path) -> Path:
    """The file that stands for the weights: the only one, or the index of several; of both the one
    that transformers reads. Raises `UsageError` if there is none.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    names = " nor ".join(WEIGHTS)
    raise UsageError(f"{folder}: holds neither {names}; download the weights too")


def widest(tensors: Iterable[Tensor]) -> torch.dtype:
    """The dtype that holds all numbers of some tensors: that of all where they have one."""
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))


def tensors_of(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, or of those that an index names, mapped from the disk where the format
    allows it.

    Raises:
        UsageError: if files and index do not agree, or one is damaged.
    """
    if path.name in _INDEXES:
        return _of_index(path)
    return _of_one(path)


def fingerprint_of(path: Path) -> str:
    """Hex digest of the weights that a file stands for: of an index those of the files that it names,
    for it holds no weights itself.
    """
    if path.name not in _INDEXES:
        return sha256(path)
    digest = hashlib.sha256()
    for name in sorted(set(read_json(path)["weight_map"].values())):
        digest.update(f"{name} {sha256(path.with_name(name))}\n".encode())
    return digest.hexdigest()


def _of_index(path: Path) -> dict[str, Tensor]:
    folder = path.parent
    try:
        file_of = read_json(path)["weight_map"]
        names = set(file_of.values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"{path}: names no file for each tensor; use another copy") from None
    tensors: dict[str, Tensor] = {}
    for name in sorted(map(str, names)):
        is_inside = Path(name).name == name
        require(is_inside, f"{path}: names {name}, a file outside its folder; use another copy")
        require((folder / name).is_file(), f"{folder / name}: missing; download it too")
        of_file = _of_one(folder / name)
        for tensor in of_file:
            require(
                file_of.get(tensor) == name,
                f"{folder / name}: holds {tensor}, which {path.name} says is not there; use one copy"
                " of all files",
            )
        tensors |= of_file
    missing = sorted(set(file_of) - set(tensors))
    require(
        not missing,
        f"{path}: {', '.join(missing[:3])} is in none of the files; use one copy of all files",
    )
    return tensors


def _of_one(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return _of_file(path)
    return _of_pickle(path)


def _of_file(path: Path) -> dict[str, Tensor]:
    """Each tensor in a mapping of its own, which ends with it: one for all would keep in memory what
    has been copied, as long as a single tensor is in use.
    """
    try:
        require_readable(path)
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; name a file that can be read"
        ) from None
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
        return {name: _mapped(path, name) for name in names}
    except (OSError, SafetensorError):
        raise UsageError(f"{path}: truncated or damaged; use another copy") from None


def _mapped(path: Path, name: str) -> Tensor:
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)


def _of_pickle(path: Path) -> dict[str, Tensor]:
    held: Any = read_pickle(path)
    good = isinstance(held, Mapping) and bool(held)
    good = good and all(isinstance(value, PickledTensor) for value in held.values())
    require(good, f"{path}: holds no state dict; use the file that save_pretrained wrote")
    try:
        return {name: tensor.read() for name, tensor in held.items()}
    except ValueError as error:
        raise UsageError(f"{path}: damaged ({error}); use another copy") from None
