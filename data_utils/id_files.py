"""Files of integers: .npy, and .bin of nanoGPT, llm.c, Megatron-LM and fairseq. They are memory-mapped."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from .raw_text import DataError, reading

TYPES = {
    "uint8": "u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "int32": "<i4",
    "int64": "<i8",
    "uint16_be": ">u2",
    "int32_be": ">i4",
    "int64_be": ">i8",
}
"""The types that --ids_dtype names; be: big-endian."""
PLAIN = "uint16"
"""What a .bin file holds of which nothing says what it holds: nanoGPT's has no header."""
_MEGATRON, _FAIRSEQ = b"MMIDIDX\0\0", b"TNTIDX\0\0"
_NUMBERED_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
"""Megatron's and fairseq's numbers of integer types."""
_LLM_C = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
"""The magic number and version at the beginning of llm.c's files, of GPT-2's ids and of Llama 3's."""
_LLM_C_HEADER = 1024


class Ids(NamedTuple):
    """The integers of a file, read-only.

    Attributes:
        starts: indices where documents begin; None: the file does not say.
        is_plain: nothing says of which type the integers are.
    """

    ids: np.ndarray
    starts: np.ndarray | None = None
    is_plain: bool = False


class _Index(NamedTuple):
    dtype: np.dtype
    starts: np.ndarray
    n_token: int


def open_ids(path: Path, dtype: str) -> Ids:
    """The integers of a file. Raises `DataError` if it is missing, damaged, empty, or holds something else.

    Args:
        dtype: a key of `TYPES`, of a .bin file that does not say it itself; auto: `PLAIN`.
    """
    with reading(path):
        if not path.is_file():
            raise DataError(f"{path}: no such file; --dataset ids needs a file of each split, .npy or .bin")
        return _bin(path, dtype) if path.suffix == ".bin" else _npy(path)


def index_of(path: Path) -> Path | None:
    """The index of Megatron-LM or fairseq of a .bin file; None where there is none."""
    index = path.with_suffix(".idx")
    return index if path.suffix == ".bin" and index.is_file() else None


def _npy(path: Path) -> Ids:
    try:
        with np.errstate(over="ignore"):  # of sizes that a header claims
            ids = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # numpy reads the header as Python, and raises whatever that and the sizes give
        if "Python objects" in str(error):
            advice = "join rows with np.concatenate and save one array of integers"
            raise DataError(f"{path}: holds Python objects, such as rows of different lengths; {advice}") from None
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: no array of numpy ({why}); use np.save") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
        raise DataError(f"{path}: holds {ids.dtype} of shape {ids.shape}; it needs integers of shape (n,)")
    return Ids(ids)


def _bin(path: Path, dtype: str) -> Ids:
    size, index = path.stat().st_size, index_of(path)
    if index is not None:
        held = _index(index)
        _require_size(path, size, held.n_token, held.dtype, index.name)
        return Ids(np.memmap(path, dtype=held.dtype, mode="r"), held.starts)
    with path.open("rb") as file:
        head = file.read(_LLM_C_HEADER)
    if head.startswith(b"\x93NUMPY"):
        raise DataError(f"{path}: holds an array of numpy; name it {path.stem}.npy")
    magic, version, n_token = np.frombuffer(head, "<i4", 3).tolist() if len(head) == _LLM_C_HEADER else (0, 0, 0)
    if kind := _LLM_C.get((magic, version)):
        _require_size(path, size - _LLM_C_HEADER, n_token, np.dtype(kind), "its header")
        return Ids(np.memmap(path, dtype=kind, mode="r", offset=_LLM_C_HEADER))
    kind = np.dtype(TYPES[PLAIN if dtype == "auto" else dtype])
    if not size or size % kind.itemsize:
        advice = "write it again, or name another type with --ids_dtype"
        raise DataError(f"{path}: has {size} bytes, which are no ids of {kind.itemsize} bytes; {advice}")
    return Ids(np.memmap(path, dtype=kind, mode="r"), is_plain=dtype == "auto")


def _require_size(path: Path, size: int, n_token: int, dtype: np.dtype, who: str) -> None:
    """Raise `DataError` unless the ids of a file fill it."""
    if n_token < 1 or size != n_token * dtype.itemsize:
        what = f"has {size} bytes, not the {n_token} ids of {dtype} that {who} names"
        raise DataError(f"{path}: {what}; write it again")


def _index(path: Path) -> _Index:
    """What an .idx file says: of Megatron-LM (version 1), or of fairseq (mmap), where each sequence is a document.

    Both begin with a magic number, a version, the number of the type and that of sequences, S; then come, of
    Megatron-LM, the number of documents, D; of both, S lengths and S places; of Megatron-LM, D sequences.
    """
    with reading(path):
        content = path.read_bytes()
    if content.startswith(_FAIRSEQ):
        advice = "binarise with --dataset-impl mmap"
        raise DataError(f"{path}: an index of fairseq's older kind, which is not read; {advice}")
    kind = _NUMBERED_TYPES.get(content[17]) if len(content) > 17 else None
    numbers = np.frombuffer(content[18:34].ljust(16, b"\0"), dtype="<u8").tolist()
    n_sequence, n_document = numbers
    is_fairseq = len(content) == 26 + 12 * n_sequence
    is_megatron = len(content) == 34 + 12 * n_sequence + 8 * n_document
    if content[:9] != _MEGATRON or kind is None or not (is_fairseq or is_megatron):
        what = "no index of Megatron-LM or fairseq of integers, or a cut one"
        raise DataError(f"{path}: {what}; write it again")
    begin = 34 if is_megatron else 26
    ends_S = np.cumsum(np.frombuffer(content, "<i4", n_sequence, offset=begin).astype(np.int64))
    begins_S = np.append(0, ends_S)
    first_D = np.arange(n_sequence)
    if is_megatron:
        first_D = np.frombuffer(content, "<i8", n_document, offset=begin + 12 * n_sequence)
    if (first_D < 0).any() or (first_D > n_sequence).any():
        raise DataError(f"{path}: names documents that are not there; write it again")
    n_token = int(begins_S[-1])
    starts = np.unique(begins_S[first_D])
    return _Index(np.dtype(kind), starts[starts < n_token], n_token)
