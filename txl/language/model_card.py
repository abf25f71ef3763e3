"""The README.md of an exported model."""

import dataclasses
import math
import shlex
from typing import Any

from txl.config import Context, ModelConfig
from txl.data_utils.corpus import DataConfig
from txl.language.trained import TrainedModel
from txl.model.axes import chosen_by, is_read
from txl.training.config import TrainConfig

_USE = {
    "txl": """import txl

lm = txl.load("{name}")
print(lm.generate("Once upon a time"))""",
    "huggingface": """import txl.hf  # for transformers 5; transformers 4 up to 4.57 has the class itself
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
ids = tokenizer("Once upon a time", return_tensors="pt")["input_ids"]
print(tokenizer.decode(model.generate(ids, max_new_tokens=50)[0]))""",
    "original": """import torch
from mem_transformer import MemTransformerLM  # kimiyoung/transformer-xl, pytorch/

held = torch.load("{name}/model.pt")
model = MemTransformerLM(**held["arguments"])
model.load_state_dict(held["state_dict"])""",
}
_DATA = {"data": "`{}`", "dataset": "(`--dataset {}`)"}


def model_card(found: TrainedModel, kind: str, name: str, licence: str | None) -> str:
    """What the model is, what it was trained on and how, its figures, how it is used: for a folder of this `name` in
    the format of this `kind`. `licence`: as the hub names it."""
    config, record = found.model.config, found.record
    n_weight = sum(p.numel() for p in found.model.parameters())
    data = found.known_data
    library = "transformers" if kind == "huggingface" else "txl"
    lines = [
        f"---\nlibrary_name: {library}\npipeline_tag: text-generation\ntags: [transformer-xl, transfo-xl]\n"
        + (f"license: {licence}\n---" if licence else "---"),
        f"# {name}",
        f"A Transformer-XL language model (Dai et al. 2019): {config.n_layer} layers, d_model {config.d_model}, "
        f"{n_weight:,} parameters, a vocabulary of {len(found.tokenizer):,} words. It was trained with segments of "
        f"{found.context.tgt_len} tokens and a memory of {found.context.mem_len}.",
        f"## Data\n\n{' '.join(form.format(data[key]) for key, form in _DATA.items() if key in data) or 'Unknown'}.",
    ]
    if "converted_from" in record:
        origin = record["converted_from"]
        lines.append(f"The weights were converted from a checkpoint of {origin.get('kind')}, `{origin.get('source')}`.")
    if "train" in record:
        command = training_command(record)
        lines.append(f"## Training\n\n{record.get('step', 0):,} updates:\n\n```\n{command}\n```")
    nats = record.get("valid_nats_per_token")
    if nats is not None:
        lines.append(f"## Figures\n\nPerplexity of the valid split, per token: {math.exp(nats):.3f}.")
    lines.append(f"## Use\n\n```python\n{_USE[kind].format(name=name)}\n```")
    stated = f"`{licence}`" if licence else "Not stated yet: name one here and as `license:` at the top"
    lines.append(f"## Licence\n\n{stated}.")
    return "\n\n".join(lines) + "\n"


def training_command(record: dict[str, Any]) -> str:
    """The command of a training, of a checkpoint's config.json: the flags that are not at their defaults,
    without those of the model that go unread."""
    words = ["python", "train.py"]
    shape = ModelConfig(**record.get("model", {}))
    for section, kind in (("data", DataConfig), ("train", TrainConfig), ("model", ModelConfig), ("context", Context)):
        values = record.get(section, {})
        for f in dataclasses.fields(kind):
            value = values.get(f.name)
            default = list(f.default) if isinstance(f.default, tuple) else f.default
            is_flag = f.metadata.get("flag", True) and f.name not in ("resume", "overwrite")
            is_flag = is_flag and is_read(f.name, **chosen_by(shape))
            if not is_flag or value is None or value == default:
                continue
            words.append(f"--{'no_' if value is False else ''}{f.name}")
            if not isinstance(value, bool):
                words += map(str, value) if isinstance(value, list) else [str(value)]
    return shlex.join(words)
