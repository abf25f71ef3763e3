"""What a checkpoint says of the text it was trained on."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from txl.checkpoint import Checkpoint, damaged
from txl.config import require
from txl.data_utils.corpus import DataConfig
from txl.data_utils.vocabulary import EOS, Vocab
from txl.records import require_fields


def data_settings(checkpoint: Checkpoint, typed: Collection[str]) -> dict[str, Any]:
    """The fields of `DataConfig` that a checkpoint was trained with, without the folder of token files, which is for
    this user to choose.

    Args:
        typed: the flags on the command line.
    Raises:
        UsageError: if config.json does not say so, or neither it nor the user names a folder that is there.
    """
    try:
        saved = require_fields(checkpoint.record["data"], DataConfig) | {"cache_dir": None}
        DataConfig(**saved)
    except (KeyError, ValueError) as error:
        raise damaged(checkpoint.folder / "config.json", error) from None
    folder = Path(saved.get("data", DataConfig.data))
    require(
        "data" in typed or any(folder.glob("*.txt")),
        f"{folder}: the text of the training is not there; name its folder with --data",
    )
    return saved


def vocabulary_of(checkpoint: Checkpoint) -> Vocab:
    """The words of a checkpoint.

    Raises:
        UsageError: if they are damaged, or not those of its model.
    """
    path = checkpoint.folder / "vocab.txt"
    try:
        vocab = Vocab.from_text(checkpoint.attachment("vocab.txt"))
    except ValueError as error:  # a UsageError is one too
        raise damaged(path, str(error).removeprefix(f"{path}: ")) from None
    if len(vocab) != checkpoint.model_config.n_token or EOS not in vocab:
        raise damaged(path, f"not the {checkpoint.model_config.n_token} words of the model, {EOS} among them")
    return vocab
