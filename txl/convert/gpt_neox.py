"""Hugging Face's GPT-NeoX, such as Pythia, in: configuration and weights.

Attention and feed-forward net read the same input; queries, keys and values of a head stand
together in one matrix; only a part of a head's channels is rotated.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from txl.config import Context, ModelConfig, require
from txl.convert.decoder import (
    ALWAYS,
    REQUIRED,
    TANH_GELU,
    Names,
    filled,
    naming_fields,
    read_in_segments,
    require_activation,
    require_plain_weights,
    require_types,
    rotary_of,
    sizes_of,
)
from txl.convert.source import Found, Place, Source
from txl.convert.tensor_files import tensors_of, weights_file

_TYPES: dict[str, Any] = {
    **dict.fromkeys((*REQUIRED, "max_position_embeddings"), int),
    "layer_norm_eps": float,
    **dict.fromkeys(("rope_theta", "partial_rotary_factor"), float | None),
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
_ACTIVATIONS = {
    **{name: name for name in ("gelu", "relu", "silu")},
    **dict.fromkeys(TANH_GELU, "gelu_tanh"),
}


def configs_of(settings: Mapping[str, Any], path: Path) -> tuple[ModelConfig, Context]:
    """As `txl.convert.llama.configs_of`."""
    config = {**_DEFAULTS, **settings}
    config.setdefault("rope_theta", settings.get("rotary_emb_base", 10_000.0))
    config.setdefault("partial_rotary_factor", settings.get("rotary_pct", 0.25))
    require_types(config, _TYPES, path)
    require_plain_weights(config, path)
    require_activation(config["hidden_act"], _ACTIVATIONS, path)
    with naming_fields(path):
        model_config = _model_of(config)
        return read_in_segments(model_config, config["max_position_embeddings"], None)


def _model_of(config: Mapping[str, Any]) -> ModelConfig:
    sizes = sizes_of(config)
    return ModelConfig(
        d_head=sizes["d_model"] // sizes["n_head"],
        activation=_ACTIVATIONS[config["hidden_act"]],
        qkv_bias=config["attention_bias"],
        o_bias=config["attention_bias"],
        layer_norm_epsilon=config["layer_norm_eps"],
        parallel=config["use_parallel_residual"],
        **sizes,
        **rotary_of(config),
        **ALWAYS,
    )


_FUSED = ".attention.query_key_value."
NAMES = Names(
    table="gpt_neox.embed_in.weight",
    head="embed_out.weight",
    final_norm="gpt_neox.final_layer_norm",
    layers="gpt_neox.layers",
    in_layer={
        "attn.q_net": ("attention.query",),
        "attn.k_net": ("attention.key",),
        "attn.v_net": ("attention.value",),
        "attn.o_net": ("attention.dense",),
        "attn_norm": ("input_layernorm",),
        "ff.0": ("mlp.dense_h_to_4h",),
        "ff.3": ("mlp.dense_4h_to_h",),
        "ff_norm": ("post_attention_layernorm",),
    },
)
"""Once queries, keys and values are apart."""


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
    families = ("gpt_neox",)

    @classmethod
    def read(cls, place: Place) -> Found:
        config, context = configs_of(place.settings, place.path / "config.json")
        weights = weights_file(place.path)
        held = tensors_of(weights)
        state = apart(held, config.n_head, place.path)
        model = filled(config, state, NAMES, place.path)
        return Found(model, context, tuple(held), weights, [], has_tokenizer=True)
