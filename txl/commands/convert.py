"""Turn a checkpoint of another program into a run that eval.py and generate.py take:

python -m txl.convert SOURCE FOLDER
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from txl.checkpoint import CheckpointWriter, Snapshot
from txl.cli import build, read_flags
from txl.config import Checked, UsageError, option, require
from txl.convert import Converted, convert
from txl.data_utils.corpus import DataConfig
from txl.data_utils.vocabulary import EOS, Vocab
from txl.runtime.distributed import Ranks
from txl.runtime.log import print_line


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(Checked):
    """What is converted, and what is known of it besides."""

    vocab: str | None = option(None, "file of its words (not given: the one inside or beside the weights)")
    data: str = option("data/wikitext-103", "folder of the text it was trained on, which eval.py reads by default")
    dataset: Literal["wt103", "wt2", "text"] = option("wt103", "kind of that text")
    explain: bool = option(False, "print the model, and each tensor that was read")


def main(argv: Sequence[str]) -> None:
    places = list(argv[:2])
    if "--help" not in argv and "-h" not in argv:
        good = len(places) == 2 and not any(place.startswith("-") for place in places)
        require(good, "give a checkpoint and the folder of the new run: python -m txl.convert SOURCE FOLDER")
    typed = read_flags(argv[len(places) :] if "--help" not in argv else argv, ConvertConfig, description=__doc__ or "")
    config = build(ConvertConfig, typed)
    source, run = map(Path, places)
    require(source.exists(), f"{source}: no such file or folder; name a checkpoint of another program")
    require(not run.exists() or (run.is_dir() and not any(run.iterdir())), f"{run}: is not empty; name another folder")
    converted = convert(source, Path(config.vocab) if config.vocab else None)
    vocab = vocabulary(converted, source)
    folder = save(converted, vocab, config, source, run)
    if config.explain:
        print_line(f"| {converted.model.config}")
        for name in converted.tensors:
            print_line(f"| read {name}")
    n_weight = sum(p.numel() for p in converted.model.parameters())
    print_line(
        f"| {converted.kind}: all {len(converted.tensors)} tensors read, {n_weight:,} parameters, {len(vocab):,} words"
    )
    print_line(f"| written to {folder}")


def vocabulary(converted: Converted, source: object, named_by: str = "--vocab") -> Vocab:
    """The words of the model.

    Args:
        source: where it comes from, for errors.
        named_by: the flag or argument that names another vocabulary, for errors.
    Raises:
        UsageError: if there are none, or not as many as the model has, or none ends a line.
    """
    n_token = converted.model.config.n_token
    require(
        bool(converted.words),
        f"{source}: holds no vocabulary; give {named_by} FILE (vocab.txt, vocab.json, vocab.bin or cache.pt)",
    )
    try:
        vocab = Vocab(converted.words)
    except ValueError as error:
        raise UsageError(f"{named_by}: {error}; give the file that belongs to {source}") from None
    require(
        len(vocab) == n_token,
        f"{named_by}: {len(vocab)} words, the model has {n_token}; give the file that belongs to it",
    )
    require(EOS in vocab, f"{named_by}: has no {EOS}; models of characters are not supported yet")
    return vocab


def save(converted: Converted, vocab: Vocab, config: ConvertConfig, source: Path, run: Path) -> Path:
    """Write the run folder."""
    data = DataConfig(data=config.data, dataset=config.dataset)
    settings = {"data": data.data, "dataset": data.dataset}
    record = {"data": settings, "converted_from": {"kind": converted.kind, "source": source.name}}
    ranks = Ranks(0, 1, torch.device("cpu"))
    writer = CheckpointWriter(run, converted.context, ranks, slice(0, 1), record, {"vocab.txt": vocab.to_text()})
    return writer.save(converted.model, Snapshot({"step": 0}, {}, None, {}), step=0, best=True)
