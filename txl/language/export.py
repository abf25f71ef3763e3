"""Writing a trained model, as a run or as the files of another program, with a README.md."""

import dataclasses
import json
import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from txl.checkpoint import CheckpointWriter, Snapshot, save_tensors
from txl.config import Context, ModelConfig, UsageError, as_words, field_of, hints_of, require
from txl.convert.huggingface import (
    DATA,
    SETTINGS_OF_MOSES,
    SETTINGS_OF_WORDS,
    config_for_huggingface,
    second_names,
    to_huggingface,
    tokenizer_of_words,
)
from txl.convert.kimiyoung import RATES, arguments_for_kimiyoung, rates_of, to_kimiyoung
from txl.convert.llama import config_for_llama, is_decoder, to_llama
from txl.data_utils.corpus import DataConfig
from txl.data_utils.pretrained import as_pretrained
from txl.data_utils.subwords import Subwords
from txl.data_utils.tokens import EOS, UNK, Tokenizer, Vocab
from txl.evaluation.plots import plot_curve
from txl.files import folder_written_whole
from txl.registry import is_read
from txl.report.record import short_word, without_folders
from txl.runtime.distributed import Ranks
from txl.runtime.log import perplexity
from txl.runtime.records import read_json, require_fields
from txl.training.config import TrainConfig
from txl.training.metrics import validation_curve

if TYPE_CHECKING:
    from txl.language.model import LanguageModel  # which writes itself by this module


