"""kNN-LM against the paper's formula and a search by hand; the store's files."""

import errno
import json
import math
import os
import re
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.laws.conftest import N_TOKEN, build
from txl import Context, TransformerXL
from txl.config import UsageError
from txl.data_utils.segments import RowStream, scoring_stream
from txl.evaluation.config import KnnConfig
from txl.evaluation.reading import warmup_segments
from txl.evaluation.score import evaluate
from txl.evaluation.test_time import Mixture, NearestNeighbours, knn
from txl.evaluation.test_time.knn import Store, build_store, open_store
from txl.inference.frozen import Frozen

CONTEXT = Context(tgt_len=4, mem_len=6)
TRAIN = np.random.default_rng(1).integers(0, 8, 60)
TEXT = np.random.default_rng(2).integers(0, 8, 30)
SOURCE = {"checkpoint": "c", "text": "t", "tokens": 60}


def stream(ids: np.ndarray, batch_size: int = 1) -> RowStream:
    n_warmup = warmup_segments(2, CONTEXT)
    return scoring_stream(ids, batch_size=batch_size, tgt_len=CONTEXT.tgt_len, n_warmup=n_warmup)


def opened_store(folder: Path, source: dict[str, object]) -> Store:
    return open_store(folder, source, build("pre_lnorm_adaptive").config, n_pair=len(TRAIN) - 1)


def made(folder: Path, model: TransformerXL, batch_size: int = 1) -> Store:
    build_store(
        folder, model, stream(TRAIN, batch_size), CONTEXT, n_pair=len(TRAIN) - 1, source=SOURCE
    )
    return opened_store(folder, SOURCE)


@pytest.fixture(scope="module")
def model() -> TransformerXL:
    torch.manual_seed(0)
    return build("pre_lnorm_adaptive", n_layer=2)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, model: TransformerXL) -> Store:
    return made(tmp_path_factory.mktemp("kept") / "store", model)


@pytest.fixture
def folder(tmp_path: Path, kept: Store) -> Path:
    """A copy of the store, to be damaged."""
    return Path(shutil.copytree(kept.folder, tmp_path / "store"))


def mixture(model: TransformerXL, opened: Store, **settings: Any) -> Mixture:
    return Mixture(
        Frozen(model),
        [NearestNeighbours(opened, KnnConfig(**settings), device=torch.device("cpu"))],
    )


def hidden_of(model: TransformerXL, ids: np.ndarray) -> Tensor:
    """The last hidden state at every token but the last, (L, D), read in one go without a limit to the memory."""
    hidden, memory = [], None
    with torch.no_grad():
        for begin in range(0, len(ids) - 1, CONTEXT.tgt_len):
            end = min(begin + CONTEXT.tgt_len, len(ids) - 1)
            out_BTD, memory = model(torch.from_numpy(ids[None, begin:end]), memory, CONTEXT)
            hidden += list(out_BTD[0])
    return torch.stack(hidden)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_store_holds_each_token_once_with_the_hidden_state_before_it(
    tmp_path: Path, model: TransformerXL, batch_size: int
) -> None:
    opened = made(tmp_path / "store", model, batch_size)
    assert (opened.keys_ND.dtype, opened.values_N.dtype) == (np.float16, np.int32)
    assert len(opened) == len(TRAIN) - 1
    key_ND, value_N = hidden_of(model, TRAIN).numpy(), TRAIN[1:]
    distance_NN = np.square(key_ND[:, None] - opened.keys_ND[None]).sum(-1)
    mine_N = distance_NN.argmin(1)
    assert sorted(mine_N) == list(range(len(TRAIN) - 1))
    np.testing.assert_allclose(opened.keys_ND[mine_N], key_ND, rtol=1e-3, atol=1e-3)
    assert opened.values_N[mine_N].tolist() == value_N.tolist()


@pytest.mark.parametrize("k", [1, 5, 1000])
def test_nats_are_the_formula(kept: Store, model: TransformerXL, k: int) -> None:
    """Khandelwal et al. 2020, eqs. 2 and 3, one pair at a time."""
    predictor = mixture(model, kept, knn_k=k, knn_lambda=0.4, knn_temperature=20.0)
    keys = torch.from_numpy(kept.keys_ND).double()
    expected = 0.0
    for h, w in zip(hidden_of(model, TEXT), TEXT[1:], strict=True):
        pairs = sorted(
            (float(((h - key) ** 2).sum()), int(v))
            for key, v in zip(keys, kept.values_N, strict=True)
        )
        mass = dict.fromkeys(range(N_TOKEN), 0.0)
        for distance, v in pairs[:k]:
            mass[v] += math.exp(-distance / 20)
        logprob = model.log_prob(h).detach()
        p = {v: 0.6 * math.exp(logprob[v]) + 0.4 * m / sum(mass.values()) for v, m in mass.items()}
        assert sum(p.values()) == pytest.approx(1, rel=1e-12)
        expected -= math.log(p[int(w)])
    assert evaluate(model, stream(TEXT), CONTEXT, predictor=predictor).nats == pytest.approx(
        expected, rel=1e-9
    )


