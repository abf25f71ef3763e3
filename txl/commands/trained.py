"""What a checkpoint holds and refers to: its model, its vocabulary, the text it was trained on."""

import dataclasses
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from txl.checkpoint import Checkpoint, damaged, load_model
from txl.cli import Typed, build
from txl.config import ModelUse, require
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.datasets import tokenizer_of
from txl.data_utils.files import DataError
from txl.data_utils.rows import scoring_stream
from txl.data_utils.sources import home_of
from txl.data_utils.tokenizers.base import EOS, Tokenizer
from txl.evaluation.test_time import TrainingText
from txl.model.autocast import autocast, dtype_for
from txl.model.transformer import TransformerXL
from txl.records import require_fields
from txl.runtime.distributed import Ranks


@contextmanager
def loaded(checkpoint: Checkpoint, use: ModelUse, device: torch.device) -> Iterator[TransformerXL]:
    """A checkpoint's model on a device, with the attention implementation and autocast that `use` asks for."""
    model = load_model(checkpoint).to(device)
    model.use_attention(use.attn_impl)
    with autocast(model.device, dtype_for(model, use.dtype)):
        yield model


def vocabulary_of(checkpoint: Checkpoint) -> Tokenizer:
    """The vocabulary of a checkpoint. Raises `UsageError` if it is damaged, or not that of the model."""
    path, n_token = checkpoint.folder / "vocab.txt", checkpoint.model_config.n_token
    dataset = checkpoint.record.get("data", {}).get("dataset", DataConfig.dataset)
    try:
        vocab = tokenizer_of(dataset, checkpoint.attachment)
    except DataError:
        raise
    except ValueError as error:  # also a UsageError, which names the path
        raise damaged(path, str(error).removeprefix(f"{path}: ")) from None
    if len(vocab) != n_token or not vocab.has_eos:
        raise damaged(path, f"not the {n_token} words of the model, {EOS} among them")
    return vocab


def data_settings(checkpoint: Checkpoint, typed: Collection[str]) -> dict[str, Any]:
    """The fields of `DataConfig` that a checkpoint was trained with, without the cache folder. Raises `UsageError` if
    config.json does not hold them, or the folder of the text is gone and --data was not typed."""
    try:
        saved: dict[str, Any] = {**require_fields(checkpoint.record["data"], DataConfig), "cache_dir": None}
        config = DataConfig(**saved)
    except (KeyError, ValueError) as error:
        raise damaged(checkpoint.folder / "config.json", error) from None
    there = "data" in typed or home_of(config.data).is_dir()
    require(there, f"{config.data}: the text of the training is not there; name its folder with --data")
    return saved


def open_corpus(typed: Typed, checkpoint: Checkpoint) -> Corpus:
    """The text of the flags, else of the training, encoded with the checkpoint's vocabulary. Raises `UsageError` if the
    text defines another vocabulary."""
    vocab = vocabulary_of(checkpoint)
    require(
        (typed.get("max_size") or len(vocab)) >= len(vocab) - 2,  # <eos> and <unk> do not count
        f"--max_size {typed.get('max_size')}: limits a vocabulary, and that of the model has {len(vocab)} words; leave "
        f"it out; splits are read whole, so for fewer batches (NVIDIA's flag of this name) shorten their files",
    )
    as_trained: dict[str, Any] = dataclasses.asdict(DataConfig(**data_settings(checkpoint, typed)))
    if typed.get("dataset", as_trained["dataset"]) != as_trained["dataset"]:  # its own vocabulary settings
        as_trained = {"data": as_trained["data"]}
    corpus = Corpus(build(DataConfig, typed, **as_trained), vocab)
    if corpus.defines_vocabulary and not checkpoint.record.get("train", {}).get("init_from"):
        own = Corpus(corpus.config).vocab
        require(
            own.fingerprint() == vocab.fingerprint(),
            f"{corpus.folder}: its vocabulary ({len(own):,} words) is not the one {checkpoint.folder} was trained with "
            f"({len(vocab):,}); give the --data and --dataset of the training run, or only valid.txt and test.txt",
        )
    return corpus


def training_text(corpus: Corpus, ranks: Ranks) -> TrainingText:
    """The training text, for test-time adaptation."""
    ids = ranks.main_first(lambda: corpus.split("train"))
    names = {"training_text": corpus.fingerprint("train"), "vocabulary": corpus.vocab.fingerprint()}
    return TrainingText(ids, names, scoring_stream)
