"""Writing a trained model as the files of another program."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from txl.commands.pretrained import Pretrained, known_data
from txl.config import UsageError, require
from txl.convert.huggingface import DATA, config_for_huggingface, second_names, to_huggingface
from txl.convert.kimiyoung import arguments_for_kimiyoung, to_kimiyoung
from txl.convert.kimiyoung_names import RATES, rates_of
from txl.data_utils.tokenizers.base import EOS, UNK
from txl.data_utils.tokenizers.words import Vocab
from txl.records import require_fields
from txl.training.config import TrainConfig


def write_huggingface(found: Pretrained, folder: Path) -> None:
    """The folder that TransfoXL's `from_pretrained` reads, in transformers 4 and with `txl.hf`. Raises `UsageError` if
    Hugging Face has no such model."""
    dataset = found.record.get("data", {}).get("dataset")
    only = "TransfoXL of Hugging Face has words only, as they are written; use --to original"
    require(type(found.vocab) is Vocab, f"--dataset {dataset}: {only}")
    double = second_names(found.model.config)
    tensors = {name: t.contiguous() for name, t in to_huggingface(found.model).items() if name not in double}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = config_for_huggingface(found.model, found.context) | {"eos_token_id": found.vocab.index[EOS]}
    _write_json(folder / "config.json", config | rates(found) | _data_of(found))
    (folder / "vocab.txt").write_text(found.vocab.files()["vocab.txt"], encoding="utf-8")
    if UNK in found.vocab:  # its tokenizer works with no other vocabulary
        formula = ["<formula>"] if "<formula>" in found.vocab else []
        names = {"tokenizer_class": "TransfoXLTokenizer", "eos_token": EOS, "unk_token": UNK}
        _write_json(folder / "tokenizer_config.json", names | {"additional_special_tokens": formula})


def write_original(found: Pretrained, folder: Path) -> None:
    """Weights and constructor arguments for `MemTransformerLM` of kimiyoung/transformer-xl, in one `model.pt`. Raises
    `UsageError` if the 2019 code has no such model."""
    weights = to_kimiyoung(found.model)
    arguments = arguments_for_kimiyoung(found.model, found.context) | rates(found)
    torch.save({"arguments": arguments, "state_dict": weights, **_data_of(found)}, folder / "model.pt")
    for name, content in found.vocab.files().items():
        (folder / name).write_text(content, encoding="utf-8")


def rates(found: Pretrained) -> dict[str, float]:
    """The rates of dropout of the training: as the run notes them, else those of the other program's model. Raises
    `UsageError` if the note is damaged."""
    record = found.record
    noted = record.get("rates", record.get("train"))
    if noted is None:
        return rates_of(found.model)
    try:
        config = TrainConfig(**require_fields({name: noted[name] for name in RATES if name in noted}, TrainConfig))
    except (TypeError, ValueError) as error:
        raise UsageError(f"config.json of the run: {error}; use another copy") from None
    return {name: getattr(config, name) for name in RATES}


def _data_of(found: Pretrained) -> dict[str, Any]:
    """How the text of the training was read, from which the kind of vocabulary follows."""
    known = known_data(found.record)
    return {DATA: known | {"cache_dir": None}} if known else {}


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
