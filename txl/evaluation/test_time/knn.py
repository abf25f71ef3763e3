"""kNN-LM: words that followed similar hidden states in the training text.

Source: Khandelwal et al. 2020 (arXiv 1911.00172, section 2). A store holds a pair (key k_i, value
v_i) for each token of the training text: the hidden state before it, and the token. With the k
pairs nearest to the hidden state h,

    (1) p_kNN(w) is proportional to sum_i 1[w = v_i] exp(-|h - k_i|^2 / temperature)
    (2) p(w) = (1 - lambda) p_model(w) + lambda p_kNN(w)

Differs from the paper: keys are the last hidden states, there the input of the last feed-forward
layer; the paper has no temperature.

The store is a folder:

    STORE/keys.npy      hidden states (N, D), float16
          values.npy    the word after each (N,), int32
          store.json    its sources: a store of another model or text is refused

It is written under a hidden name, flushed and renamed, so it is complete or absent. Arrays are
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
from txl.evaluation.config import KnnConfig
from txl.evaluation.reading import Segments, hidden_segments, of_counted
from txl.evaluation.test_time.mixture import mixed_nll
from txl.files import errors_naming, folder_written_whole, require_readable, written_whole
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


BLOCK = 1 << 16
"""Keys compared at a time."""


class NearestNeighbours:
    """A source of `Mixture` that searches a store; it has no state.

    With `knn_faiss`, an index finds the neighbours approximately; their distances are exact in both
    cases. Raises `UsageError` if faiss is requested and not installed.
    """

    def __init__(self, store: Store, config: KnnConfig, *, device: torch.device) -> None:
        self.keys_ND, self.values_N = (
            torch.from_numpy(store.keys_ND),
            torch.from_numpy(store.values_N),
        )
        if device.type == "cuda" and 2 * store.keys_ND.nbytes < torch.cuda.mem_get_info(device)[0]:
            self.keys_ND = self.keys_ND.to(device)
        self.k = min(config.knn_k, len(store))
        self.share = config.knn_lambda
        self.temperature = config.knn_temperature
        if config.knn_faiss:
            self.index = faiss_index(store)
        else:
            self.index = None

    def fresh_state(self, batch_size: int) -> None:
        """There is no state."""

    def mixed(
        self, nll_BT: Tensor, hidden_BTD: Tensor, target_BT: Tensor, state: None
    ) -> tuple[Tensor, None]:
        """(2) for every target."""
        distance_LK, place_LK = self._nearest(hidden_BTD.flatten(0, 1))
        value_LK = self.values_N[place_LK.cpu()].to(target_BT)
        is_target_LK = value_LK == target_BT.flatten()[:, None]
        nll_L = mixed_nll(
            nll_BT.flatten(), -distance_LK / self.temperature, is_target_LK, self.share
        )
        return nll_L.view_as(nll_BT), None

    def _nearest(self, query_LD: Tensor) -> tuple[Tensor, Tensor]:
        if self.index is None:
            return nearest(query_LD, self.keys_ND, self.k)
        _, found_LK = self.index.search(query_LD.float().cpu().numpy(), self.k)
        place_LK = torch.from_numpy(found_LK)  # -1: it found fewer
        key_LKD = (self.keys_ND[row_K].to(query_LD) for row_K in place_LK.clamp(min=0))
        pairs = zip(query_LD, key_LKD, strict=True)
        distance_LK = torch.stack(
            [(query_D - key_KD).square().sum(-1) for query_D, key_KD in pairs]
        )
        return distance_LK.masked_fill(place_LK.to(distance_LK.device) < 0, torch.inf), place_LK


def nearest(query_LD: Tensor, keys_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Squared distances and indices of the k keys nearest to each query, (L, k) each; exact.

    The keys may have another dtype and device than the queries; they are copied block by block.
    """
    best_LK = query_LD.new_empty(len(query_LD), 0)
    place_LK = torch.empty(len(query_LD), 0, dtype=torch.int64, device=query_LD.device)
    for begin in range(0, len(keys_ND), BLOCK):
        key_MD = keys_ND[begin : begin + BLOCK].to(query_LD)
        # |q - k|^2 without |q|^2, which is the same for all keys
        distance_LM = torch.addmm(key_MD.square().sum(-1)[None], query_LD, key_MD.T, alpha=-2)
        near_LK, at_LK = distance_LM.topk(min(k, len(key_MD)), largest=False)
        best_LK = torch.cat([best_LK, near_LK], 1)
        place_LK = torch.cat([place_LK, at_LK + begin], 1)
        if best_LK.shape[1] > k:
            best_LK, kept_LK = best_LK.topk(k, largest=False)
            place_LK = place_LK.gather(1, kept_LK)
    return best_LK + query_LD.square().sum(-1, keepdim=True), place_LK


def faiss_index(store: Store) -> Any:
    """The store's index, read from the store's folder or built there.

    As in the paper: product quantisation with inverted lists, of which 32 are searched; an exact
    index if the store is too small to train that. Raises `UsageError` if faiss is not installed, or
    the index file is damaged.
    """
    try:
        import faiss  # pyright: ignore[reportMissingImports]  # optional, and slow to import
    except ImportError:
        raise UsageError(
            "--knn_faiss: faiss is not installed; run: pip install faiss-cpu"
        ) from None
    path = store.folder / "index.faiss"
    if path.is_file():
        try:
            index = faiss.read_index(str(path))
        except RuntimeError:
            raise UsageError(f"{path}: damaged; remove it to have it rebuilt") from None
    else:
        index = _trained_index(faiss, store.keys_ND)
        with written_whole(path) as temporary:
            faiss.write_index(index, str(temporary))
    if isinstance(index, faiss.IndexIVF):
        index.nprobe = 32
    return index


def _trained_index(faiss: Any, keys_ND: np.ndarray) -> Any:
    n_key, width = keys_ND.shape
    n_cell = min(4096, round(n_key**0.5))
    n_train = 64 * max(256, n_cell)  # 64 keys per centroid: below 39 faiss warns
    if n_key < n_train:
        index = faiss.IndexFlatL2(width)
    else:
        n_code = next(n for n in range(64, 0, -1) if width % n == 0)
        index = faiss.index_factory(width, f"IVF{n_cell},PQ{n_code}")
        drawn = np.random.default_rng(0).choice(n_key, n_train, replace=False)
        index.train(keys_ND[np.sort(drawn)].astype(np.float32))
    for begin in range(0, n_key, BLOCK):
        index.add(keys_ND[begin : begin + BLOCK].astype(np.float32))
    return index
