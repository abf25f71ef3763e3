"""Hugging Face's TransfoXL (transformers up to 4.57): weights, configuration and vocabulary of a
folder; and words between white space as a tokenizer of Hugging Face's libraries, with the same ids.

Its model attends to a memory of zeros from the start, which belongs to the reading of a text and
not to the weights: evaluate with `--convention huggingface` to have its figures.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txl.config import Context, ModelConfig, UsageError, require
from txl.convert.kimiyoung import (
    ATTN_TYPES,
    INV_FREQ,
    RATES,
    fill,
    inv_freq,
    rates_of,
    require_plain,
    their_name,
    tied_names,
    to_ours,
    to_theirs,
    unwrapped,
)
from txl.convert.source import DATA, Found, Place, Source
from txl.convert.tensor_files import tensors_of, weights_file
from txl.model.sizes import shapes_of
from txl.model.transformer import TransformerXL
from txl.runtime.records import read_json, require_fields

_REQUIRED = ("vocab_size", "d_model", "n_layer", "n_head", "d_head", "d_inner")
_SHARED = ("r_w_bias", "r_r_bias")
_ONLY = {"attn_type": 0, "sample_softmax": -1}
"""Settings that have one value here, and the value."""
DEFAULTS: dict[str, Any] = {
    **{
        "cutoffs": [20000, 40000, 200000],
        "d_embed": 1024,
        "div_val": 4,
        "proj_share_all_but_first": True,
    },
    **{
        "mem_len": 1600,
        "clamp_len": 1000,
        "same_length": True,
        "pre_lnorm": False,
        "untie_r": True,
    },
    **{"dropout": 0.1, "dropatt": 0.0, "layer_norm_epsilon": 1e-5},
}
"""What transformers 4 takes where a config.json does not say it."""
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("mem_len", "clamp_len", "div_val"), int),
    **dict.fromkeys(("tgt_len", "d_embed"), int | None),
    **dict.fromkeys((*RATES, "layer_norm_epsilon"), float),
    **dict.fromkeys(("pre_lnorm", "untie_r", "same_length", "proj_share_all_but_first"), bool),
    **{"cutoffs": list[int] | None, "tie_projs": list[bool] | None},
}
_CLUSTERS = ("crit.cluster_weight", "crit.cluster_bias")


def from_huggingface(
    state: Mapping[str, Tensor], config: Mapping[str, Any]
) -> tuple[TransformerXL, Context]:
    """Build the model and the context of a `TransfoXLLMHeadModel` from its state dict and its
    config.json. Raises `UsageError` if a tensor is missing, left over, of another shape, or not
    finite, or if the configuration asks for what the class never had.
    """
    model_config, context = configs_of(config)
    theirs = {}
    for name, tensor in state.items():
        theirs[unwrapped(name).removeprefix("transformer.")] = tensor
    n_element = sum(tensor.numel() for tensor in theirs.values())
    small = shapes_of(model_config, n_tensor=len(theirs), n_element=n_element) is not None
    require(
        small,
        f"config.json: describes a larger model than the {n_element:,} weights beside it; use"
        " another copy",
    )
    rates = {name: config.get(name, DEFAULTS[name]) for name in RATES}
    model = TransformerXL(model_config, **rates)
    tied = tied_names(model_config)
    fill(model, theirs, tensor_for, besides=[INV_FREQ, *tied, *shared_biases(model_config)])
    for name, first in tied.items():
        same = name not in theirs or torch.equal(theirs[name], theirs[first])
        require(same, f"{name}: differs from {first}, to which config.json ties it")
    return model, context


def read_huggingface(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State dict and config.json of a folder that `save_pretrained` wrote. Raises `UsageError` if a
    file is missing or damaged.
    """
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):
        raise UsageError(
            f"{folder / 'config.json'}: missing or damaged; use another copy"
        ) from None
    return tensors_of(weights_file(folder)), config


