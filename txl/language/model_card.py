"""The README.md of an exported model."""

import dataclasses
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txl.config import Context, ModelConfig, UsageError, fields_of, require
from txl.data_utils.corpus import DataConfig
from txl.model.axes import chosen_by, is_read
from txl.registry import settings_of_all
from txl.runtime.log import perplexity
from txl.runtime.records import read_json, require_fields
from txl.training.config import TrainConfig

if TYPE_CHECKING:
    from txl.language.model import LanguageModel  # which writes itself by this module

_USE = {
    "txl": (
        """import txl

lm = txl.load("{name}")
print(lm.generate("Once upon a time"))"""
    ),
    "huggingface": (
        """import txl.hf  # for transformers 5; transformers 4 up to 4.57 has the class itself
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
ids = tokenizer("Once upon a time", return_tensors="pt")["input_ids"]
print(tokenizer.decode(model.generate(ids, max_new_tokens=50)[0]))"""
    ),
    "original": (
        """import torch
from mem_transformer import MemTransformerLM  # kimiyoung/transformer-xl, pytorch/

held = torch.load("{name}/model.pt")
model = MemTransformerLM(**held["arguments"])
model.load_state_dict(held["state_dict"])"""
    ),
}
_DATA = {"data": "`{}`", "dataset": "(`--dataset {}`)"}
_FIGURES = {
    "split": str,
    "tgt_len": int,
    "mem_len": int,
    "added": str,
    "perplexity": float,
    "word_perplexity": float,
    "bits_per_byte": float | None,
}
"""What a card shows of a row of eval.py, and its type."""
_HOW = {
    "same_length": False,
    "clamp_len": -1,
    "ext_len": 0,
    "convention": "txl",
    "reset": "never",
    "dtype": "float32",
}
"""What it says besides where it is not this: how the text was read."""


@dataclass(frozen=True)
class Notes:
    """What is said of a model besides, for its card.

    Attributes:
        licence: of the model, as the hub names it.
        about: Markdown: the data and its licence, what the model is for.
        evaluations: files that `eval.py --json` wrote for this checkpoint.
        samples: text that the model wrote.
        curve: file name of a picture of the training, beside the card.
    """

    licence: str | None = None
    about: str = ""
    evaluations: Sequence[str | Path] = ()
    samples: str = ""
    curve: str | None = None


def model_card(lm: "LanguageModel", kind: str, name: str, notes: Notes) -> str:
    """What the model is, what it was trained on and how, its figures, how it is used: for a folder
    of this `name` in the format of this `kind`. Raises `UsageError` if an evaluation is not one of
    this checkpoint.
    """
    config = lm.model.config
    record = lm.record
    licence = notes.licence
    n_weight = sum(p.numel() for p in lm.model.parameters())
    data = lm.known_data
    if kind == "huggingface":
        library = "transformers"
    else:
        library = "txl"
    lines = [
        f"---\nlibrary_name: {library}\npipeline_tag: text-generation\ntags: [transformer-xl,"
        " transfo-xl]\n" + (f"license: {licence}\n---" if licence else "---"),
        f"# {name}",
        (
            f"A Transformer-XL language model (Dai et al. 2019): {config.n_layer} layers, d_model"
            f" {config.d_model}, {n_weight:,} parameters, a vocabulary of {len(lm.tokenizer):,}"
            f" words. It was trained with segments of {lm.context.tgt_len} tokens and a memory of"
            f" {lm.context.mem_len}."
        ),
        (
            f"## Data\n\n{' '.join(form.format(data[key]) for key, form in _DATA.items() if key in data) or 'Unknown'}."
        ),
    ]
    if notes.about:
        lines.append(notes.about.strip())
    if "converted_from" in record:
        origin = record["converted_from"]
        lines.append(
            f"The weights were converted from a checkpoint of {origin.get('kind')},"
            f" `{origin.get('source')}`."
        )
    if "train" in record:
        command = training_command(record)
        lines.append(f"## Training\n\n{record.get('step', 0):,} updates:\n\n```\n{command}\n```")
        if notes.curve is not None:
            lines.append(f"![validation perplexity over the tokens read]({notes.curve})")
    lines += _figures(lm, notes.evaluations)
    if notes.samples:
        # longer than any in the text
        fence = "`" * max(3, 1 + max(map(len, re.findall("`*", notes.samples))))
        lines.append(f"## Samples\n\n{fence}\n{notes.samples.strip()}\n{fence}")
    lines.append(f"## Use\n\n```python\n{_USE[kind].format(name=name)}\n```")
    if licence:
        stated = f"`{licence}`"
    else:
        stated = "Not stated yet: name one here and as `license:` at the top"
    lines.append(f"## Licence\n\n{stated}.")
    return "\n\n".join(lines) + "\n"


