"""Where trained models are read from: runs of txl, checkpoints of other programs, the Hugging Face
hub; and what is read.
"""

import errno
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from txl.checkpoint import (
    Checkpoint,
    checkpoints,
    damaged,
    is_checkpoint,
    load_model,
    model_with,
    open_checkpoint,
)
from txl.config import Context, UsageError, require
from txl.data_utils.config import DATA_SETS, DataConfig, kind_of_tokenizer, tokenizer_of
from txl.data_utils.pretrained import Pretrained, sampling_in
from txl.data_utils.tokens import EOS, Tokenizer, Vocab
from txl.generation.rule import Rule
from txl.language.texts import FORMER
from txl.model.transformer import TransformerXL
from txl.registry import NoSuchPart
from txl.runtime.records import read_json, require_fields

if TYPE_CHECKING:  # a run of ours needs none of the readers of other programs' checkpoints
    from txl.convert import Converted


class Origin(NamedTuple):
    """Where a model was read from.

    Attributes:
        kind: whose it was.
        path: the checkpoint.
        run: the run folder, or a checkpoint of it, that was asked for; None: it is another
            program's.
        tensors: the names of the tensors that were read.
        dtype: of the weights in the file, if it is another program's.
        fingerprint: gives the hex digest of the weights.
    """

    kind: str
    path: Path
    run: Path | None
    tensors: tuple[str, ...]
    dtype: torch.dtype
    fingerprint: Callable[[], str]


class Contents(NamedTuple):
    """What a source holds, the first fields of `LanguageModel`, which says what they are."""

    model: TransformerXL
    context: Context
    tokenizer: Tokenizer
    record: dict[str, Any]
    origin: Origin


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
    patterns.append("*.jinja")  # a chat template
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
    except NoSuchPart as error:
        record = checkpoint.folder / "config.json"
        raise UsageError(f"{record}: {str(error).removeprefix('--')}") from None
    except UsageError:  # which names the file
        raise
    except ValueError as error:
        raise damaged(path, error) from None
    if len(tokenizer) != n_token or not tokenizer.has_eos:
        raise damaged(path, f"not the {n_token} words of the model, {EOS} among them")
    return tokenizer


_FILES = "vocab.txt, vocab.json, vocab.bin or cache.pt"


def read_converted(
    path: Path, vocabulary: Path | None, dataset: str | None, wanted: torch.dtype = torch.float32
) -> Contents:
    """As `read_source`, of what is no run of txl; `wanted` is its `dtype`."""
    from txl.convert import convert
    from txl.convert.kimiyoung import rates_of
    from txl.convert.tensor_files import fingerprint_of

    there = ", ".join(DATA_SETS)
    require(
        dataset is None or dataset in DATA_SETS,
        f"--dataset {dataset}: no such kind of text; there are {there}",
    )
    found = convert(path, vocabulary)
    if found.has_tokenizer:
        tokenizer = _own_tokenizer(found, path, vocabulary, dataset)
        data = {"dataset": "pretrained"}
    else:
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
    origin = Origin(
        found.kind, path, None, found.tensors, dtype, partial(fingerprint_of, found.weights)
    )
    return Contents(model, found.context, tokenizer, record, origin)


def _own_tokenizer(
    converted: "Converted", source: Path, vocabulary: Path | None, dataset: str | None
) -> Pretrained:
    """The tokenizer in the folder of a pretrained model. Raises `UsageError` if there is none, or
    another is asked for.
    """
    from txl.convert.decoder import naming_fields

    own = f"{source} has a tokenizer of its own; leave the flag out"
    require(vocabulary is None, f"--vocabulary {vocabulary}: {own}")
    is_same = dataset is None or kind_of_tokenizer(dataset) is Pretrained
    require(is_same, f"--dataset {dataset}: {own}")
    tokenizer = Pretrained.of_folder(source, converted.model.config.n_token)
    sampling = sampling_in(source)
    with naming_fields(source / "generation_config.json"):
        Rule(**sampling)
    tokenizer.special = replace(tokenizer.special, sampling=sampling)
    return tokenizer


def _data_of(converted: "Converted", source: Path) -> dict[str, Any]:
    """What an export by txl says of the text of the training; nothing of other checkpoints. Raises
    `UsageError` if it is damaged.
    """
    if converted.data is None:
        return {}
    try:
        said: Any = converted.data
        if isinstance(said, dict):
            said = {key: value for key, value in said.items() if key != FORMER}
        data: dict[str, Any] = require_fields(said, DataConfig)
        DataConfig(**data)
    except ValueError as error:
        raise UsageError(
            f"{source}: what it says of its text is damaged ({error}); use another copy"
        ) from None
    return data


def _checked_tokenizer(
    converted: "Converted", source: Path, own: str | None, dataset: str | None
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


def _tokenizer(converted: "Converted", own: str | None, dataset: str) -> Tokenizer:
    """As `_checked_tokenizer`.

    Raises `OSError` or `ValueError` if the files hold no such vocabulary.
    """
    path = converted.vocabulary
    kind = kind_of_tokenizer(own or dataset)
    if own and path and path.suffix == ".txt" and not kind.is_of_words:  # as txl writes it
        files = {"vocab.txt": path}
        return tokenizer_of(
            own, lambda name: files.get(name, path.with_name(name)).read_bytes().decode()
        )
    if not kind.takes_words:
        require(not own, f"{own} comes back from the files of the export only")
        kind = Vocab
    return kind(converted.words)  # type: ignore[call-arg]