def configs_of(config: Mapping[str, Any]) -> tuple[ModelConfig, Context]:
    """The shape of the model and its context, of a config.json. `adaptive` has no effect, as in
    transformers 4. Raises `UsageError` if it asks for what the class never had.
    """
    config = {**DEFAULTS, **config}
    for name in _REQUIRED:
        require(
            isinstance(config.get(name), int),
            f"config.json: {name} {config.get(name)} is no whole number",
        )
    try:
        require_fields({name: config[name] for name in _TYPES if name in config}, _TYPES)
    except ValueError as error:
        raise UsageError(f"config.json: {error}; use another copy") from None
    for name in RATES:
        require(0 <= config[name] < 1, f"config.json: {name} {config[name]} is no probability")
    for name, only in _ONLY.items():
        require(
            config.get(name, only) == only,
            f"config.json: {name} {config.get(name)}: only {only} works there",
        )
    require_memory(config["mem_len"], config["same_length"])
    try:
        return _model_of(config), _context_of(config)
    except UsageError as error:  # a file or Python has names, and no flags
        raise UsageError(re.sub(r"--(?=\w)", "", str(error))) from None


def _model_of(config: Mapping[str, Any]) -> ModelConfig:
    cutoffs = tuple(config["cutoffs"] or ())
    ties = config.get("tie_projs")
    if ties is None:
        ties = [False] + [bool(config["proj_share_all_but_first"])] * len(cutoffs)
    return ModelConfig(
        n_token=config["vocab_size"],
        **{name: config[name] for name in _REQUIRED[1:]},
        d_embed=config["d_embed"] or -1,
        cutoffs=cutoffs,
        div_val=config["div_val"],
        not_tied=not config.get("tie_word_embeddings", config.get("tie_weight", True)),
        tie_projs=tuple(map(bool, ties)),
        pre_lnorm=bool(config["pre_lnorm"]),
        untie_r=bool(config["untie_r"]),
        layer_norm_epsilon=config["layer_norm_epsilon"],
    )


def _context_of(config: Mapping[str, Any]) -> Context:
    lengths = {}
    for name in ("mem_len", "clamp_len", "same_length"):
        lengths[name] = config[name]
    return Context(tgt_len=config.get("tgt_len") or 128, **lengths)


def require_memory(mem_len: int, same_length: bool) -> None:
    """Raise `UsageError` if every token attends to mem_len keys, and that is none."""
    good = mem_len > 0 or not same_length
    why = "with same_length a token sees mem_len keys; set same_length to false, or mem_len above 0"
    require(good, f"mem_len {mem_len}: {why}")


def tensor_for(name: str, theirs: Mapping[str, Tensor], config: ModelConfig) -> tuple[str, Tensor]:
    """The tensor of one of our parameters, and its name there, without the prefix `transformer.`.

    Gradients flow through it. Cluster rows come in our order, unlike those of the 2019 code. Raises
    `UsageError` if it is missing.
    """
    key = their_name(name, config)
    if config.untie_r and key in _SHARED:
        key = f"layers.{name.split('.')[1]}.dec_attn.{key}"
        require(key in theirs, f"transformer.{key}: missing from the weights")
        return key, theirs[key]
    if key in _CLUSTERS and key in theirs:
        return key, theirs[key]
    return to_ours(name, theirs, config)


def shared_biases(config: ModelConfig) -> dict[str, str]:
    """Second names of u and v where all layers share them: each layer lists them once more."""
    if config.untie_r:
        return {}
    names = {}
    for i in range(config.n_layer):
        for name in _SHARED:
            names[f"layers.{i}.dec_attn.{name}"] = name
    return names


def to_huggingface(model: TransformerXL) -> dict[str, Tensor]:
    """The state dict of the same `TransfoXLLMHeadModel`, tied tensors under each of their names.
    Raises `UsageError` if Hugging Face has no such model: another position encoding, attention
    rule, activation or recurrence.
    """
    config = model.config
    ours = dict(model.named_parameters())
    require(
        config.position == ATTN_TYPES[0],
        f"--position {config.position}: Hugging Face has no such model",
    )
    require_plain(config, "Hugging Face")
    theirs = to_theirs(ours, config)
    for name in _CLUSTERS:
        if name in theirs:
            theirs[name] = ours[f"softmax.{name.removeprefix('crit.')}"]
    if config.untie_r:
        for i in range(config.n_layer):
            for name, our in zip(_SHARED, ("u_NH", "v_NH"), strict=True):
                theirs.pop(name, None)
                theirs[f"layers.{i}.dec_attn.{name}"] = ours[f"layers.{i}.attn.pos.{our}"]
    for name, first in (tied_names(config) | shared_biases(config)).items():
        theirs[name] = theirs[first]
    theirs[INV_FREQ] = inv_freq(config.d_model).to(theirs["word_emb.emb_layers.0.weight"])
    prefixed = {}
    for name in theirs:
        prefixed[name if name.startswith("crit.") else f"transformer.{name}"] = theirs[name]
    return {name: tensor.detach() for name, tensor in prefixed.items()}


