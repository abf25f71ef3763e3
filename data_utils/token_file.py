"""Token files: a header and the ids as uint16 or uint32, memory-mapped.

The header holds fingerprints of the text and the vocabulary and a checksum of the ids. checked.json keeps the result of
each check that reads a whole file, with the size and times of the file: it is read again only when these have changed.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from txl.files import sha256, written_whole

from .files import read_record, write_record
from .words import Block

_HEADER_BYTES = 4096
_SETTLED_NS = 2 * 10**9
"""A younger file may change again without a new modification time."""


def checked(cache: Path, path: Path, find: Callable[[], str]) -> str:
    """The result of `find` on the content of a file, from checked.json if the file has not changed since."""
    store = cache / "checked.json"
    state = path.stat()
    stamp = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
    known = read_record(store)
    match known.get(name := str(path.resolve())):
        case [then, str(answer)] if then == stamp:
            return answer
    answer = find()
    if time.time_ns() - state.st_mtime_ns > _SETTLED_NS:
        with suppress(OSError):  # a read-only cache folder is no error
            write_record(store, known | {name: [stamp, answer]})
    return answer


def write_tokens(
    path: Path, fingerprint: dict[str, Any], n_word: int, blocks: Iterable[Block], starts: Sequence[int] = ()
) -> dict[str, Any]:
    """Write a token file with ids below `n_word`; returns its header. `starts` is where the files of the text begin,
    read at the end."""
    dtype = np.uint32 if n_word > 2**16 else np.uint16
    n_token = n_unknown = n_eos = 0
    checksum = hashlib.sha256()
    with written_whole(path) as temporary, temporary.open("wb") as file:
        file.write(bytes(_HEADER_BYTES))
        for block in blocks:
            content = block.ids.astype(dtype).tobytes()
            checksum.update(content)
            file.write(content)
            n_token += len(block.ids)
            n_unknown += block.n_unknown
            n_eos += block.n_eos
        header = {
            "fingerprint": fingerprint,
            "dtype": np.dtype(dtype).name,
            "n_token": n_token,
            "n_unknown": n_unknown,
            "n_eos": n_eos,
            "checksum": checksum.hexdigest(),
            **({"starts": starts} if starts else {}),
        }
        file.seek(0)
        file.write(json.dumps(header).encode())
    return header


def read_header(path: Path, fingerprint: dict[str, Any]) -> dict[str, Any] | None:
    """The header of a token file, or None if it is missing, made from something else, or does not fit the file."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(_HEADER_BYTES).rstrip(b"\0"))
        counts = [header[name] for name in ("n_token", "n_unknown", "n_eos")]
        # no other dtype: np.memmap would accept "O" and use the bytes of the file as addresses
        fits = header["dtype"] in ("uint16", "uint32") and all(type(n) is int and n >= 0 for n in counts)
        n_byte = _HEADER_BYTES + header["n_token"] * np.dtype(header["dtype"]).itemsize if fits else -1
        fits = fits and header["n_token"] > 0 and path.stat().st_size == n_byte
        return header if fits and header["fingerprint"] == fingerprint else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def mapped_ids(path: Path, header: dict[str, Any]) -> np.ndarray:
    """The ids of a token file, memory-mapped and read-only."""
    return np.memmap(path, dtype=header["dtype"], mode="r", offset=_HEADER_BYTES, shape=(header["n_token"],))


def fault(path: Path, header: dict[str, Any], n_word: int) -> str:
    """What is wrong with the ids of a token file; empty if nothing."""
    if sha256(path, start=_HEADER_BYTES) != header.get("checksum"):
        return "damaged"
    return "" if mapped_ids(path, header).max() < n_word else "ids outside the vocabulary"
