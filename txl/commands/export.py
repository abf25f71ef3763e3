"""Writing a trained model as the files of another program."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from txl.commands.pretrained import Pretrained
from txl.config import require
from txl.convert.huggingface import config_for_huggingface, second_names, to_huggingface
from txl.convert.kimiyoung import arguments_for_kimiyoung, to_kimiyoung
from txl.data_utils.vocabulary import EOS, UNK, Vocab


def write_huggingface(found: Pretrained, folder: Path) -> None:
    """The folder that TransfoXL's `from_pretrained` reads, in transformers 4 and with `txl.hf`. Raises `UsageError` if
    Hugging Face has no such model."""
    require(type(found.vocab) is Vocab, "TransfoXL of Hugging Face has words only; this model's tokens are others")
    double = second_names(found.model.config)
    tensors = {name: t.contiguous() for name, t in to_huggingface(found.model).items() if name not in double}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = config_for_huggingface(found.model, found.context) | {"eos_token_id": found.vocab.index[EOS]}
    _write_json(folder / "config.json", config)
    (folder / "vocab.txt").write_text(found.vocab.to_text(), encoding="utf-8")
    if UNK in found.vocab:  # its tokenizer works with no other vocabulary
        formula = ["<formula>"] if "<formula>" in found.vocab else []
        names = {"tokenizer_class": "TransfoXLTokenizer", "eos_token": EOS, "unk_token": UNK}
        _write_json(folder / "tokenizer_config.json", names | {"additional_special_tokens": formula})


def write_original(found: Pretrained, folder: Path) -> None:
    """Weights and constructor arguments for `MemTransformerLM` of kimiyoung/transformer-xl, in one `model.pt`. Raises
    `UsageError` if the 2019 code has no such model."""
    weights = to_kimiyoung(found.model)
    arguments = arguments_for_kimiyoung(found.model, found.context)
    torch.save({"arguments": arguments, "state_dict": weights}, folder / "model.pt")
    (folder / "vocab.txt").write_text(found.vocab.to_text(), encoding="utf-8")


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
