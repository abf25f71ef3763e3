"""Runs in an environment with transformers 4.35.2, which knows nothing of this repository.

python with_transformers_4.py make FOLDER    folders of models and a tokenizer, each with what that version computes
python with_transformers_4.py read FOLDER    the same of a folder that another version saved
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    TransfoXLConfig,
    TransfoXLForSequenceClassification,
    TransfoXLLMHeadModel,
    TransfoXLTokenizer,
)

SENTENCES = [
    "The 23,000 people -- well-known ones -- aren't 1.80 m tall, said Dr. Smith.",
    'He said: "No" ; <eos> and a <formula> cost $5.50 (about 3%).',
]
SMALL = {
    "vocab_size": 60,
    "d_model": 16,
    "n_head": 2,
    "d_head": 8,
    "d_inner": 24,
    "n_layer": 2,
    "mem_len": 12,
}
MODELS = {
    "div4": {
        "cutoffs": [10, 30],
        "d_embed": 16,
        "div_val": 4,
        "clamp_len": 9,
        "layer_norm_epsilon": 0.1,
    },
    "untied": {
        **{"cutoffs": [10, 30], "d_embed": 16, "div_val": 2, "clamp_len": -1, "pre_lnorm": True},
        **dict.fromkeys(("proj_share_all_but_first", "tie_word_embeddings", "same_length"), False),
    },
    "shared_biases": {
        "cutoffs": [10, 30],
        "d_embed": 8,
        "div_val": 1,
        "untie_r": False,
        "clamp_len": 5,
    },
    "no_clusters": {"cutoffs": [], "d_embed": 16, "div_val": 1, "same_length": False},
}


def figures(folder: Path) -> None:
    """Write what this version computes with the model of a folder."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    ids = torch.randint(
        0, model.config.vocab_size, (2, 21), generator=torch.Generator().manual_seed(1)
    )
    found, mems = {"ids": ids}, None
    with torch.no_grad():
        for i, segment in enumerate(ids.split(7, dim=1)):
            out = model(segment, mems=mems, output_hidden_states=True, output_attentions=True)
            found |= {f"scores{i}": out.prediction_scores, f"mems{i}": torch.stack(out.mems)}
            found |= {
                f"hidden{i}": torch.stack(out.hidden_states),
                f"attention{i}": torch.stack(out.attentions),
            }
            mems = out.mems
        found["greedy"] = model.generate(
            ids[:, :5], max_new_tokens=30, do_sample=False, pad_token_id=0
        )
        found["beams"] = model.generate(
            ids[:, :5], max_new_tokens=9, num_beams=3, eos_token_id=-1, pad_token_id=0
        )
        found["loss"] = model(ids[:1], labels=ids[:1]).loss
    np.savez(folder / "figures.npz", **{name: tensor.numpy() for name, tensor in found.items()})


def tokens(tokenizer: TransfoXLTokenizer, folder: Path) -> None:
    """Write what a tokenizer makes of some sentences."""
    words = [tokenizer.tokenize(sentence) for sentence in SENTENCES]
    ids = [tokenizer(sentence)["input_ids"] for sentence in SENTENCES]
    texts = [tokenizer.decode(line) for line in ids]
    (folder / "tokens.json").write_text(json.dumps({"words": words, "ids": ids, "texts": texts}))


def make(folder: Path) -> None:
    """Models with random weights, and a tokenizer as this version saves it."""
    for name, settings in MODELS.items():
        torch.manual_seed(7)
        model = TransfoXLLMHeadModel(TransfoXLConfig(**SMALL, **settings))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(folder / name)
        figures(folder / name)
    torch.manual_seed(7)
    config = TransfoXLConfig(**SMALL, **MODELS["div4"], num_labels=3, pad_token_id=5)
    model = TransfoXLForSequenceClassification(config).eval()
    model.save_pretrained(folder / "classifier")
    ids = torch.tensor([[7, 8, 9, 5, 5], [1, 2, 3, 4, 5]])
    np.save(folder / "classifier" / "logits.npy", model(ids).logits.detach().numpy())
    words = sorted({word for text in SENTENCES for word in text.replace(",", " , ").split()})
    parts = ", . ; : ( ) % $ @,@ @.@ @-@ 23 000 1 80 5 50 m aren 't \" about 3 Dr. well known tall".split()
    listed = dict.fromkeys(["<eos>", "<unk>", "<formula>", *words, *parts])
    (folder / "vocab.txt").write_text("\n".join(listed) + "\n")
    tokenizer = TransfoXLTokenizer(vocab_file=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder / "tokenizer")
    tokens(tokenizer, folder / "tokenizer")


if __name__ == "__main__":
    task, where = sys.argv[1], Path(sys.argv[2])
    if task == "make":
        make(where)
    else:
        figures(where)
        if (where / "tokenizer_config.json").is_file():
            tokens(AutoTokenizer.from_pretrained(where), where)
