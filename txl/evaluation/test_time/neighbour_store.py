"""A store of the training text for nearest neighbours, in a folder:

    STORE/keys.npy      hidden states (N, D), float16
          values.npy    the word after each (N,), int32
          store.json    its sources: a store of another model or text is refused

A store is written under a hidden name, flushed and renamed, so it is complete or absent. Arrays are
memory-mapped.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from txl.config import Context, ModelConfig, UsageError, require
from txl.evaluation.reading import Segments, hidden_segments, of_counted
from txl.files import errors_naming, folder_written_whole, require_readable
from txl.inference.frozen import Frozen
from txl.model.transformer import TransformerXL
from txl.runtime.records import read_json

FORMAT = 1
_KEYS = "keys.npy"
_VALUES = "values.npy"
_RECORD = "store.json"
_BLOCK = 1 << 16
_KEY = np.dtype("<f2")
_VALUE = np.dtype("<i4")


@dataclass(frozen=True, eq=False)
class Store:
    """Hidden states of a text (keys), and the word after each (values)."""

    folder: Path
    keys_ND: np.ndarray
    values_N: np.ndarray

    def __len__(self) -> int:
        return len(self.values_N)


def open_store(
    folder: Path, source: Mapping[str, Any], shape: ModelConfig, *, n_pair: int
) -> Store:
    """The store in a folder.

    Args:
        source: the expected sources, JSON-ready.
        shape: of the model.
        n_pair: the expected number of tokens.
    Raises:
        UsageError: if it has other sources, or is not a store, or damaged.
    """
    try:
        record = read_json(folder / _RECORD)
        theirs = {**record["source"], "format": record["format"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"--knn_store {folder}: no store of hidden states; name a new folder"
        ) from None
    ours = {**json.loads(json.dumps(source)), "format": FORMAT}
    other = []
    for name in ours:
        if theirs.get(name) != ours[name]:
            other.append(name)
    if other:
        raise UsageError(
            f"--knn_store {folder}: made from another {other[0].replace('_', ' ')}; "
            "name a new folder, or remove this one"
        )
    try:
        keys_ND, values_N = (_mapped(folder / name) for name in (_KEYS, _VALUES))
    except Exception:  # numpy reads headers as Python, and raises whatever that and the sizes give
        raise UsageError(
            f"--knn_store {folder}: truncated or damaged; remove it to have it rebuilt"
        ) from None
    fault = _fault(keys_ND, values_N, shape, n_pair)
    require(fault is None, f"--knn_store {folder}: {fault}; remove it to have it rebuilt")
    return Store(folder, keys_ND, values_N)


def _mapped(path: Path) -> np.ndarray:
    """The array of a file. Raises what numpy raises of headers that claim any size."""
    require_readable(path)
    with np.errstate(over="ignore"):
        return np.lib.format.open_memmap(path, mode="c")


def _fault(
    keys_ND: np.ndarray, values_N: np.ndarray, shape: ModelConfig, n_pair: int
) -> str | None:
    """What is wrong with the arrays of a store; None if nothing.

    Reads them once, as each search does.
    """
    if keys_ND.shape != (n_pair, shape.d_model) or keys_ND.dtype != _KEY:
        return (
            f"its keys are {keys_ND.dtype} {keys_ND.shape}, expected {_KEY}"
            f" {(n_pair, shape.d_model)}"
        )
    if values_N.shape != (n_pair,) or values_N.dtype != _VALUE:
        return f"its values are {values_N.dtype} {values_N.shape}, expected {_VALUE} {(n_pair,)}"
    if values_N.min() < 0 or values_N.max() >= shape.n_token:
        return f"holds values outside the vocabulary of {shape.n_token} words"
    blocks = (keys_ND[begin : begin + _BLOCK] for begin in range(0, n_pair, _BLOCK))
    if all(np.isfinite(block).all() for block in blocks):
        return None
    return "holds keys that are not finite"


def build_store(
    folder: Path,
    model: TransformerXL,
    segments: Segments,
    context: Context,
    *,
    n_pair: int,
    source: Mapping[str, Any],
) -> None:
    """Read a text and store the last hidden state before each scored token, with that token.

    Args:
        folder: must not exist.
        n_pair: scored tokens in `segments`.
        source: what the store is made from, JSON-ready; checked by `open_store`.
    Raises:
        UsageError: if the disk has too little space; checked before the text is read.
    """
    with folder_written_whole(folder) as temporary:
        _require_room(temporary, n_pair * (model.config.d_model * _KEY.itemsize + _VALUE.itemsize))
        with (
            _array(temporary / _KEYS, _KEY, (n_pair, model.config.d_model)) as keys,
            _array(temporary / _VALUES, _VALUE, (n_pair,)) as values,
        ):
            for key_LD, value_L in _pairs(model, segments, context):
                keys.write(key_LD.cpu().numpy().astype(_KEY).tobytes())
                values.write(value_L.cpu().numpy().astype(_VALUE).tobytes())
        record = temporary / _RECORD
        with errors_naming(record):
            record.write_text(
                json.dumps({"format": FORMAT, "source": source}, indent=1) + "\n", encoding="utf-8"
            )


def _pairs(
    model: TransformerXL, segments: Segments, context: Context
) -> Iterator[tuple[Tensor, Tensor]]:
    """Hidden states and the words they predict, (L, D) and (L,), of the scored tokens of each
    segment.
    """
    # a store serves evaluations in all dtypes
    with torch.autocast(model.device.type, enabled=False):
        for hidden_BTD, target_BT, counted_BT in hidden_segments(Frozen(model), segments, context):
            yield of_counted(hidden_BTD, counted_BT), of_counted(target_BT, counted_BT)


@contextmanager
def _array(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> Iterator[BinaryIO]:
    """A .npy file opened for its elements.

    Not a memory map: on a full disk, writing to one is a bus error.
    """
    with errors_naming(path), path.open("wb") as file:
        header = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(file, header)
        yield file


def _require_room(folder: Path, n_byte: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < n_byte:
        raise UsageError(
            f"--knn_store {folder.parent}: the store takes {n_byte / 2**30:.1f} GiB and"
            f" {free / 2**30:.1f} GiB are free; name a folder on another disk, or keep fewer tokens"
            " with --knn_tokens"
        )
