"""Hugging Face's GPT-NeoX, such as Pythia, in: configuration and weights.

Attention and feed-forward net read the same input; queries, keys and values of a head stand
together in one matrix; only a part of a head's channels is rotated.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from txl.config import Context, ModelConfig, UsageError, require
from txl.convert.decoder import (
    filled,
    read_in_segments,
    require_plain_weights,
    require_types,
    rotary_of,
)
from txl.convert.source import Found, Place, Source
from txl.convert.tensor_files import tensors_in, weights_file
from txl.runtime.records import read_json

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
_TYPES: dict[str, Any] = {
    **dict.fromkeys((*_REQUIRED, "max_position_embeddings"), int),
    **dict.fromkeys(("layer_norm_eps", "rope_theta", "partial_rotary_factor"), float),
    **dict.fromkeys(("attention_bias", "tie_word_embeddings", "use_parallel_residual"), bool),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), dict[str, Any] | None),
    "hidden_act": str,
}
_DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "hidden_act": "gelu",
}
_ACTIVATIONS = ("gelu", "relu", "silu")


def configs_of(settings: Mapping[str, Any], path: Path) -> tuple[ModelConfig, Context]:
    """As `txl.convert.llama.configs_of`."""
    config = {**_DEFAULTS, **settings}
    config.setdefault("rope_theta", settings.get("rotary_emb_base", 10_000.0))
    config.setdefault("partial_rotary_factor", settings.get("rotary_pct", 0.25))
    require_types(config, _TYPES, _REQUIRED, path)
    require_plain_weights(config, path)
    act = config["hidden_act"]
    require(
        act in _ACTIVATIONS,
        f"{path}: hidden_act {act}: no such activation here, only {' and '.join(_ACTIVATIONS)}",
    )
    try:
        model_config = _model_of(config)
        return read_in_segments(model_config, config["max_position_embeddings"], None)
    except UsageError as error:  # a file has names, and no flags
        raise UsageError(f"{path}: {str(error).replace('--', '')}") from None


def _model_of(config: Mapping[str, Any]) -> ModelConfig:
    n_head = config["num_attention_heads"]
    require(n_head > 0, f"num_attention_heads {n_head}: must be at least 1")
    return ModelConfig(
        n_token=config["vocab_size"],
        n_layer=config["num_hidden_layers"],
        n_head=n_head,
        d_head=config["hidden_size"] // n_head,
        d_model=config["hidden_size"],
        d_inner=config["intermediate_size"],
        activation=config["hidden_act"],
        qkv_bias=config["attention_bias"],
        o_bias=config["attention_bias"],
        layer_norm_epsilon=config["layer_norm_eps"],
        not_tied=not config["tie_word_embeddings"],
        parallel=config["use_parallel_residual"],
        position="rotary",
        pre_lnorm=True,
        final_norm=True,
        scale_embedding=False,
        softmax_bias=False,
        **rotary_of(config),
    )


_TABLE = "gpt_neox.embed_in.weight"
_HEAD = "embed_out.weight"
_FUSED = ".attention.query_key_value."
_IN_LAYER = {
    "attn.q_net": "attention.query",
    "attn.k_net": "attention.key",
    "attn.v_net": "attention.value",
    "attn.o_net": "attention.dense",
    "attn_norm": "input_layernorm",
    "ff.0": "mlp.dense_h_to_4h",
    "ff.3": "mlp.dense_4h_to_h",
    "ff_norm": "post_attention_layernorm",
}


def their_names(name: str) -> list[str]:
    """The tensor there that one of ours is, once those of queries, keys and values are apart."""
    match name.split("."):
        case ["word_emb", "tables", "0"]:
            return [_TABLE]
        case ["softmax", "tables", "0"]:
            return [_HEAD]
        case ["final_norm", kind]:
            return [f"gpt_neox.final_layer_norm.{kind}"]
        case ["layers", i, *module, kind]:
            return [f"gpt_neox.layers.{i}.{_IN_LAYER['.'.join(module)]}.{kind}"]
    raise KeyError(name)


def apart(state: Mapping[str, Tensor], n_head: int, path: Path) -> dict[str, Tensor]:
    """The tensors, with queries, keys and values in three in place of one, whose rows are those of
    the first head's queries, keys, values, then of the next head's.
    """
    tensors = {}
    for name, tensor in state.items():
        if _FUSED not in name:
            tensors[name] = tensor
            continue
        require(
            len(tensor) % (3 * n_head) == 0,
            f"{path}: {name}: of the shape {tuple(tensor.shape)}, which {n_head} heads do not share",
        )
        of_heads = tensor.unflatten(0, (n_head, 3, -1))
        for i, kind in enumerate(("query", "key", "value")):
            their_name = name.replace(_FUSED, f".attention.{kind}.")
            tensors[their_name] = of_heads[:, i].flatten(0, 1)
    return tensors


class GPTNeoX(Source):
    """Folders of transformers' GPT-NeoX."""

    name = "gpt_neox"
    kind = "Hugging Face gpt_neox"

    @classmethod
    def recognises(cls, place: Place) -> bool:
        try:
            return read_json(place.path / "config.json")["model_type"] == "gpt_neox"
        except (OSError, ValueError, TypeError, KeyError):
            return False

    @classmethod
    def read(cls, place: Place) -> Found:
        path = place.path / "config.json"
        config, context = configs_of(read_json(path), path)
        held = tensors_in(place.path)
        state = apart(held, config.n_head, place.path)
        model = filled(config, state, their_names, place.path, head=_HEAD, table=_TABLE)
        weights = weights_file(place.path)
        return Found(model, context, tuple(held), weights, [], has_tokenizer=True)
