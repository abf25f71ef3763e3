"""Streams of integers: one-dimensional .npy files, memory-mapped, with the offsets of their documents beside them."""

from pathlib import Path

import numpy as np

from .files import DataError, reading
from .token_file import checked


def open_stream(path: Path) -> np.ndarray:
    """The integers of a .npy file, read-only. Raises `DataError` if it is missing, damaged, empty, or holds something
    else."""
    with reading(path):
        if not path.is_file():
            raise DataError(f"{path}: no such file; --dataset ids needs train.npy, valid.npy and test.npy")
        try:
            ids = np.lib.format.open_memmap(path, mode="r")
        except (ValueError, EOFError) as error:
            raise DataError(f"{path}: no array of numpy ({str(error).splitlines()[0]}); use np.save") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
        raise DataError(f"{path}: holds {ids.dtype} of shape {ids.shape}; it needs integers of shape (n,)")
    return ids


def open_checked(cache: Path, path: Path, n_token: int) -> np.ndarray:
    """The integers of a .npy file. Raises `DataError` also if some are outside a vocabulary of `n_token`."""
    ids = open_stream(path)
    least, largest = id_range(cache, path)
    if least < 0 or largest >= n_token:
        held = f"holds ids from {least} to {largest}, outside the vocabulary of {n_token}"
        raise DataError(f"{path}: {held}; give a larger --vocab_size, or other ids")
    return ids


def id_range(cache: Path, path: Path) -> list[int]:
    """The least and the largest integer of a file; `cache` keeps them."""

    def found() -> str:
        ids = open_stream(path)
        return f"{ids.min()} {ids.max()}"

    return [int(n) for n in checked(cache, path, found).split()]


def document_offsets(path: Path, n_token: int) -> np.ndarray:
    """Indices where documents begin, from valid.documents.npy for valid.npy. Raises `DataError` if there is no such
    file, or it does not fit."""
    beside = path.with_name(f"{path.stem}.documents.npy")
    if not beside.is_file():
        raise DataError(f"{beside}: no such file; documents of --dataset ids need the index where each begins there")
    starts = open_stream(beside)
    if (np.diff(starts.astype(np.int64)) <= 0).any() or starts[0] < 0 or starts[-1] >= n_token:
        raise DataError(f"{beside}: holds no ascending indices below {n_token}, the number of ids in {path.name}")
    return np.asarray(starts)
