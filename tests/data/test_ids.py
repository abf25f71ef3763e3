"""Ids that other programs wrote: of which type they are, and what they tell of themselves."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from txl.data_utils import ids as ids_module
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.ids import TYPES
from txl.data_utils.raw_text import DataError

FEW = np.random.default_rng(0).integers(0, 65, 900)
MANY = np.random.default_rng(1).integers(0, 50257, 9000)
HUGE = np.random.default_rng(2).integers(0, 128256, 9000)


def opened(folder: Path, ids: np.ndarray, dtype: str, *, head: bytes = b"", **flags: Any) -> Corpus:
    """A folder of one text in all splits."""
    for name in ("train", "val", "test"):
        (folder / f"{name}.bin").write_bytes(head + ids.astype(dtype).tobytes())
    return Corpus(DataConfig(data=str(folder), dataset="ids", **flags))


@pytest.mark.parametrize("n_token", [65, 50257, 128256])
@pytest.mark.parametrize(
    "dtype", ["int32", "int64", "int32_be", "int64_be", "float32", "float64", "uint16_be"]
)
def test_ids_of_another_width_are_refused_and_the_type_is_named(
    tmp_path: Path, dtype: str, n_token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids_module, "_BLOCK", 4096)
    ids = {65: FEW, 50257: MANY, 128256: HUGE}[n_token]
    if dtype == "uint16_be" and n_token > 65:
        return  # cannot be told apart
    for flags in ({}, {"vocab_size": 2**16}):
        with pytest.raises(DataError, match=rf"\.bin: its numbers are {dtype}"):
            opened(tmp_path, ids, TYPES.get(dtype, dtype), **flags).split("train")
    if dtype in TYPES:
        assert (
            opened(tmp_path, ids, TYPES[dtype], ids_dtype=dtype).split("valid").tolist()
            == ids.tolist()
        )


def test_ids_as_nanogpt_writes_them_are_read_whatever_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for ids in (FEW, MANY, FEW + 2000, FEW * 0, np.arange(15) % 2):
        assert opened(tmp_path, ids, "<u2").split("train").tolist() == ids.tolist()
    alternating = np.arange(900) % 2
    with pytest.raises(
        DataError, match=r"train\.bin: its numbers are int32.*or.*--ids_dtype uint16$"
    ):
        opened(tmp_path, alternating, "<u2")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert len(opened(tmp_path, alternating, "<u2", ids_dtype="uint16").split("train")) == 900
    assert not caplog.messages


@pytest.mark.parametrize("dtype", ["uint8", "uint16_be"])
def test_a_largest_id_far_above_the_number_of_distinct_ones_is_noticed(
    tmp_path: Path, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = FEW if dtype == "uint8" else MANY % 512
    with caplog.at_level(logging.WARNING):
        corpus = opened(tmp_path, ids, TYPES[dtype])
        corpus.split("train")
    assert [message for message in caplog.messages if "--ids_dtype" in message]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        as_named = opened(tmp_path, ids, TYPES[dtype], ids_dtype=dtype)
        assert as_named.split("train").tolist() == ids.tolist()
    assert not caplog.messages
    assert as_named.fingerprint("train") != corpus.fingerprint("train")
    assert "int16, 512 distinct, the largest 511" in as_named.note or dtype == "uint8"


@pytest.mark.parametrize(("head", "dtype"), [((20240520, 1), "<u2"), ((20240801, 7), "<u4")])
def test_files_of_llm_c_are_read_after_their_header(
    tmp_path: Path, head: tuple[int, int], dtype: str
) -> None:
    header = np.zeros(256, "<i4")
    header[:3] = (*head, len(MANY))
    corpus = opened(tmp_path, MANY, dtype, head=header.tobytes())
    assert corpus.split("train").tolist() == MANY.tolist()
    assert len(corpus.vocab) == MANY.max() + 1
    with pytest.raises(
        DataError,
        match=r"train\.bin: has .* bytes, not the 9000 ids of uint\d+ that its header names",
    ):
        opened(tmp_path, MANY[:-1], dtype, head=header.tobytes())


def test_an_array_of_numpy_that_is_called_bin_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "train.npy", FEW)
    (tmp_path / "train.npy").rename(tmp_path / "train.bin")
    with pytest.raises(DataError, match=r"train\.bin: holds an array of numpy; name it train\.npy"):
        Corpus(DataConfig(data=str(tmp_path), dataset="ids"), needed=["train"])


def test_a_split_of_two_files_is_refused(tmp_path: Path) -> None:
    opened(tmp_path, FEW, "<u2")
    np.save(tmp_path / "train.npy", FEW)
    with pytest.raises(DataError, match=r"train\.npy and train\.bin: both hold the train split"):
        Corpus(DataConfig(data=str(tmp_path), dataset="ids"), needed=["train"])


def test_the_note_says_what_ids_there_are(tmp_path: Path) -> None:
    note = "train.bin: 900 ids of uint16, 65 distinct, the largest 64; val.bin: "
    assert opened(tmp_path, FEW, "<u2").note.startswith(note)


def test_an_index_of_fairseq_gives_its_sequences(tmp_path: Path) -> None:
    sequences = [[4, 5, 2], [7, 2]]
    joined = np.concatenate(sequences)
    config = DataConfig(data=str(tmp_path), dataset="ids")
    lengths = np.array([3, 2], "<i4").tobytes()
    head = b"MMIDIDX\0\0" + np.array(1, "<u8").tobytes() + bytes([4]) + np.array(2, "<u8").tobytes()
    for name in ("train", "valid"):
        joined.astype("<i4").tofile(tmp_path / f"{name}.bin")
        (tmp_path / f"{name}.idx").write_bytes(head + lengths + np.array([0, 12], "<i8").tobytes())
    corpus = Corpus(config)
    assert corpus.split("train").tolist() == joined.tolist()
    assert corpus.document_starts("train").tolist() == [0, 3]
    (tmp_path / "train.idx").write_bytes(b"TNTIDX\0\0" + bytes(40))
    with pytest.raises(
        DataError, match=r"train\.idx: an index of fairseq's older kind.*--dataset-impl mmap"
    ):
        Corpus(config)
