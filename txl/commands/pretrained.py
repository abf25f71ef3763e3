"""A trained model with its vocabulary: one of ours, or a checkpoint of another program."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl.checkpoint import load_model, open_checkpoint
from txl.commands.trained import vocabulary_of
from txl.config import Context, ModelConfig, UsageError, require
from txl.convert import Converted, convert
from txl.data_utils.config import DataConfig
from txl.data_utils.datasets import kind_of_tokenizer, tokenizer_of
from txl.data_utils.tokenizers.base import EOS, Tokenizer
from txl.data_utils.tokenizers.words import Vocab
from txl.model.transformer import TransformerXL
from txl.records import read_json, require_fields

_FILES = "vocab.txt, vocab.json, vocab.bin or cache.pt"

_PARTS = (".json", ".jsonl", ".md", ".safetensors", ".txt")
"""Files in the folder of a checkpoint or a run, none of which is a checkpoint."""


@dataclass(frozen=True)
class Pretrained:
    """A trained model.

    Attributes:
        kind: whose it was.
        context: of its training.
        tensors: the names of the tensors that were read.
        record: what is known besides, as in a checkpoint's config.json.
    """

    kind: str
    model: TransformerXL
    context: Context
    vocab: Tokenizer
    tensors: tuple[str, ...]
    record: dict[str, Any]

    @property
    def model_config(self) -> ModelConfig:
        return self.model.config


def read_pretrained(
    source: Path, vocabulary: Path | None = None, *, vocabulary_by: str | None, dataset: str | None = None
) -> Pretrained:
    """The model of a run folder, of one of its checkpoints, or of a checkpoint that `txl.convert` reads. Raises
    `UsageError` if there is no such thing, it is damaged, or has no vocabulary.

    Args:
        vocabulary: file of the words of another program's checkpoint, where they are not beside the weights.
        vocabulary_by: how a user names that file, for errors; None: not at all.
        dataset: kind of the text that such a checkpoint was trained on, where it does not say so itself.
    """
    require(source.exists(), f"{source}: no such file or folder; name a run folder or a checkpoint")
    is_part = source.suffix in _PARTS or source.name in ("best", "latest", "pytorch_model.bin")
    if is_part and source.is_file() and (is_ours(source.parent) or (source.parent / "config.json").is_file()):
        raise UsageError(f"{source}: is a file; name its folder, {source.parent}")
    if is_ours(source):
        require(vocabulary is None, f"{vocabulary_by}: {source} is a run of txl and has its own; leave it out")
        checkpoint = open_checkpoint(source)
        model, vocab = load_model(checkpoint), vocabulary_of(checkpoint)
        names = tuple(name for name, _ in model.named_parameters())
        return Pretrained("txl", model, checkpoint.context, vocab, names, checkpoint.record)
    found = convert(source, vocabulary)
    data = _data_of(found, source)
    vocab = _vocabulary_of_converted(found, source, vocabulary_by, data.get("dataset"), dataset)
    record: dict[str, Any] = {"converted_from": {"kind": found.kind, "source": source.name}}
    if data:
        record["data"] = data
    return Pretrained(found.kind, found.model, found.context, vocab, found.tensors, record)


def known_data(record: dict[str, Any]) -> dict[str, Any]:
    """How the text of a training was read, as far as somebody said so: the fields of `DataConfig`."""
    assumed = record.get("converted_from", {}).get("assumed", [])
    return {name: value for name, value in record.get("data", {}).items() if name not in assumed}


def _data_of(converted: Converted, source: Path) -> dict[str, Any]:
    """What an export by txl says of the text of the training; nothing of other checkpoints. Raises `UsageError` if it
    is damaged."""
    if converted.data is None:
        return {}
    try:
        data: dict[str, Any] = require_fields(converted.data, DataConfig)
        DataConfig(**data)
    except ValueError as error:
        raise UsageError(f"{source}: what it says of its text is damaged ({error}); use another copy") from None
    return data


def _vocabulary_of_converted(
    converted: Converted, source: Path, named_by: str | None, own: str | None, dataset: str | None
) -> Tokenizer:
    """The vocabulary of the model. Raises `UsageError` if there is none, or it has not as many words as the model, or
    none ends a line.

    Args:
        own: the data set that the checkpoint names.
        dataset: the one that the user names, which counts where the checkpoint names none.
    """
    n_token = converted.model.config.n_token
    again = f"give one with `python -m txl.convert {source} FOLDER --vocab FILE` ({_FILES}) and start from FOLDER"
    do = f"give {named_by} FILE ({_FILES})" if named_by else again
    require(bool(converted.words), f"{source}: holds no vocabulary; {do}")
    try:
        vocab = _vocabulary(converted, own, dataset or DataConfig.dataset)
    except (OSError, ValueError) as error:
        kind = f" of --dataset {own or dataset}" if own or dataset else ""
        do = f"give the --dataset of its training, or {do}" if dataset and not own else do
        raise UsageError(f"{source}: its words are no vocabulary{kind} ({error}); {do}") from None
    require(len(vocab) == n_token, f"{source}: its vocabulary has {len(vocab)} words, the model has {n_token}; {do}")
    require(
        vocab.has_eos, f"{source}: its vocabulary has no {EOS}; convert models of enwik8, text8 or lm1b with --dataset"
    )
    return vocab


def _vocabulary(converted: Converted, own: str | None, dataset: str) -> Tokenizer:
    """As `_vocabulary_of_converted`. Raises `OSError` or `ValueError` if the files hold no such vocabulary."""
    path, kind = converted.vocabulary, kind_of_tokenizer(own or dataset)
    if own and path and path.suffix == ".txt":  # as txl writes it
        files = {"vocab.txt": path}
        return tokenizer_of(own, lambda name: files.get(name, path.with_name(name)).read_bytes().decode())
    if not kind.takes_words:
        require(not own, f"{own} comes back from the files of the export only")
        kind = Vocab
    return kind(converted.words)  # type: ignore[call-arg]


def is_ours(path: Path) -> bool:
    """True for a run folder or a checkpoint of txl."""
    if path.is_dir() and any(path.glob("step_*")):
        return True
    try:
        return "format" in read_json(path / "config.json")
    except (OSError, ValueError, TypeError):
        return False
