"""Vocabulary, ids and batches of the original."""

import io
import itertools
import json
import lzma
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.files import DataError
from txl.data_utils.sentence_stream import SentenceStream
from txl.data_utils.stream import SegmentStream, TrainingSegment

FOLDER = Path(__file__).parent / "data"
TEXT = {"wt103": "wordlm", "wt2": "wordlm_oov", "ptb": "wordlm_oov", "enwik8": "enwik8", "text8": "text8"}
BYTES = ("enwik8", "text8")


def open_text(folder: Path, dataset: str, cache: Path) -> Corpus:
    convention = {"data_convention": "original"} if dataset in BYTES else {}
    return Corpus(DataConfig(data=str(folder), dataset=dataset, cache_dir=str(cache), **convention))


@pytest.fixture(params=sorted(TEXT))
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Corpus:
    return open_text(FOLDER / "text" / TEXT[request.param], request.param, tmp_path)


@pytest.fixture
def sentences(tmp_path: Path) -> Corpus:
    return open_text(FOLDER / "text" / "lm1b", "lm1b", tmp_path)


def golden_of(corpus: Corpus) -> tuple[dict, np.lib.npyio.NpzFile]:
    name = corpus.config.dataset
    arrays = io.BytesIO(lzma.decompress((FOLDER / f"{name}.npz.xz").read_bytes()))
    return json.loads((FOLDER / f"{name}.vocab.json").read_text()), np.load(arrays)


def require_same(segments: Iterable[TrainingSegment], golden: np.lib.npyio.NpzFile, key: str) -> None:
    segments = list(segments)
    assert len(segments) == int(golden[f"{key}/n"])
    assert [s.input_BT.shape[1] for s in segments] == golden[f"{key}/data_len"].tolist()
    assert [s.target_BT.shape[1] for s in segments] == golden[f"{key}/seq_len"].tolist()
    assert np.array_equal(torch.cat([s.input_BT for s in segments], dim=1).T, golden[f"{key}/data"])
    assert np.array_equal(torch.cat([s.target_BT for s in segments], dim=1).T, golden[f"{key}/target"])


def test_order_of_the_vocabulary(corpus: Corpus) -> None:
    assert corpus.vocab.words == golden_of(corpus)[0]["idx2sym"]


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_ids(corpus: Corpus, split: str) -> None:
    assert np.array_equal(corpus.split(split), golden_of(corpus)[1][f"{split}_ids"])


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("ext_len", [0, 3])
@pytest.mark.parametrize("batches", ["fix", "fix_start10"])
def test_ordered_batches(corpus: Corpus, split: str, ext_len: int, batches: str) -> None:
    start = 10 if batches == "fix_start10" else 0
    stream = SegmentStream(corpus.split(split), batch_size=4, tgt_len=7, ext_len=ext_len, start=start)
    assert len(stream) == len(list(stream))
    require_same(stream, golden_of(corpus)[1], f"{split}_ext{ext_len}/{batches}")


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


def test_limits_of_the_vocabulary(tmp_path: Path) -> None:
    """The original's Vocab with min_freq and max_size, and lower case, which --dataset text lacks: the text has it."""
    for split in ("train", "valid"):
        text = (FOLDER / "text" / "wordlm_oov" / f"{split}.txt").read_text().lower()
        (tmp_path / f"{split}.txt").write_text(text)
    corpus = Corpus(DataConfig(data=str(tmp_path), dataset="text", min_freq=3, max_size=50))
    arrays = np.load(io.BytesIO(lzma.decompress((FOLDER / "minfreq_maxsize.npz.xz").read_bytes())))
    assert corpus.vocab.words == json.loads((FOLDER / "minfreq_maxsize.vocab.json").read_text())["idx2sym"]
    for split in ("train", "valid"):
        assert np.array_equal(corpus.split(split), arrays[f"{split}_ids"])


def as_sentences(ids: np.ndarray, eos_id: int) -> tuple[list[int], list[int]]:
    """The ids with `<S>` at both ends of each sentence, as the original has them, and the length of each."""
    border_S = np.flatnonzero(ids == eos_id)
    found = [ids[a : b + 1].tolist() for a, b in itertools.pairwise(border_S)]
    return list(itertools.chain(*found)), [len(one) for one in found]


def test_words_and_sentences_of_one_billion_word(sentences: Corpus) -> None:
    vocabulary, golden = golden_of(sentences)
    assert sentences.vocab.words == vocabulary["idx2sym"]
    eos_id, ids = sentences.vocab.eos_id, sentences.split("train")
    files = [*sentences.file_starts("train"), len(ids)]
    found = {f"train{i}": ids[files[i] : files[i + 1]] for i in range(3)}
    for name, part in (found | {"valid": sentences.split("valid"), "test": sentences.split("test")}).items():
        expected, lengths = as_sentences(np.asarray(part), eos_id)
        assert expected == golden[f"{name}_ids"].tolist()
        assert lengths == golden[f"{name}_sent_lens"].tolist()


@pytest.mark.parametrize(
    ("split", "key", "ext_len"),
    [
        ("valid", "valid_ext0", 0),
        ("valid", "valid_ext3", 3),
        ("test", "test_ext0", 0),
        ("test", "test_ext3", 3),
        ("train", "train_multi_ext0", 0),
        ("train", "train_multi_ext3", 3),
        ("train", "train_multi_shuffle_seed1111", 0),
    ],
)
def test_batches_of_sentences(sentences: Corpus, split: str, key: str, ext_len: int) -> None:
    stream = SentenceStream(
        sentences.split(split),
        sentences.file_starts(split),
        eos_id=sentences.vocab.eos_id,
        batch_size=4,
        tgt_len=7,
        ext_len=ext_len,
        shuffle=key.endswith("1111"),
        seed=1111,
    )
    require_same(stream, golden_of(sentences)[1], key)


@pytest.mark.parametrize("dataset", BYTES)
def test_no_byte_is_lost_unless_asked_for(dataset: str, tmp_path: Path) -> None:
    """What the 2019 scripts wrote gives the bytes they read."""
    folder = FOLDER / "text" / dataset
    corpus = Corpus(DataConfig(data=str(folder), dataset=dataset, cache_dir=str(tmp_path)))
    for split in ("train", "valid", "test"):
        raw = (folder / f"{split}.txt.raw").read_bytes()
        raw = raw.strip() if dataset == "text8" else raw  # prep_text8.py takes the spaces off the ends
        assert b"".join(corpus.documents(split)) == raw
        assert corpus.vocab.text_of(corpus.split(split).tolist()) == raw.decode("utf-8", "replace")
