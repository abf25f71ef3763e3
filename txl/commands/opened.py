"""What an evaluation reads: a checkpoint's model, and text with its vocabulary."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from txl.checkpoint import Checkpoint, load_model
from txl.cli import Typed, build
from txl.commands.trained_text import data_settings, vocabulary_of
from txl.config import UsageError
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.stream import ScoringStream
from txl.evaluation.config import EvalConfig
from txl.evaluation.test_time import TrainingText
from txl.model.autocast import autocast, dtype_for
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks


@contextmanager
def loaded(checkpoint: Checkpoint, config: EvalConfig, ranks: Ranks) -> Iterator[TransformerXL]:
    """A checkpoint's model on this process's device, its attention and its products computed as asked for."""
    model = load_model(checkpoint).to(ranks.device)
    model.use_attention(config.attn_impl)
    with autocast(model.device, dtype_for(model, config.dtype)):
        yield model


def open_corpus(typed: Typed, checkpoint: Checkpoint) -> Corpus:
    """The text, read with the checkpoint's vocabulary.

    Raises:
        UsageError: if the text has a vocabulary of its own and it is another one.
    """
    vocab = vocabulary_of(checkpoint)
    as_trained = dataclasses.asdict(DataConfig(**data_settings(checkpoint, typed)))
    if typed.get("dataset", as_trained["dataset"]) != as_trained["dataset"]:  # its own rules, not those of the run
        del as_trained["min_freq"], as_trained["max_size"]
    corpus = Corpus(build(DataConfig, typed, **as_trained), vocab)
    if corpus.defines_vocabulary:
        own = Corpus(corpus.config).vocab
        if own.fingerprint() != vocab.fingerprint():
            raise UsageError(
                f"{corpus.folder}: its vocabulary ({len(own):,} words) is not the one {checkpoint.folder} was trained "
                f"with ({len(vocab):,} words); give the --data and --dataset of the training run, or a folder with "
                f"valid.txt and test.txt only"
            )
    return corpus


def training_text(corpus: Corpus, ranks: Ranks) -> TrainingText:
    """The text that what is added to a model is made from."""
    ids = ranks.main_first(lambda: corpus.split("train"))
    names = {"training_text": corpus.fingerprint("train"), "vocabulary": corpus.vocab.fingerprint()}
    return TrainingText(ids, names, ScoringStream)
