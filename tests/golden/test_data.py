"""Vocabulary, ids and batches of the original."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.files import DataError
from txl.data_utils.stream import SegmentStream

FOLDER = Path(__file__).parent / "data"
TEXT = {"wt103": "wordlm", "wt2": "wordlm_oov"}


@pytest.fixture(params=sorted(TEXT))
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Corpus:
    return Corpus(
        DataConfig(data=str(FOLDER / "text" / TEXT[request.param]), dataset=request.param, cache_dir=str(tmp_path))
    )


def golden_of(corpus: Corpus) -> tuple[dict, np.lib.npyio.NpzFile]:
    name = corpus.config.dataset
    return json.loads((FOLDER / f"{name}.vocab.json").read_text()), np.load(FOLDER / f"{name}.npz")


def test_order_of_the_vocabulary(corpus: Corpus) -> None:
    assert corpus.vocab.words == golden_of(corpus)[0]["idx2sym"]


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_ids(corpus: Corpus, split: str) -> None:
    assert np.array_equal(corpus.split(split), golden_of(corpus)[1][f"{split}_ids"])


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("ext_len", [0, 3])
@pytest.mark.parametrize("batches", ["fix", "fix_start10"])
def test_ordered_batches(corpus: Corpus, split: str, ext_len: int, batches: str) -> None:
    golden = golden_of(corpus)[1]
    start = 10 if batches == "fix_start10" else 0
    stream = SegmentStream(corpus.split(split), batch_size=4, tgt_len=7, ext_len=ext_len, start=start)
    key = f"{split}_ext{ext_len}/{batches}"
    segments = list(stream)
    assert len(stream) == len(segments) == int(golden[f"{key}/n"])
    assert [s.input_BT.shape[1] for s in segments] == golden[f"{key}/data_len"].tolist()
    assert [s.target_BT.shape[1] for s in segments] == golden[f"{key}/seq_len"].tolist()
    assert np.array_equal(torch.cat([s.input_BT for s in segments], dim=1).T, golden[f"{key}/data"])
    assert np.array_equal(torch.cat([s.target_BT for s in segments], dim=1).T, golden[f"{key}/target"])


@pytest.mark.parametrize("ext_len", [0, 3])
def test_batches_of_varying_length(corpus: Corpus, ext_len: int) -> None:
    golden, key = golden_of(corpus)[1], f"train_ext{ext_len}/var_seed1111"
    ids = corpus.split("train")
    segments = list(SegmentStream(ids, batch_size=4, tgt_len=7, ext_len=ext_len, varlen=True, seed=1111))
    assert [s.target_BT.shape[1] for s in segments] == golden[f"{key}/seq_len"].tolist()
    assert np.array_equal(torch.cat([s.input_BT for s in segments], dim=1).T, golden[f"{key}/data"])
    assert np.array_equal(torch.cat([s.target_BT for s in segments], dim=1).T, golden[f"{key}/target"])


def test_an_unknown_word_without_unk_is_named(tmp_path: Path) -> None:
    """The original stops with a bare assertion there."""
    for split in ("train", "valid", "test"):
        shutil.copy(FOLDER / "text" / "wordlm" / f"{split}.txt", tmp_path)
    (tmp_path / "train.txt").write_text("only these words\n")
    corpus = Corpus(DataConfig(data=str(tmp_path), dataset="wt103"))
    with pytest.raises(DataError, match=r"valid.txt, line \d+: the word .* is not in the vocabulary.*--dataset text"):
        corpus.split("valid")
