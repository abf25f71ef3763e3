"""Checkpoints of other programs as trained models."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from txl.checkpoint import model_with
from txl.config import UsageError, require
from txl.convert import Converted, convert
from txl.convert.kimiyoung_names import rates_of
from txl.data_utils.datasets import DATA_SETS, DataConfig, kind_of_tokenizer, tokenizer_of
from txl.data_utils.tokenizer import EOS, Tokenizer
from txl.data_utils.words import Vocab
from txl.files import sha256
from txl.language.origin import Contents, Origin
from txl.runtime.records import require_fields

_FILES = "vocab.txt, vocab.json, vocab.bin or cache.pt"


def read_converted(
    path: Path, vocabulary: Path | None, dataset: str | None, wanted: torch.dtype = torch.float32
) -> Contents:
    """As `read_source`, of what is no run of txl; `wanted` is its `dtype`."""
    there = ", ".join(DATA_SETS)
    require(
        dataset is None or dataset in DATA_SETS,
        f"--dataset {dataset}: no such kind of text; there are {there}",
    )
    found = convert(path, vocabulary)
    data = _data_of(found, path)
    if dataset is None and not data and found.dataset in DATA_SETS:
        dataset = found.dataset  # as its log says
    tokenizer = _checked_tokenizer(found, path, data.get("dataset"), dataset)
    if dataset is not None and not data:
        data = {**DATA_SETS[dataset].as_in_2019, "dataset": dataset}
    model = found.model
    dtype = next(found.model.parameters()).dtype
    # as the checkpoint of a run with these weights is read
    if not dtype == wanted == torch.float32:
        model = model_with(
            dict(model.state_dict()), model.config, **rates_of(model), dtype=wanted
        ).eval()
    record = {"converted_from": {"kind": found.kind, "source": path.name}, "data": data}
    origin = Origin(found.kind, path, None, found.tensors, dtype, partial(sha256, found.weights))
    return Contents(model, found.context, tokenizer, record, origin)


def _data_of(converted: Converted, source: Path) -> dict[str, Any]:
    """What an export by txl says of the text of the training; nothing of other checkpoints. Raises
    `UsageError` if it is damaged.
    """
    if converted.data is None:
        return {}
    try:
        data: dict[str, Any] = require_fields(converted.data, DataConfig)
        DataConfig(**data)
    except ValueError as error:
        raise UsageError(
            f"{source}: what it says of its text is damaged ({error}); use another copy"
        ) from None
    return data


def _checked_tokenizer(
    converted: Converted, source: Path, own: str | None, dataset: str | None
) -> Tokenizer:
    """The tokenizer of another program's model. Raises `UsageError` if there is none, or it has not
    as many words as the model, or none ends a line.

    Args:
        own: the data set that the checkpoint names.
        dataset: the one that the user names, which counts where the checkpoint names none.
    """
    n_token = converted.model.config.n_token
    do = f"put {_FILES} beside it, or name the file with --vocabulary (txl convert: --vocab)"
    require(bool(converted.words), f"{source}: holds no vocabulary; {do}")
    try:
        tokenizer = _tokenizer(converted, own, dataset or DataConfig.dataset)
    except (OSError, ValueError) as error:
        if own or dataset:
            kind = f" of --dataset {own or dataset}"
        else:
            kind = ""
        if dataset and not own:
            do = f"give the --dataset of its training, or {do}"
        raise UsageError(f"{source}: its words are no vocabulary{kind} ({error}); {do}") from None
    n_word = len(tokenizer)
    require(
        n_word == n_token,
        f"{source}: its vocabulary has {n_word} words, the model has {n_token}; {do}",
    )
    has_none = f"its vocabulary has no {EOS}; models of enwik8, text8 and lm1b need that --dataset"
    require(tokenizer.has_eos, f"{source}: {has_none}")
    return tokenizer


def _tokenizer(converted: Converted, own: str | None, dataset: str) -> Tokenizer:
    """As `_checked_tokenizer`.

    Raises `OSError` or `ValueError` if the files hold no such vocabulary.
    """
    path = converted.vocabulary
    kind = kind_of_tokenizer(own or dataset)
    if own and path and path.suffix == ".txt":  # as txl writes it
        files = {"vocab.txt": path}
        return tokenizer_of(
            own, lambda name: files.get(name, path.with_name(name)).read_bytes().decode()
        )
    if not kind.takes_words:
        require(not own, f"{own} comes back from the files of the export only")
        kind = Vocab
    return kind(converted.words)  # type: ignore[call-arg]
