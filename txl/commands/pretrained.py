"""A trained model with its vocabulary: one of ours, or a checkpoint of another program."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl.checkpoint import load_model, open_checkpoint
from txl.commands.trained import vocabulary_of
from txl.config import Context, ModelConfig, UsageError, require
from txl.convert import Converted, convert
from txl.data_utils.recipes import RECIPES
from txl.data_utils.running import RunningVocab
from txl.data_utils.vocabulary import EOS, Vocab
from txl.model.transformer import TransformerXL
from txl.records import read_json

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
    vocab: Vocab
    tensors: tuple[str, ...]
    record: dict[str, Any]

    @property
    def model_config(self) -> ModelConfig:
        return self.model.config


def read_pretrained(
    source: Path, vocabulary: Path | None = None, *, vocabulary_by: str, dataset: str = "wt103"
) -> Pretrained:
    """The model of a run folder, of one of its checkpoints, or of a checkpoint that `txl.convert` reads. Raises
    `UsageError` if there is no such thing, it is damaged, or has no vocabulary.

    Args:
        vocabulary: file of the words of another program's checkpoint, where they are not beside the weights.
        vocabulary_by: how a user names that file, for errors.
        dataset: kind of the text that such a checkpoint was trained on.
    """
    require(source.exists(), f"{source}: no such file or folder; name a run folder or a checkpoint")
    is_part = source.suffix in _PARTS or source.name in ("best", "latest", "pytorch_model.bin")
    if is_part and source.is_file() and (is_ours(source.parent) or (source.parent / "config.json").is_file()):
        raise UsageError(f"{source}: is a file; name its folder, {source.parent}")
    if is_ours(source):
        checkpoint = open_checkpoint(source)
        model, vocab = load_model(checkpoint), vocabulary_of(checkpoint)
        names = tuple(name for name, _ in model.named_parameters())
        return Pretrained("txl", model, checkpoint.context, vocab, names, checkpoint.record)
    found = convert(source, vocabulary)
    vocab = _vocabulary_of_converted(found, source, vocabulary_by, dataset)
    record = {"converted_from": {"kind": found.kind, "source": source.name}}
    return Pretrained(found.kind, found.model, found.context, vocab, found.tensors, record)


def _vocabulary_of_converted(converted: Converted, source: Path, named_by: str, dataset: str) -> Vocab:
    """The words of the model. Raises `UsageError` if there are none, or not as many as it has, or none ends a line."""
    n_token = converted.model.config.n_token
    files = "vocab.txt, vocab.json, vocab.bin or cache.pt"
    require(bool(converted.words), f"{source}: holds no vocabulary; give {named_by} FILE ({files})")
    try:
        vocab = RECIPES[dataset].vocab(converted.words)
    except ValueError as error:
        raise UsageError(f"{named_by}: {error}; give the file that belongs to {source}") from None
    require(
        len(vocab) == n_token, f"{named_by}: {len(vocab)} words, the model has {n_token}; give the file of the model"
    )
    ends_lines = EOS in vocab or isinstance(vocab, RunningVocab)
    require(
        ends_lines, f"{named_by}: has no {EOS}; convert models of enwik8, text8 or lm1b with --dataset and its name"
    )
    return vocab


def is_ours(path: Path) -> bool:
    """True for a run folder or a checkpoint of txl."""
    if path.is_dir() and any(path.glob("step_*")):
        return True
    try:
        return "format" in read_json(path / "config.json")
    except (OSError, ValueError, TypeError):
        return False