_LOG = logging.getLogger(__name__)
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
    "decoder": (
        """from transformers import AutoModelForCausalLM, AutoTokenizer

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
    "word_perplexity": float | None,
    "bits_per_byte": float | None,
}
"""What a card shows of a row of eval.py, and its type."""
_HOW = {
    "borders": "cut",
    "same_length": False,
    "clamp_len": -1,
    "ext_len": 0,
    "convention": "txl",
    "reset": "never",
    "dtype": "float32",
}
"""What it says besides where it is not this: how the text was read."""
_MEMORY = "read_with"
"""The memory that a text was read with, where it is not that of the training, and its settings."""


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
    tags = "transformer-xl, transfo-xl"
    if is_decoder(config):
        tags = "long-context"
    was = "was trained with"
    if lm.tokenizer.encodes_in_one and "train" not in record:  # elsewhere, and otherwise
        was = "is read with"
        data = {}
    lines = [
        f"---\nlibrary_name: {library}\npipeline_tag: text-generation\ntags: [{tags}]\n"
        + (f"license: {licence}\n---" if licence else "---"),
        f"# {name}",
        (
            f"A {_kind_of(lm)}: {config.n_layer} layers, d_model"
            f" {config.d_model}, {n_weight:,} parameters, a vocabulary of {len(lm.tokenizer):,}"
            f" {lm.tokenizer.unit}. It {was} segments of {lm.context.tgt_len} tokens and a memory of"
            f" {lm.context.mem_len}."
        ),
        (f"## Data\n\n{_data_in_words(data) or 'Unknown'}."),
    ]
    if notes.about:
        lines.append(notes.about.strip())
    if "converted_from" in record:
        origin = record["converted_from"]
        lines.append(
            f"The weights were converted from a checkpoint of {origin.get('kind')},"
            f" `{short_word(str(origin.get('source')))}`."
        )
    if "train" in record:
        command = shlex.join(map(short_word, shlex.split(training_command(record))))
        lines.append(f"## Training\n\n{record.get('step', 0):,} updates:\n\n```\n{command}\n```")
        if notes.curve is not None:
            lines.append(f"![validation perplexity over the tokens read]({notes.curve})")
    lines += _figures(lm, notes.evaluations)
    if notes.samples:
        # longer than any in the text
        fence = "`" * max(3, 1 + max(map(len, re.findall("`*", notes.samples))))
        lines.append(f"## Samples\n\n{fence}\n{notes.samples.strip()}\n{fence}")
    use = _USE["decoder" if kind == "huggingface" and is_decoder(lm.model.config) else kind]
    lines.append(f"## Use\n\n```python\n{use.format(name=name)}\n```")
    if licence:
        stated = f"`{licence}`"
    else:
        stated = "Not stated yet: name one here and as `license:` at the top"
    lines.append(f"## Licence\n\n{stated}.")
    return "\n\n".join(lines) + "\n"


def _data_in_words(data: Mapping[str, Any]) -> str:
    """The text of the training, without the folders of a machine."""
    said = []
    for key, form in _DATA.items():
        if key in data:
            said.append(form.format(without_folders(str(data[key]))))
    return " ".join(said)


def _kind_of(lm: "LanguageModel") -> str:
    if is_decoder(lm.model.config):
        return f"decoder that reads with the memory `{lm.model.config.memory}`"
    return "Transformer-XL language model (Dai et al. 2019)"


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
            for name, value in row.get(_MEMORY, {}).items():
                how.append(f"{name} {value}")
            cells = [
                row["split"],
                row["tgt_len"],
                row["mem_len"],
                ", ".join([row["added"] or "the model alone", *how]),
            ]
            cells += [
                f"{row['perplexity']:.2f}",
                _figure(row["word_perplexity"], 2),
                _figure(row["bits_per_byte"], 4),
            ]
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


def _figure(value: float | None, n_digit: int) -> str:
    """Empty: it is not known, or infinite."""
    if value is None:
        return ""
    return f"{value:.{n_digit}f}"


def _rows(path: Path, weights: str) -> list[dict[str, Any]]:
    """The rows of an evaluation, each with how it was read.

    `weights`: the digest of those that it must be of.
    """
    try:
        held = read_json(path)
        of = held["weights"]
        how = {name: held[name] for name in (*_HOW, _MEMORY) if name in held}
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


_SECTIONS = {"data": DataConfig, "train": TrainConfig, "model": ModelConfig, "context": Context}
"""Of a checkpoint's config.json, with the configurations that they are of."""


def training_command(record: dict[str, Any]) -> str:
    """The command of a training, of a checkpoint's config.json: the flags that are not at their
    defaults, without those of the model that go unread.
    """
    shape = ModelConfig(**record.get("model", {}))
    given = {}
    for section, kind in _SECTIONS.items():
        values = dict(record.get(section, {}))
        if values.pop("own", None) is not None:
            values |= shape.own
        for name, value in values.items():
            if _is_typed(kind, name, value, shape):
                given[name] = value
    return shlex.join(["python", "train.py", *as_words(given)])


def _is_typed(kind: type, name: str, value: Any, shape: ModelConfig) -> bool:
    """Whether a value was given by a flag."""
    f = field_of(kind, name)
    if f is None:  # of a part of its author's, which has not been run here
        return True
    if isinstance(value, list):  # of JSON
        value = tuple(value)
    is_flag = f.metadata.get("flag", True) and name not in ("resume", "overwrite")
    return is_flag and is_read(name, shape) and value not in (None, f.default)


_CURVE = "curve.png"


def write_folder(lm: "LanguageModel", folder: Path, to: str, notes: Notes) -> None:
    """Write a model with its card, or nothing. Raises `UsageError` if the program `to` has no such
    model.

    Args:
        to: a key of `WRITERS`.
    """
    if lm.run is None:
        curve = []
    else:
        curve = validation_curve(lm.run)
    with folder_written_whole(folder) as temporary:
        WRITERS[to](lm, temporary)
        if len(curve) > 1:
            plot_curve(temporary / _CURVE, curve)
            notes = dataclasses.replace(notes, curve=_CURVE)
        card = model_card(lm, to, folder.name, notes)
        (temporary / "README.md").write_text(card, encoding="utf-8")


def write_run(lm: "LanguageModel", folder: Path) -> None:
    """A run folder with one checkpoint, without the state of a training."""
    record = {}
    for name in ("data", "texts", "converted_from"):
        if name in lm.record:
            record[name] = lm.record[name]
    record["rates"] = rates(lm)  # for further exports
    record["reading"] = lm.reading
    ranks = Ranks(0, 1, torch.device("cpu"))
    writer = CheckpointWriter(folder, lm.context, ranks, slice(0, 1), record, lm.tokenizer.files())
    nats = lm.record.get("valid_nats_per_token")
    writer.save(lm.model, Snapshot({"step": 0}, {}, None, {}), step=0, best=True, valid_nats=nats)


def write_huggingface(lm: "LanguageModel", folder: Path) -> None:
    """The folder that `from_pretrained` reads: of a decoder that of Llama's
    family, else TransfoXL's, in transformers 4 and with `txl.hf`. Raises `UsageError` if Hugging
    Face has no such model.
    """
    if is_decoder(lm.model.config):
        write_decoder(lm, folder)
    else:
        write_transfo_xl(lm, folder)


def write_decoder(lm: "LanguageModel", folder: Path) -> None:
    """Weights, configuration and tokenizer of a class of Llama's family. What is remembered is no
    part of it. Raises `UsageError` if Hugging Face has no such model.
    """
    tokenizer = lm.tokenizer
    if type(tokenizer) is Subwords:
        tokenizer = as_pretrained(tokenizer)
    files = tokenizer.files()
    require(
        "tokenizer.json" in files,
        f"--dataset {lm.record.get('data', {}).get('dataset')}: a decoder there reads text by a"
        " tokenizer.json, as --dataset bpe trains one; use --to txl",
    )
    named = tokenizer.named
    ends: Any = sorted(tokenizer.stop_ids) or [named.get("eos_token")]
    if len(ends) == 1:
        (ends,) = ends
    special = {"bos_token_id": named.get("bos_token"), "eos_token_id": ends}
    config = config_for_llama(lm.model, lm.context) | special
    _write_json(folder / "config.json", config)
    if tokenizer.sampling:
        sampling = {"do_sample": True, **tokenizer.sampling}
        _write_json(folder / "generation_config.json", sampling | special)
    tensors = to_llama(lm.model)
    save_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if name in files:
            (folder / name).write_text(files[name], encoding="utf-8")


def write_transfo_xl(lm: "LanguageModel", folder: Path) -> None:
    """The folder of Hugging Face's TransfoXL. Raises `UsageError` if it has no such model."""
    dataset = lm.record.get("data", {}).get("dataset")
    only = "TransfoXL of Hugging Face has words only, as they are written; use --to original"
    require(type(lm.tokenizer) is Vocab, f"--dataset {dataset}: {only}")
    _require_one_word_a_line(lm.tokenizer)
    if lm.context.ext_len:
        _LOG.warning(
            "--ext_len %d: Hugging Face's model has none, so its figures differ from the run's;"
            " --to original keeps it",
            lm.context.ext_len,
        )
    double = second_names(lm.model.config)
    tensors = {}
    for name, t in to_huggingface(lm.model).items():
        if name not in double:
            tensors[name] = t
    save_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    config = config_for_huggingface(lm.model, lm.context) | {
        "eos_token_id": lm.tokenizer.index[EOS]
    }
    _write_json(folder / "config.json", config | rates(lm) | _data_of(lm))
    (folder / "vocab.txt").write_text(lm.tokenizer.files()["vocab.txt"], encoding="utf-8")
    if UNK in lm.tokenizer:  # its tokenizers work with no other vocabulary
        if not lm.is_tokenised:
            _write_json(folder / "tokenizer.json", tokenizer_of_words(lm.tokenizer.words))
        if lm.is_tokenised:
            settings = SETTINGS_OF_MOSES
        else:
            settings = SETTINGS_OF_WORDS
        if "<formula>" in lm.tokenizer and lm.is_tokenised:
            formula = ["<formula>"]
        else:
            formula = []
        special = {"eos_token": EOS, "unk_token": UNK, "additional_special_tokens": formula}
        _write_json(folder / "tokenizer_config.json", special | settings)


def write_original(lm: "LanguageModel", folder: Path) -> None:
    """Weights and constructor arguments for `MemTransformerLM` of kimiyoung/transformer-xl, in one
    `model.pt`. Raises `UsageError` if the 2019 code has no such model.
    """
    _require_one_word_a_line(lm.tokenizer)
    weights = to_kimiyoung(lm.model)
    arguments = arguments_for_kimiyoung(lm.model, lm.context) | rates(lm)
    torch.save({"arguments": arguments, "state_dict": weights, **_data_of(lm)}, folder / "model.pt")
    for name, content in lm.tokenizer.files().items():
        (folder / name).write_text(content, encoding="utf-8")


WRITERS = {"txl": write_run, "huggingface": write_huggingface, "original": write_original}


def rates(lm: "LanguageModel") -> dict[str, float]:
    """The rates of dropout of the training: as the run notes them, else those of the other
    program's model. Raises `UsageError` if the note is damaged.
    """
    record = lm.record
    noted = record.get("rates", record.get("train"))
    if noted is None:
        return rates_of(lm.model)
    try:
        config = TrainConfig(
            **require_fields(
                {name: noted[name] for name in RATES if name in noted}, hints_of(TrainConfig, RATES)
            )
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"config.json of the run: {error}; use another copy") from None
    return {name: getattr(config, name) for name in RATES}


def _require_one_word_a_line(tokenizer: Tokenizer) -> None:
    """Raise `UsageError` if vocab.txt would be read back as other words: the first of each line
    that is not blank.
    """
    if tokenizer.is_of_words:
        odd = next((word for word in tokenizer.words if word.split() != [word]), None)
    else:
        odd = None
    require(
        odd is None, f"{odd!r}: is not one word, and vocab.txt there has one a line; use --to txl"
    )


def _data_of(lm: "LanguageModel") -> dict[str, Any]:
    """How the text of the training was read, from which the kind of vocabulary follows."""
    known = lm.known_data
    if known:
        return {DATA: known | {"cache_dir": None}}
    return {}


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
