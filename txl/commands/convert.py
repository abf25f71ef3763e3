"""Turn a checkpoint of any kind that txl reads into a run folder, which eval.py and generate.py take, or into the files
of another program:

python -m txl.convert SOURCE FOLDER
python -m txl.convert RUN FOLDER --to huggingface
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from txl.checkpoint import WEIGHTS, CheckpointWriter, Snapshot
from txl.cli import build, read_flags
from txl.commands.export import rates, write_huggingface, write_original
from txl.commands.model_card import model_card
from txl.commands.pretrained import Pretrained, is_ours, read_pretrained
from txl.config import Checked, option, require
from txl.data_utils.datasets import DATA_SETS
from txl.files import folder_written_whole, sha256
from txl.runtime.distributed import Ranks
from txl.runtime.log import print_line


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(Checked):
    """What is converted, and what is known of it besides."""

    to: Literal["txl", "huggingface", "original"] = option(
        "txl",
        "what is written; txl: a run folder; huggingface: what transformers 4 and txl.hf load; original: what the 2019 "
        "code's classes load",
    )
    vocab: str | None = option(None, "file of its words (not given: the one inside or beside the weights)")
    data: str = option("data/wikitext-103", "folder of the text it was trained on, which eval.py reads by default")
    dataset: Literal["wt103", "wt2", "ptb", "enwik8", "text8", "lm1b", "text"] = option("wt103", "kind of that text")
    dtype: Literal["kept", "float32", "bfloat16", "float16"] = option(
        "kept", "number type of the weights in the files; txl uses those in 16 bits as float32"
    )
    licence: str | None = option(None, "licence of the model, for its card, as the hub names it: mit, cc-by-sa-4.0")
    explain: bool = option(False, "print the model, and each tensor that was read")


def main(argv: Sequence[str]) -> None:
    places = list(argv[:2])
    if "--help" not in argv and "-h" not in argv:
        good = len(places) == 2 and not any(place.startswith("-") for place in places)
        require(good, "give a checkpoint and the folder to write: python -m txl.convert SOURCE FOLDER")
    typed = read_flags(argv[len(places) :] if "--help" not in argv else argv, ConvertConfig, description=__doc__ or "")
    config = build(ConvertConfig, typed)
    source, folder = map(Path, places)
    free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    require(free, f"{folder}: is not empty; name another folder")
    found = read(source, config, typed)
    if config.dtype != "kept":
        found.model.to(getattr(torch, config.dtype))
        in_range = all(p.isfinite().all() for p in found.model.parameters())
        require(in_range, f"--dtype {config.dtype}: weights of {source} exceed its range; use bfloat16")
    with folder_written_whole(folder) as temporary:
        if config.to == "huggingface":
            write_huggingface(found, temporary)
        elif config.to == "original":
            write_original(found, temporary)
        else:
            write_run(found, temporary)
        (temporary / "README.md").write_text(
            model_card(found, config.to, folder.name, config.licence), encoding="utf-8"
        )
    if config.explain:
        print_line(f"| {found.model.config}")
        for name in found.tensors:
            print_line(f"| read {name}")
    n_weight = sum(p.numel() for p in found.model.parameters())
    print_line(
        f"| {found.kind}: all {len(found.tensors)} tensors read, {n_weight:,} parameters, {len(found.vocab):,} words"
    )
    for path in sorted(folder.rglob("*")):
        if path.name in (WEIGHTS, "model.pt"):
            print_line(f"| {path}: {path.stat().st_size / 1e6:.1f} MB, sha256 {sha256(path)}")
    print_line(f"| written to {folder}")


def read(source: Path, config: ConvertConfig, typed: Collection[str]) -> Pretrained:
    """The model with all that is known of it. Raises `UsageError` if it is damaged, of no known kind, or has no
    vocabulary, or if a typed flag asks for what a run of ours has."""
    ours = is_ours(source)
    for name in ("vocab", "data", "dataset") if ours else ():
        require(name not in typed, f"--{name}: {source} is a run of txl and has its own; leave the flag out")
    vocab = Path(config.vocab) if config.vocab else None
    named = config.dataset if "dataset" in typed else None
    found = read_pretrained(source, vocab, vocabulary_by="--vocab", dataset=named)
    if not ours:
        own = found.record.get("data", {})
        said = own.get("dataset", config.dataset)
        same = "dataset" not in typed or config.dataset == said
        require(same, f"--dataset {config.dataset}: {source} says that it was trained on {said}; leave the flag out")
        convention = {} if own else DATA_SETS[config.dataset].as_in_2019
        asked = {name: getattr(config, name) for name in ("data", "dataset") if name in typed or name not in own}
        found.record["data"] = {**convention, **own, **asked}
        found.record["converted_from"]["assumed"] = [name for name in asked if name not in typed]
    return found


def write_run(found: Pretrained, folder: Path) -> None:
    """A run folder with one checkpoint, without the state of a training."""
    record = {name: found.record[name] for name in ("data", "texts", "converted_from") if name in found.record}
    record["rates"] = rates(found)  # for further exports
    ranks = Ranks(0, 1, torch.device("cpu"))
    writer = CheckpointWriter(folder, found.context, ranks, slice(0, 1), record, found.vocab.files())
    nats = found.record.get("valid_nats_per_token")
    writer.save(found.model, Snapshot({"step": 0}, {}, None, {}), step=0, best=True, valid_nats=nats)
