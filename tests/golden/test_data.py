"""Vocabulary, ids and batches of the original."""

import io
import itertools
import json
import lzma
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.lm1b import SentenceStream
from txl.data_utils.segments import SegmentStream, TrainingSegment

FOLDER = Path(__file__).parent / "data"
TEXT = {
    "wt103": "wordlm",
    "wt2": "wordlm_oov",
    "ptb": "wordlm_oov",
    "enwik8": "enwik8",
    "text8": "text8",
}
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


def require_same(
    segments: Iterable[TrainingSegment], golden: np.lib.npyio.NpzFile, key: str
) -> None:
    segments = list(segments)
    if f"{key}/n" in golden:
        assert len(segments) == int(golden[f"{key}/n"])
        assert [s.input_BT.shape[1] for s in segments] == golden[f"{key}/data_len"].tolist()
    assert [s.target_BT.shape[1] for s in segments] == golden[f"{key}/seq_len"].tolist()
    assert np.array_equal(torch.cat([s.input_BT for s in segments], dim=1).T, golden[f"{key}/data"])
    assert np.array_equal(
        torch.cat([s.target_BT for s in segments], dim=1).T, golden[f"{key}/target"]
    )


def test_order_of_the_vocabulary_and_ids(corpus: Corpus) -> None:
    vocabulary, arrays = golden_of(corpus)
    assert corpus.vocab.words == vocabulary["idx2sym"]
    for split in ("train", "valid", "test"):
        assert np.array_equal(corpus.split(split), arrays[f"{split}_ids"]), split


@pytest.mark.parametrize("ext_len", [0, 3])
def test_batches(corpus: Corpus, ext_len: int) -> None:
    """From the beginning, from a later place, and of varying length, which comes without the original's count."""
    golden, lengths = golden_of(corpus)[1], {"batch_size": 4, "tgt_len": 7, "ext_len": ext_len}
    for split in ("train", "valid"):
        for name, start in (("fix", 0), ("fix_start10", 10)):
            stream = SegmentStream(corpus.split(split), **lengths, start=start)
            assert len(stream) == int(golden[f"{split}_ext{ext_len}/{name}/n"])
            require_same(stream, golden, f"{split}_ext{ext_len}/{name}")
    varying = SegmentStream(corpus.split("train"), **lengths, varlen=True, seed=1111)
    require_same(varying, golden, f"train_ext{ext_len}/var_seed1111")


def test_limits_of_the_vocabulary(tmp_path: Path) -> None:
    """The original's Vocab with min_freq and max_size, and lower case, which --dataset text lacks: the text has it."""
    for split in ("train", "valid"):
        text = (FOLDER / "text" / "wordlm_oov" / f"{split}.txt").read_text().lower()
        (tmp_path / f"{split}.txt").write_text(text)
    corpus = Corpus(DataConfig(data=str(tmp_path), dataset="text", min_freq=3, max_size=50))
    arrays = np.load(io.BytesIO(lzma.decompress((FOLDER / "minfreq_maxsize.npz.xz").read_bytes())))
    assert (
        corpus.vocab.words
        == json.loads((FOLDER / "minfreq_maxsize.vocab.json").read_text())["idx2sym"]
    )
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
    for name, part in (
        found | {"valid": sentences.split("valid"), "test": sentences.split("test")}
    ).items():
        expected, lengths = as_sentences(np.asarray(part), eos_id)
        assert expected == golden[f"{name}_ids"].tolist()
        assert lengths == golden[f"{name}_sent_lens"].tolist()


@pytest.mark.parametrize(
    "key",
    [f"{name}_ext{n}" for name in ("valid", "test", "train_multi") for n in (0, 3)]
    + ["train_multi_shuffle_seed1111"],
)
def test_batches_of_sentences(sentences: Corpus, key: str) -> None:
    split = key.partition("_")[0]
    stream = SentenceStream(
        sentences.split(split),
        sentences.file_starts(split),
        eos_id=sentences.vocab.eos_id,
        batch_size=4,
        tgt_len=7,
        ext_len=3 if key.endswith("ext3") else 0,
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
        # prep_text8.py takes the spaces off the ends
        raw = raw.strip() if dataset == "text8" else raw
        assert b"".join(corpus.documents(split)) == raw
        assert corpus.vocab.text_of(corpus.split(split).tolist()) == raw.decode("utf-8", "replace")
