"""The tokenizer of a trained model, from the files of its checkpoint."""

from pathlib import Path

from txl.checkpoint import Checkpoint, damaged
from txl.config import UsageError, require
from txl.convert import Converted
from txl.data_utils.config import DataConfig
from txl.data_utils.datasets import kind_of_tokenizer, tokenizer_of
from txl.data_utils.files import DataError
from txl.data_utils.tokenizers.base import EOS, Tokenizer
from txl.data_utils.tokenizers.words import Vocab

_FILES = "vocab.txt, vocab.json, vocab.bin or cache.pt"


def tokenizer_in(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a checkpoint. Raises `UsageError` if it is damaged, or not that of the model."""
    path, n_token = checkpoint.folder / "vocab.txt", checkpoint.model_config.n_token
    dataset = checkpoint.record.get("data", {}).get("dataset", DataConfig.dataset)
    try:
        tokenizer = tokenizer_of(dataset, checkpoint.attachment)
    except DataError:
        raise
    except ValueError as error:  # also a UsageError, which names the path
        raise damaged(path, str(error).removeprefix(f"{path}: ")) from None
    if len(tokenizer) != n_token or not tokenizer.has_eos:
        raise damaged(path, f"not the {n_token} words of the model, {EOS} among them")
    return tokenizer


def tokenizer_of_converted(converted: Converted, source: Path, own: str | None, dataset: str | None) -> Tokenizer:
    """The tokenizer of another program's model. Raises `UsageError` if there is none, or it has not as many words as
    the model, or none ends a line.

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
        kind = f" of --dataset {own or dataset}" if own or dataset else ""
        do = f"give the --dataset of its training, or {do}" if dataset and not own else do
        raise UsageError(f"{source}: its words are no vocabulary{kind} ({error}); {do}") from None
    n_word = len(tokenizer)
    require(n_word == n_token, f"{source}: its vocabulary has {n_word} words, the model has {n_token}; {do}")
    has_none = f"its vocabulary has no {EOS}; models of enwik8, text8 and lm1b need that --dataset"
    require(tokenizer.has_eos, f"{source}: {has_none}")
    return tokenizer


def _tokenizer(converted: Converted, own: str | None, dataset: str) -> Tokenizer:
    """As `tokenizer_of_converted`. Raises `OSError` or `ValueError` if the files hold no such vocabulary."""
    path, kind = converted.vocabulary, kind_of_tokenizer(own or dataset)
    if own and path and path.suffix == ".txt":  # as txl writes it
        files = {"vocab.txt": path}
        return tokenizer_of(own, lambda name: files.get(name, path.with_name(name)).read_bytes().decode())
    if not kind.takes_words:
        require(not own, f"{own} comes back from the files of the export only")
        kind = Vocab
    return kind(converted.words)  # type: ignore[call-arg]