def _figures(lm: "LanguageModel", evaluations: Sequence[str | Path]) -> list[str]:
    nats = lm.record.get("valid_nats_per_token")
    paragraphs = []
    if nats is not None:
        paragraphs.append(f"Perplexity of the valid split, per token: {perplexity(nats):.3f}.")
    if evaluations:
        weights = lm.fingerprint()
    else:
        weights = ""
    rows = []
    for path in evaluations:
        for row in _rows(Path(path), weights):
            rows.append(row)
    if rows:
        lines = [
            "| split | segment | memory | with | perplexity per token | per word | bits per byte |",
            "|" + "---|" * 7,
        ]
        for row in rows:
            how = []
            for name, usual in _HOW.items():
                if row.get(name, usual) != usual:
                    how.append(f"{name} {row[name]}")
            cells = [
                row["split"],
                row["tgt_len"],
                row["mem_len"],
                ", ".join([row["added"] or "the model alone", *how]),
            ]
            if row["bits_per_byte"] is None:
                per_byte = ""
            else:
                per_byte = f"{row['bits_per_byte']:.4f}"
            cells += [f"{row['perplexity']:.2f}", f"{row['word_perplexity']:.2f}", per_byte]
            lines.append(f"| {' | '.join(map(str, cells))} |")
        said = []
        for row in rows:
            for name in ("note", "unlike"):
                if name in row:
                    said.append((row["split"], row[name]))
        notes = dict.fromkeys(f"{split}: {what}." for split, what in said)
        # a plain reading is in each file of a method
        paragraphs += ["\n".join(dict.fromkeys(lines)), *notes]
    if paragraphs:
        return ["## Figures", *paragraphs]
    return []


def _rows(path: Path, weights: str) -> list[dict[str, Any]]:
    """The rows of an evaluation, each with how it was read.

    `weights`: the digest of those that it must be of.
    """
    try:
        held = read_json(path)
        of = held["weights"]
        how = {name: held[name] for name in _HOW if name in held}
        rows = [how | row for row in held["rows"]]
        for row in rows:
            require_fields({name: row[name] for name in _FIGURES}, _FIGURES)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path}: not a file of `eval.py --json` ({error}); name one of this checkpoint"
        ) from None
    others = f"the figures are those of other weights ({held.get('checkpoint')})"
    require(of == weights, f"{path}: {others}; evaluate this checkpoint")
    return rows


def training_command(record: dict[str, Any]) -> str:
    """The command of a training, of a checkpoint's config.json: the flags that are not at their
    defaults, without those of the model that go unread.
    """
    words = ["python", "train.py"]
    shape = ModelConfig(**record.get("model", {}))
    for section, kind in (
        ("data", DataConfig),
        ("train", TrainConfig),
        ("model", ModelConfig),
        ("context", Context),
    ):
        values = record.get(section, {})
        for f in _fields_of(kind):
            value = values.get(f.name)
            if isinstance(f.default, tuple):
                default = list(f.default)
            else:
                default = f.default
            is_flag = f.metadata.get("flag", True) and f.name not in ("resume", "overwrite")
            is_flag = is_flag and is_read(f.name, **chosen_by(shape))
            if not is_flag or value is None or value == default:
                continue
            words.append(f"--{'no_' if value is False else ''}{f.name}")
            if not isinstance(value, bool):
                words += map(str, value) if isinstance(value, list) else [str(value)]
    settings = settings_of_all()
    for name, value in shape.own.items():
        is_of_file = name not in settings  # its author's, which has not been run here
        if is_of_file or (
            settings[name].metadata.get("flag", True) and value != settings[name].default
        ):
            words += [f"--{name}", str(value)]
    known = fields_of(TrainConfig)
    for name, value in record.get("train", {}).items():
        if name not in known:  # of an optimizer of its author's
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def _fields_of(kind: type) -> Iterable[dataclasses.Field]:
    """The fields that stand beside each other in a record: those of a model's parts stand apart."""
    found = {f.name: f for f in dataclasses.fields(kind)}
    if kind is not ModelConfig:
        found |= fields_of(kind)
    return found.values()