def second_names(config: ModelConfig) -> set[str]:
    """Names in `to_huggingface` under which a tensor is listed once more; files leave them out."""
    names = tied_names(config) | shared_biases(config)
    return {name if name.startswith("crit.") else f"transformer.{name}" for name in names}


def config_for_huggingface(model: TransformerXL, context: Context) -> dict[str, Any]:
    """Its config.json. The evaluation's `ext_len` has no counterpart there."""
    config = model.config
    same = (
        "n_layer",
        "n_head",
        "d_head",
        "d_model",
        "d_inner",
        "d_embed",
        "div_val",
        "pre_lnorm",
        "untie_r",
    )
    n_cluster = len(config.cluster_sizes)
    ties = [*config.tie_projs, *[False] * n_cluster][:n_cluster]
    return {
        "architectures": ["TransfoXLLMHeadModel"],
        "model_type": "transfo-xl",
        "vocab_size": config.n_token,
        **{name: getattr(config, name) for name in same},
        "cutoffs": list(config.cutoffs),
        "adaptive": True,  # no cutoffs: one cluster
        "tie_projs": ties,
        "tie_word_embeddings": not config.not_tied,
        "tgt_len": context.tgt_len,
        "mem_len": context.mem_len,
        "clamp_len": context.clamp_len,
        "same_length": context.same_length,
        **rates_of(model),
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "eos_token_id": 0,
        **_ONLY,
    }


_EOS = "<eos>"
_UNK = "<unk>"
_WHITE_SPACE = "".join(filter(str.isspace, map(chr, range(sys.maxunicode + 1))))
"""As `str.split` has it; the libraries' own white space lacks the separators U+001C to U+001F."""

SETTINGS_OF_MOSES: dict[str, Any] = {"tokenizer_class": "TransfoXLTokenizer"}
"""tokenizer_config.json, besides the special tokens, for running text that is
split as Moses does.
"""
SETTINGS_OF_WORDS: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": _EOS,
    "padding_side": "left",
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
    "split_special_tokens": True,  # <unk>, with the comma is one word
}
"""The same for words between white space."""


def tokenizer_of_words(words: Sequence[str]) -> dict[str, Any]:
    """The content of tokenizer.json for words between white space and `<eos>` at each line end,
    which are the ids of `txl.data_utils.free_text.encode_text`. `<eos>` and `<unk>` must be among
    the words.
    """
    special = {
        "lstrip": False,
        "rstrip": False,
        "single_word": True,
        "normalized": False,
        "special": True,
    }
    index = {word: i for i, word in enumerate(words)}
    added = []
    for word, i in index.items():
        if word in (_EOS, _UNK):
            added.append({"id": i, "content": word, **special})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {
            "type": "Replace",
            "pattern": {"Regex": "\\r\\n|\\r|\\n"},
            "content": f" {_EOS} ",
        },
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": f"[{_WHITE_SPACE}]+"},
            "behavior": "Removed",
            "invert": False,
        },
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": index, "unk_token": _UNK},
    }


class HuggingFace(Source):
    """Folders of transformers' TransfoXL."""

    name = "huggingface"
    kind = "Hugging Face transfo-xl"
    families = ("transfo-xl",)

    @classmethod
    def read(cls, place: Place) -> Found:
        state, settings = read_huggingface(place.path)
        model, context = from_huggingface(state, settings)
        data = settings.get(DATA)
        return Found(model, context, tuple(state), weights_file(place.path), [], data)