@pytest.mark.parametrize(("block", "k"), [(1, 10), (7, 1), (7, 50), (10, 10), (64, 10)])
def test_the_search_by_blocks_finds_what_a_search_by_hand_finds(
    monkeypatch: pytest.MonkeyPatch, block: int, k: int
) -> None:
    monkeypatch.setattr(knn, "BLOCK", block)
    query_LD, keys_ND = torch.randn(6, 5).double(), torch.randn(50, 5).half()
    distance_LK, place_LK = knn.nearest(query_LD, keys_ND, k)
    assert distance_LK.shape == place_LK.shape == (6, k)
    for query_D, distance_K, place_K in zip(query_LD, distance_LK, place_LK, strict=True):
        pairs = sorted(
            (float(((query_D - key) ** 2).sum()), i) for i, key in enumerate(keys_ND.double())
        )[:k]
        assert sorted(place_K.tolist()) == sorted(i for _, i in pairs)
        assert sorted(distance_K.tolist()) == pytest.approx([d for d, _ in pairs], rel=1e-9)


def test_a_store_of_something_else_is_refused(tmp_path: Path, folder: Path) -> None:
    assert json.loads((folder / "store.json").read_text())["source"] == SOURCE
    for name in SOURCE:
        with pytest.raises(UsageError, match=f"store: made from another {name}; name a new folder"):
            opened_store(folder, {**SOURCE, name: "other"})
    (folder / "store.json").write_text("{")
    for no_store in (tmp_path, folder):
        with pytest.raises(
            UsageError,
            match=f"^--knn_store {no_store}: no store of hidden states; name a new folder",
        ):
            opened_store(no_store, SOURCE)


DAMAGES = {
    "fewer keys": ("keys.npy", lambda keys_ND: keys_ND[:-1], "its keys are float16 (58, 16)"),
    "no keys": ("keys.npy", lambda keys_ND: keys_ND[:0], "its keys are float16 (0, 16)"),
    "narrow keys": ("keys.npy", lambda keys_ND: keys_ND[:, :8], "its keys are float16 (59, 8)"),
    "other keys": (
        "keys.npy",
        lambda keys_ND: keys_ND.astype(np.complex64),
        "its keys are complex64",
    ),
    "nan": (
        "keys.npy",
        lambda keys_ND: np.where(np.arange(59)[:, None] == 58, np.nan, keys_ND).astype("<f2"),
        "not finite",
    ),
    "too large": ("values.npy", lambda values_N: values_N + 10**6, "outside the vocabulary"),
    "negative": ("values.npy", lambda values_N: -1 - values_N, "outside the vocabulary"),
}


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_store_whose_arrays_do_not_fit_is_refused(
    folder: Path, name: str, damage: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    np.save(folder / name, damage(np.load(folder / name)))
    with pytest.raises(UsageError, match=re.escape(message)):
        opened_store(folder, SOURCE)


@pytest.mark.parametrize("name", ["keys.npy", "values.npy"])
def test_a_truncated_store_is_refused(folder: Path, name: str) -> None:
    path = folder / name
    for keep in (path.stat().st_size - 1, 10, 0):
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(UsageError, match="truncated or damaged; remove it to have it rebuilt"):
            opened_store(folder, SOURCE)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [f"({2**60},)", f"({10**30},)", "(" * 50, None])
def test_a_store_whose_headers_claim_anything_is_refused(folder: Path, shape: str | None) -> None:
    (folder / "keys.npy").unlink()
    if shape is None:
        os.mkfifo(folder / "keys.npy")
    else:
        header = (
            f"{{'descr': '<f2', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117)
            + b"\n"
        )
        (folder / "keys.npy").write_bytes(
            b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
        )
    with pytest.raises(UsageError, match="truncated or damaged; remove it to have it rebuilt"):
        opened_store(folder, SOURCE)


def test_a_store_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, model: TransformerXL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut short, on a disk without room, which is known before the text is read, or below a file."""

    def segments(n: int) -> Iterator[object]:
        yield from list(stream(TRAIN))[:n]
        raise KeyboardInterrupt

    def make(folder: Path, n: int) -> None:
        build_store(folder, model, segments(n), CONTEXT, n_pair=59, source=SOURCE)

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "store", 3)
    usage = knn.shutil.disk_usage(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(knn.shutil, "disk_usage", lambda path: usage._replace(free=100))
        with pytest.raises(
            UsageError, match=r"the store takes .* GiB .* keep fewer tokens with --knn_tokens"
        ):
            make(tmp_path / "store", 0)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file") as error:
        make(tmp_path / "file" / "store", 0)
    assert error.value.errno in (errno.ENOTDIR, errno.EEXIST)


def test_without_faiss_its_flag_is_refused(
    kept: Store, model: TransformerXL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(
        UsageError, match=r"^--knn_faiss: faiss is not installed; run: pip install faiss-cpu$"
    ):
        mixture(model, kept, knn_faiss=True)


def test_faiss_finds_the_same_in_a_small_store(folder: Path, model: TransformerXL) -> None:
    pytest.importorskip("faiss")
    opened, scores = opened_store(folder, SOURCE), []
    for knn_faiss in (False, True, True):  # the third reads the index that the second wrote
        predictor = mixture(model, opened, knn_k=7, knn_faiss=knn_faiss)
        scores.append(evaluate(model, stream(TEXT), CONTEXT, predictor=predictor).nats)
    assert scores[1:] == pytest.approx([scores[0]] * 2, rel=1e-9)
    assert (opened.folder / "index.faiss").is_file()
