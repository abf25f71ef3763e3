"""Ids that other programs wrote: which files are read, and what they tell of themselves."""

from pathlib import Path

import numpy as np
import pytest

from txl.config import UsageError
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.errors import DataError
from txl.language.texts import data_settings

FEW = np.random.default_rng(0).integers(0, 65, 900)
MANY = np.random.default_rng(1).integers(0, 50257, 9000)


def opened(folder: Path, content: bytes) -> Corpus:
    """A folder of one text in all splits."""
    for name in ("train", "val", "test"):
        (folder / f"{name}.bin").write_bytes(content)
    return Corpus(DataConfig(data=str(folder), dataset="ids"))


def test_ids_as_nanogpt_writes_them_are_read_whatever_they_are(tmp_path: Path) -> None:
    for ids in (FEW, MANY, FEW + 2000, FEW * 0, np.arange(15) % 2):
        corpus = opened(tmp_path, ids.astype("<u2").tobytes())
        assert corpus.split("train").tolist() == ids.tolist()


REFUSED = {
    "odd": (b"123", "3 bytes"),
    "empty": (b"", "0 bytes"),
    "int32": (MANY.astype("<i4").tobytes(), "every second id is 0"),
    "int64": (MANY.astype("<i8").tobytes(), "every second id is 0"),
    "GPT-2 of llm.c": (np.array([20240520, 1, 1], "<i4").tobytes(), r"llm\.c"),
    "Llama 3 of llm.c": (np.array([20240801, 7, 1], "<i4").tobytes(), r"llm\.c"),
}


@pytest.mark.parametrize(("content", "why"), REFUSED.values(), ids=REFUSED)
def test_another_kind_of_file_is_refused_with_how_to_convert_it(
    tmp_path: Path, content: bytes, why: str
) -> None:
    with pytest.raises(DataError, match=rf"train\.bin: .*{why}.*numpy\.save as train\.npy"):
        opened(tmp_path, content).split("train")


def test_an_index_beside_ids_names_who_wrote_them(tmp_path: Path) -> None:
    (tmp_path / "train.idx").write_bytes(b"MMIDIDX\0\0")
    with pytest.raises(DataError, match=r"train\.bin: .*Megatron-LM.*numpy\.save as train\.npy"):
        opened(tmp_path, MANY.astype("<u2").tobytes())


def test_an_array_of_numpy_that_is_called_bin_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "train.npy", FEW)
    (tmp_path / "train.npy").rename(tmp_path / "train.bin")
    with pytest.raises(DataError, match=r"train\.bin: holds an array of numpy"):
        Corpus(DataConfig(data=str(tmp_path), dataset="ids"), needed=["train"])


def test_a_split_of_two_files_is_refused(tmp_path: Path) -> None:
    opened(tmp_path, FEW.astype("<u2").tobytes())
    np.save(tmp_path / "train.npy", FEW)
    with pytest.raises(DataError, match=r"train\.npy and train\.bin: both hold the train split"):
        Corpus(DataConfig(data=str(tmp_path), dataset="ids"), needed=["train"])


def test_the_note_says_what_ids_there_are(tmp_path: Path) -> None:
    note = "train.bin: 900 ids of uint16, 65 distinct, the largest 64; val.bin: "
    assert opened(tmp_path, FEW.astype("<u2").tobytes()).note.startswith(note)


def test_a_run_on_ids_of_another_type_is_not_read_as_one_of_uint16(tmp_path: Path) -> None:
    record = {"data": {"data": str(tmp_path), "dataset": "ids", "ids_dtype": "auto"}}
    assert data_settings(record, tmp_path, ())["dataset"] == "ids"
    record["data"]["ids_dtype"] = "int32"
    with pytest.raises(UsageError, match=r"as int32; write them with numpy\.save.*--data"):
        data_settings(record, tmp_path, ())
    assert "ids_dtype" not in data_settings(record, tmp_path, ("data",))
