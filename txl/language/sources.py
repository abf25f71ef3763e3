"""Where trained models are read from: runs of txl, checkpoints of other programs, the Hugging Face
hub.
"""

import errno
import os
import re
from pathlib import Path

import torch

from txl.checkpoint import (
    Checkpoint,
    checkpoints,
    damaged,
    is_checkpoint,
    load_model,
    open_checkpoint,
)
from txl.config import UsageError, require
from txl.data_utils.datasets import DataConfig, tokenizer_of
from txl.data_utils.tokenizer import EOS, Tokenizer
from txl.language.origin import Contents, Origin
from txl.runtime.records import read_json

_THEIRS = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt", "pytorch_model.bin")
_PARTS = (".json", ".jsonl", ".md", ".safetensors", ".txt")
"""Files in the folder of a checkpoint or a run, none of which is a checkpoint."""


def located(source: str | Path) -> Path:
    """The path of a source; a model of the hub is downloaded.

    Raises `UsageError` if there is no such thing.
    """
    path = Path(os.path.expanduser(source))
    name = str(source)
    if not path.exists():
        is_name = (
            re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None and not path.parent.is_dir()
        )
        do = (
            "give a run, as in train.py --work_dir, a checkpoint, or a name on the hub (owner/name)"
        )
        require(is_name, f"{name}: no such file or folder; {do}")
        return _downloaded(name)
    is_part = path.suffix in _PARTS or path.name in ("best", "latest", "pytorch_model.bin")
    if (
        is_part
        and path.is_file()
        and (is_ours(path.parent) or (path.parent / "config.json").is_file())
    ):
        raise UsageError(f"{source}: is a file; name its folder, {path.parent}")
    return path


def _downloaded(name: str) -> Path:
    try:
        from huggingface_hub import (  # pyright: ignore[reportMissingImports] (an extra)
            snapshot_download,
        )
    except ImportError:
        raise UsageError(
            f"{name}: no such folder; for models of the hub, pip install huggingface_hub"
        ) from None
    # `*` matches / too
    patterns = ["*.json", "*.safetensors", "*.bin", "*vocab.*", "*SHA256SUMS", "best", "latest"]
    try:
        return Path(
            snapshot_download(name, allow_patterns=patterns, ignore_patterns=["corpus.bin", "*.h5"])
        )
    # those of the hub and of the network below it have no class in common
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        why = (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]
        is_unknown = type(error).__name__ == "RepositoryNotFoundError"
        if is_unknown:
            hub = "has no such model, or it is private"
        else:
            hub = f"could not be asked ({why})"
        raise UsageError(f"{name}: no such folder, and the hub {hub}; check the name") from None


def is_ours(path: Path) -> bool:
    """True for a run folder or a checkpoint of txl, complete or damaged."""
    if checkpoints(path):
        return True
    try:
        record = read_json(path / "config.json")
        if "format" in record or "model_type" in record:
            return "format" in record
    except (OSError, ValueError, TypeError):
        pass
    return is_checkpoint(path) and not any((path / name).is_file() for name in _THEIRS)


def read_source(
    path: Path,
    vocabulary: Path | None = None,
    dataset: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Contents:
    """The model of a run folder, of one of its checkpoints, or of a checkpoint of the 2019 code, of
    NVIDIA's or of Hugging Face's TransfoXL. Raises `UsageError` if it is damaged, of no known kind,
    or has no vocabulary.

    Args:
        vocabulary: file of the words of another program's checkpoint, where they are not beside the
            weights.
        dataset: kind of the text that such a checkpoint was trained on, where it does not say so
            itself.
        dtype: see `load_model`.
    """
    while True:
        before = checkpoints(path)
        try:
            return _read(path, vocabulary, dataset, dtype)
        except (UsageError, OSError):
            if checkpoints(path) == before:
                raise
        # a training has replaced the checkpoint meanwhile: the newer one is read


def _read(path: Path, vocabulary: Path | None, dataset: str | None, dtype: torch.dtype) -> Contents:
    if is_ours(path):
        require(
            vocabulary is None,
            f"{vocabulary}: {path} is a run of txl and has its own vocabulary; leave it out",
        )
        checkpoint = open_checkpoint(path)
        model = load_model(checkpoint, dtype=dtype)
        tokenizer = tokenizer_in(checkpoint)
        names = tuple(name for name, _ in model.named_parameters())
        origin = Origin(
            "txl", checkpoint.folder, path, names, torch.float32, checkpoint.fingerprint
        )
        return Contents(model, checkpoint.context, tokenizer, checkpoint.record, origin)
    # most sources are runs, and a start takes no longer for others
    from txl.language.others import read_converted

    return read_converted(path, vocabulary, dataset, dtype)


def tokenizer_in(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a checkpoint.

    Raises `UsageError` if it is damaged, or not that of the model.
    """
    path = checkpoint.folder / "vocab.txt"
    n_token = checkpoint.model_config.n_token
    dataset = checkpoint.record.get("data", {}).get("dataset", DataConfig.dataset)
    try:
        tokenizer = tokenizer_of(dataset, checkpoint.attachment)
    except UsageError:  # which names the file
        raise
    except ValueError as error:
        raise damaged(path, error) from None
    if len(tokenizer) != n_token or not tokenizer.has_eos:
        raise damaged(path, f"not the {n_token} words of the model, {EOS} among them")
    return tokenizer
