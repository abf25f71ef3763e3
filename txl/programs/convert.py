"""Turn a checkpoint of any kind that txl reads into a run folder, which eval.py and generate.py
take, or into the files of another program:

python -m txl.convert SOURCE FOLDER
python -m txl.convert RUN FOLDER --to huggingface
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from txl.checkpoint import WEIGHTS, checkpoints
from txl.config import Checked, TextKind, build, option, require
from txl.data_utils.free_text import read_text
from txl.files import sha256
from txl.language.model import LanguageModel
from txl.runtime.log import print_line
from txl.settings.flags import read_flags, require_utf8


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(Checked):
    """What is converted, and what is known of it besides."""

    to: Literal["txl", "huggingface", "original"] = option(
        "txl",
        "what is written; txl: a run folder; huggingface: what transformers 4 and txl.hf load;"
        " original: what the 2019 code's classes load",
    )
    vocab: str | None = option(
        None, "file of its words (not given: the one inside or beside the weights)"
    )
    data: str | None = option(
        None,
        "folder of the text it was trained on, which eval.py reads by default (not given:"
        " data/wikitext-103)",
    )
    dataset: TextKind | None = option(None, "kind of that text (not given: wt103)")
    dtype: Literal["kept", "float32", "bfloat16", "float16"] = option(
        "kept", "number type of the weights in the files; txl uses those in 16 bits as float32"
    )
    licence: str | None = option(
        None, "licence of the model, for its card, as the hub names it: mit, cc-by-sa-4.0"
    )
    about: str | None = option(
        None, "file of Markdown for its card: the data and its licence, what the model is for"
    )
    evaluations: tuple[str, ...] = option(
        (), "files that eval.py --json wrote for this checkpoint, whose figures the card shows"
    )
    samples: str | None = option(None, "file of text that the model wrote, for its card")
    explain: bool = option(False, "print the model, and each tensor that was read")


def main(argv: Sequence[str]) -> None:
    places = list(argv[:2])
    asks = {"--help", "-h"} & set(argv)
    good = len(places) == 2 and not any(place.startswith("-") for place in places)
    require(
        bool(asks) or good,
        "give a checkpoint and the folder to write: python -m txl.convert SOURCE FOLDER",
    )
    require_utf8(places)
    typed = read_flags(argv if asks else argv[2:], ConvertConfig, description=__doc__ or "")
    config = build(ConvertConfig, typed)
    folder = Path(places[1])
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
    lm = opened(places[0], config, typed)
    assert lm.origin is not None
    lm.model.to(lm.origin.dtype if config.dtype == "kept" else getattr(torch, config.dtype))
    in_range = all(p.isfinite().all() for p in lm.model.parameters())
    require(
        in_range, f"--dtype {config.dtype}: weights of {places[0]} exceed its range; use bfloat16"
    )
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


def opened(source: str, config: ConvertConfig, typed: Collection[str]) -> LanguageModel:
    """The model, with what the flags say of its text. Raises `UsageError` if it is none, or a typed
    flag asks for what a run of ours has, or contradicts what the checkpoint says.
    """
    lm = LanguageModel.open(source, vocabulary=config.vocab, dataset=config.dataset, device="cpu")
    assert lm.origin is not None
    if lm.origin.run is not None:
        for name in ("data", "dataset"):
            require(
                name not in typed,
                f"--{name}: {source} is a run of txl and has its own; leave the flag out",
            )
        return lm
    data = lm.record["data"]
    has = data.get("dataset")
    asked = config.dataset or has
    require(
        asked == has,
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
