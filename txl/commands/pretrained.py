"""A trained model with its vocabulary: one of ours, or a checkpoint of another program."""

from dataclasses import dataclass
from pathlib import Path

from txl.checkpoint import load_model, open_checkpoint
from txl.commands.convert import vocabulary as vocabulary_of_converted
from txl.commands.trained import vocabulary_of
from txl.config import Context, ModelConfig, require
from txl.convert import convert
from txl.data_utils.vocabulary import Vocab
from txl.model.transformer import TransformerXL
from txl.records import read_json


@dataclass(frozen=True)
class Pretrained:
    """A trained model.

    Attributes:
        context: of its training.
        dataset: kind of the text it was trained on; empty: unknown.
    """

    model: TransformerXL
    context: Context
    vocab: Vocab
    dataset: str = ""

    @property
    def model_config(self) -> ModelConfig:
        return self.model.config


def read_pretrained(source: Path, vocabulary: Path | None = None, *, vocabulary_by: str) -> Pretrained:
    """The model of a run folder, of one of its checkpoints, or of a checkpoint that `txl.convert` reads.

    Args:
        vocabulary: file of the words of another program's checkpoint, where they are not beside the weights.
        vocabulary_by: how a user names that file, for errors.
    Raises:
        UsageError: if there is no such thing, it is damaged, or has no vocabulary.
    """
    require(source.exists(), f"{source}: no such file or folder; name a run folder or a checkpoint")
    if _is_ours(source):
        checkpoint = open_checkpoint(source)
        dataset = checkpoint.record.get("data", {}).get("dataset", "")
        return Pretrained(load_model(checkpoint), checkpoint.context, vocabulary_of(checkpoint), dataset)
    found = convert(source, vocabulary)
    return Pretrained(found.model, found.context, vocabulary_of_converted(found, source, vocabulary_by))


def _is_ours(path: Path) -> bool:
    if path.is_dir() and any(path.glob("step_*")):
        return True
    try:
        return "format" in read_json(path / "config.json")
    except (OSError, ValueError, TypeError):
        return False
