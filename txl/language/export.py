"""Writing a trained model, as a run or as the files of another program."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from txl.checkpoint import CheckpointWriter, Snapshot
from txl.config import UsageError, hints_of, require
from txl.convert.huggingface import DATA, config_for_huggingface, second_names, to_huggingface
from txl.convert.huggingface_words import SETTINGS_OF_MOSES, SETTINGS_OF_WORDS, tokenizer_of_words
from txl.convert.kimiyoung import arguments_for_kimiyoung, to_kimiyoung
from txl.convert.kimiyoung_names import RATES, rates_of
from txl.data_utils.tokenizer import EOS, UNK, Tokenizer
from txl.data_utils.words import Vocab
from txl.evaluation.plots import plot_curve
from txl.files import folder_written_whole
from txl.language.model_card import Notes, model_card
from txl.runtime.distributed import Ranks
from txl.runtime.records import require_fields
from txl.training.config import TrainConfig
from txl.training.metrics import validation_curve

if TYPE_CHECKING:
    from txl.language.model import LanguageModel  # which writes itself by this module

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
    """The folder that TransfoXL's `from_pretrained` reads, in transformers 4 and with `txl.hf`.
    Raises `UsageError` if Hugging Face has no such model.
    """
    dataset = lm.record.get("data", {}).get("dataset")
    only = "TransfoXL of Hugging Face has words only, as they are written; use --to original"
    require(type(lm.tokenizer) is Vocab, f"--dataset {dataset}: {only}")
    _require_one_word_a_line(lm.tokenizer)
    double = second_names(lm.model.config)
    tensors = {}
    for name, t in to_huggingface(lm.model).items():
        if name not in double:
            tensors[name] = t.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
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
                {name: noted[name] for name in RATES if name in noted}, hints_of(TrainConfig)
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
