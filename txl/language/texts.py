"""The text that a model was trained on, or another, in its tokens."""

import dataclasses
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from txl.checkpoint import damaged
from txl.config import build, require
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.remote import is_remote, names_in, require_typed
from txl.data_utils.sources import home_of
from txl.data_utils.tokens import Tokenizer
from txl.runtime.records import require_fields

_LOG = logging.getLogger(__name__)
HELD_OUT_BEFORE = "document"
"""How text was held out before --held_out_by, which older records do not have."""

FORMER = "ids_dtype"
"""A setting that records of version 0.3 and before have."""
UINT16 = ("auto", "uint16")
"""Its values of files that are read."""


def data_settings(
    record: Mapping[str, Any], folder: Path, asked: Collection[str]
) -> dict[str, Any]:
    """The fields of `DataConfig` that a record says a model was trained with, without the cache
    folder. Raises `UsageError` if the record does not hold them, or, unless `data` is `asked` for,
    if the folder of the text is gone, or the text is at an address and no copy of it is here.

    Args:
        folder: of the checkpoint.
    """
    try:
        before: dict[str, Any] = {"held_out_by": HELD_OUT_BEFORE}
        own = dict(record["data"])
        ids_dtype = own.pop(FORMER, "auto")
        saved: dict[str, Any] = before | {**require_fields(own, DataConfig), "cache_dir": None}
        config = DataConfig(**saved)
    except (KeyError, ValueError) as error:
        raise damaged(folder / "config.json", error) from None
    require(
        "data" in asked or ids_dtype in UINT16,
        f"{config.data}: the training read its .bin files as {ids_dtype}; write them with numpy.save"
        " as .npy, and name their folder with --data",
    )
    if "data" not in asked:
        require_typed(config.data, folder / "config.json")
    there = (
        "data" in asked
        or any(map(is_remote, names_in(config.data)))
        or home_of(config.data).is_dir()
    )
    require(
        there, f"{config.data}: the text of the training is not there; name its folder with --data"
    )
    return saved


def resolved_data(
    record: Mapping[str, Any], folder: Path, asked: Mapping[str, Any], *, n_word: int
) -> DataConfig:
    """The settings of the training, over which those that are `asked` for win. Raises `UsageError`
    as `data_settings`, or if they limit the vocabulary or name another tokenizer.
    """
    max_size = asked.get("max_size")
    require(
        (max_size or n_word) >= n_word - 2,  # <eos> and <unk> do not count
        f"--max_size {max_size}: limits a vocabulary, and that of the model has {n_word} words;"
        " leave it out; splits are read whole, so for fewer batches (NVIDIA's flag of this name)"
        " shorten their files",
    )
    as_trained = dataclasses.asdict(DataConfig(**data_settings(record, folder, asked)))
    own = as_trained["tokenizer"]
    other = (
        f"--tokenizer {asked.get('tokenizer')}: the model has its own, which its checkpoint keeps;"
        " leave it out"
    )
    require(asked.get("tokenizer", own) == own, other)
    # its own vocabulary settings
    if asked.get("dataset", as_trained["dataset"]) != as_trained["dataset"]:
        as_trained = {"data": as_trained["data"]}
    return build(DataConfig, asked, **as_trained)


def open_corpus(
    folder: Path,
    tokenizer: Tokenizer,
    config: DataConfig,
    record: Mapping[str, Any],
    *,
    has_other_words: bool,
) -> Corpus:
    """A text in the model's tokens. Raises `UsageError` if it defines another vocabulary, unless
    the model `has_other_words` than the text of its training, or was given its tokenizer.

    Args:
        record: of the training, which tells whether what is held out of its text still is.
    """
    corpus = Corpus(config, tokenizer)
    if corpus.defines_vocabulary and config.tokenizer is None and not has_other_words:
        own = Corpus(corpus.config).vocab
        require(
            own.fingerprint() == tokenizer.fingerprint(),
            f"{corpus.folder}: its vocabulary ({len(own):,} {own.unit}) is not the one {folder} was"
            f" trained with ({len(tokenizer):,}); give the --data and --dataset of the training"
            " run, or only valid.txt and test.txt",
        )
    trained_on = record.get("texts", {}).get("train")
    is_its_text = config.data == record.get("data", {}).get("data")
    if is_its_text and trained_on is not None and not corpus.is_held_out_of(trained_on):
        _LOG.warning(
            "%s: has changed since the training of %s, or is split otherwise: what is held out of"
            " it may have been trained on, and figures of it be too good",
            corpus.texts.name("train"),
            folder,
        )
    return corpus
