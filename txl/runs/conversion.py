"""A checkpoint of any kind that is read becomes a run folder, or the files of another program."""

from collections.abc import Collection
from pathlib import Path

import torch

from txl.checkpoint import WEIGHTS, checkpoints
from txl.config import require
from txl.data_utils.free_text import read_text
from txl.files import sha256
from txl.language.config import ConvertConfig
from txl.language.model import LanguageModel
from txl.runtime.log import print_line


def convert_model(source: str, folder: Path, config: ConvertConfig, asked: Collection[str]) -> None:
    """Convert a checkpoint into a new folder, and print what was read and written.

    Args:
        asked: names of the settings that were given.
    Raises:
        UsageError: if the folder is not new, the checkpoint cannot be read, or a setting contradicts
            it.
    """
    require(
        folder.name not in ("", ".."),
        f"{folder}: is a folder without a name of its own; name a new one",
    )
    free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    require(free, f"{folder}: is not empty; name another folder")
    for parent in folder.absolute().parents:
        require(
            parent not in checkpoints(parent.parent),
            f"{folder}: lies in a checkpoint, {parent}, which a run removes; name another folder",
        )
    lm = _open_source(source, config, asked)
    assert lm.origin is not None
    lm.model.to(lm.origin.dtype if config.dtype == "kept" else getattr(torch, config.dtype))
    in_range = all(p.isfinite().all() for p in lm.model.parameters())
    require(in_range, f"--dtype {config.dtype}: weights of {source} exceed its range; use bfloat16")
    about = _text_of(config.about)
    samples = _text_of(config.samples)
    lm.write(
        folder,
        config.to,
        licence=config.licence,
        about=about,
        evaluations=config.evaluations,
        samples=samples,
    )
    if config.explain:
        print_line(f"| {lm.model.config}")
        for name in lm.origin.tensors:
            print_line(f"| read {name}")
    n_weight = sum(p.numel() for p in lm.model.parameters())
    print_line(
        f"| {lm.origin.kind}: all {len(lm.origin.tensors)} tensors read, {n_weight:,} parameters, "
        f"{len(lm.tokenizer):,} {lm.tokenizer.unit}"
    )
    for path in sorted(folder.rglob("*")):
        if path.name in (WEIGHTS, "model.pt"):
            print_line(f"| {path}: {path.stat().st_size / 1e6:.1f} MB, sha256 {sha256(path)}")
    print_line(f"| written to {folder}")


def _open_source(source: str, config: ConvertConfig, asked: Collection[str]) -> LanguageModel:
    """The model, with what the flags say of its text. Raises `UsageError` if it is none, or a typed
    flag asks for what a run of ours has, or contradicts what the checkpoint says.
    """
    lm = LanguageModel.open(source, vocabulary=config.vocab, dataset=config.dataset, device="cpu")
    assert lm.origin is not None
    if lm.origin.run is not None:
        for name in ("data", "dataset"):
            require(
                name not in asked,
                f"--{name}: {source} is a run of txl and has its own; leave the flag out",
            )
        return lm
    data = lm.record["data"]
    has = data.get("dataset")
    named = config.dataset or has
    require(
        named == has,
        f"--dataset {config.dataset}: {source} says that it was trained on {has}; leave the"
        " flag out",
    )
    if config.data is not None:
        data["data"] = config.data
    return lm


def _text_of(file: str | None) -> str:
    """Of a file that may be left out."""
    if file is None:
        return ""
    return read_text(file)
