"""Decoders of Llama's family in Hugging Face's folders, in and out: configuration and weights.

Their layers are ours with other parts: RMSNorm before each sub-layer and after the last layer,
rotary positions, gated feed-forward nets, keys and values that several heads of queries share, no
biases but where a model has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from txl.config import Context, ModelConfig, UsageError, require
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
    rotary_for,
    rotary_of,
    sizes_of,
)
from txl.convert.source import Found, Place, Source
from txl.convert.tensor_files import tensors_of, weights_file
from txl.memory.sinks import Sinks
from txl.model.transformer import TransformerXL


@dataclass(frozen=True)
class Family:
    """How models of one `model_type` differ from Llama's.

    Attributes:
        architecture: the class in transformers.
        own: fields of `ModelConfig` that all of them have.
        defaults: of fields that a config.json may leave out.
        biases: fields that ask for biases and that its class reads; it ignores the others.
    """

    architecture: str
    own: Mapping[str, Any]
    defaults: Mapping[str, Any]
    biases: tuple[str, ...] = ()


_QWEN = {"sliding_window": 4096, "max_window_layers": 28}
FAMILIES = {
    "llama": Family(
        "LlamaForCausalLM", {}, {"max_position_embeddings": 2048}, ("attention_bias", "mlp_bias")
    ),
    "mistral": Family(
        "MistralForCausalLM",
        {},
        {
            "max_position_embeddings": 131_072,
            "sliding_window": 4096,
            "num_key_value_heads": 8,
        },
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        {"qkv_bias": True},
        {"max_position_embeddings": 32_768, "num_key_value_heads": 32, **_QWEN},
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        {"qk_norm": True},
        {
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 32,
            "head_dim": 128,
            **_QWEN,
        },
        ("attention_bias",),
    ),
}
"""By `model_type`."""

_ALWAYS = ALWAYS | {"norm": "rms"}
_ACTIVATIONS = {"silu": "swiglu", "gelu": "geglu", **dict.fromkeys(TANH_GELU, "geglu_tanh")}
_OF_CONFIG: dict[str, Any] = {
    **dict.fromkeys(
        (*REQUIRED, "max_position_embeddings"),
        int,
    ),
    **dict.fromkeys(("num_key_value_heads", "head_dim"), int | None),
    **dict.fromkeys(("sliding_window", "max_window_layers"), int | None),
    "rms_norm_eps": float,
    "rope_theta": float | None,
    **dict.fromkeys(
        ("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window"), bool
    ),
    "hidden_act": str,
    "layer_types": list[str] | None,
    **dict.fromkeys(("rope_scaling", "rope_parameters"), dict[str, Any] | None),
}
"""The types of the fields that are read."""
_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "hidden_act": "silu",
}


def configs_of(settings: Mapping[str, Any], path: Path) -> tuple[ModelConfig, Context]:
    """The shape of the model, and how a text is read by it, of a config.json: in segments, with a
    memory that fills the context of its training.

    Args:
        path: of the file, for messages.
    Raises:
        UsageError: if a field is missing or damaged, or asks for what is not here.
    """
    model_type = settings["model_type"]
    family = FAMILIES[model_type]
    config = {**_DEFAULTS, **family.defaults, **settings}
    require_types(config, _OF_CONFIG, path)
    require_activation(config["hidden_act"], _ACTIVATIONS, path)
    require_plain_weights(config, path)
    window = _window_of(config, model_type, path)
    with naming_fields(path):
        model_config = _model_of(config, family)
        return read_in_segments(model_config, config["max_position_embeddings"], window)


def _model_of(config: Mapping[str, Any], family: Family) -> ModelConfig:
    sizes = sizes_of(config)
    rotary = rotary_of(config)
    part = rotary["rope_part"]
    no_part = "no class of Llama's family turns a part of a head's channels"
    require(part == 1, f"partial_rotary_factor {part}: {no_part}; use another copy")
    biases = [name for name in family.biases if config[name]]
    own = dict(family.own)
    if "attention_bias" in biases:
        own |= {"qkv_bias": True, "o_bias": True}
    return ModelConfig(
        n_kv_head=config.get("num_key_value_heads") or sizes["n_head"],
        d_head=config.get("head_dim") or sizes["d_model"] // sizes["n_head"],
        activation=_ACTIVATIONS[config["hidden_act"]],
        ff_bias="mlp_bias" in biases,
        layer_norm_epsilon=config["rms_norm_eps"],
        **sizes,
        **rotary,
        **_ALWAYS,
        **own,
    )


def _window_of(config: Mapping[str, Any], model_type: str, path: Path) -> int | None:
    """How many tokens, itself included, one sees; None: all."""
    window = config.get("sliding_window")
    kinds: set[str] = set(config.get("layer_types") or ())
    if model_type in ("qwen2", "qwen3"):
        if not config["use_sliding_window"]:
            return None
        if not kinds:
            for i in (0, config["num_hidden_layers"] - 1):  # the first and the last
                is_full = i < (config["max_window_layers"] or 0)
                kinds.add("full_attention" if is_full else "sliding_attention")
    if kinds == {"full_attention"}:
        return None
    require(
        window is None or len(kinds) < 2,
        f"{path}: some layers have a sliding window and others do not; such a model is not read",
    )
    if model_type == "llama":  # whose class has no window, whatever config.json says
        return None
    return window


def from_llama(state: Mapping[str, Tensor], config: ModelConfig, path: Path) -> TransformerXL:
    """The model of these tensors, see `filled`."""
    return filled(config, state, NAMES, path)


_IN_LAYER = {
    "attn.q_net": ("self_attn.q_proj",),
    "attn.k_net": ("self_attn.k_proj",),
    "attn.v_net": ("self_attn.v_proj",),
    "attn.o_net": ("self_attn.o_proj",),
    "attn.q_net.net": ("self_attn.q_proj",),
    "attn.k_net.net": ("self_attn.k_proj",),
    "attn.q_net.norm": ("self_attn.q_norm",),
    "attn.k_net.norm": ("self_attn.k_norm",),
    "attn_norm": ("input_layernorm",),
    "ff.0": ("mlp.gate_proj", "mlp.up_proj"),
    "ff.3": ("mlp.down_proj",),
    "ff_norm": ("post_attention_layernorm",),
}
NAMES = Names(
    table="model.embed_tokens.weight",
    head="lm_head.weight",
    final_norm="model.norm",
    layers="model.layers",
    in_layer=_IN_LAYER,
)


def to_llama(model: TransformerXL) -> dict[str, Tensor]:
    """The state dict of the same model in transformers, without second names of a tied table."""
    theirs = {}
    for name, parameter in model.named_parameters():
        require(
            ".memory." not in name,
            f"--memory {model.config.memory}: its weights have no place in transformers; use --to"
            " txl",
        )
        names = NAMES.of(name)
        for their_name, part in zip(names, parameter.detach().chunk(len(names)), strict=True):
            theirs[their_name] = part.contiguous()
    return theirs


def is_decoder(config: ModelConfig) -> bool:
    """True for what goes to Hugging Face as a model of Llama's family, if at all."""
    return config.position == _ALWAYS["position"] and config.final_norm


def config_for_llama(model: TransformerXL, context: Context) -> dict[str, Any]:
    """Its config.json. Raises `UsageError` if no class there has such a model."""
    config = model.config
    model_type = _model_type(config, context)
    settings = {
        "architectures": [FAMILIES[model_type].architecture],
        "model_type": model_type,
        "vocab_size": config.n_token,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_inner,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_key_head,
        "head_dim": config.d_head,
        "hidden_act": _their_activation(config),
        "max_position_embeddings": _trained_len(config, context),
        "rms_norm_eps": config.layer_norm_epsilon,
        "tie_word_embeddings": not config.not_tied,
        "attention_bias": config.o_bias,
        "mlp_bias": config.ff_bias,
        "torch_dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        **rotary_for(config),
    }
    if model_type == "mistral":
        settings["sliding_window"] = context.mem_len
    return settings


def _trained_len(config: ModelConfig, context: Context) -> int:
    """How many tokens stand together at most."""
    n_sink = 0
    if config.memory == "sinks":
        n_sink = config.settings(Sinks.Settings).n_sink
    return n_sink + context.mem_len + context.tgt_len


def _model_type(config: ModelConfig, context: Context) -> str:
    """The class of transformers that has such a model."""
    for name, only in {**_ALWAYS, "attention": "softmax", "gate": "none", "rope_part": 1.0}.items():
        _require_only(config, name, only)
    for name, only in {
        "reversible": False,
        "parallel": False,
        "recurrence": "below",
        "cutoffs": (),
        "div_val": 1,
    }.items():
        _require_only(config, name, only)
    require(
        config.d_embed == config.d_model,
        f"--d_embed {config.d_embed}: transformers has no such model, only d_model",
    )
    kinds = {
        (False, False, False): "llama",
        (True, True, False): "llama",
        (True, False, False): "qwen2",
        (False, False, True): "qwen3",
        (True, True, True): "qwen3",
    }
    chosen = kinds.get((config.qkv_bias, config.o_bias, config.qk_norm))
    is_other = chosen in ("qwen2", "qwen3") and config.ff_bias
    require(
        chosen is not None and not is_other,
        "--qkv_bias, --o_bias, --qk_norm and --ff_bias: transformers has no class with these"
        " together",
    )
    if not context.same_length:
        return str(chosen)
    require(
        chosen == "llama" and not config.qkv_bias and not config.ff_bias,
        "--same_length: of transformers' classes only Mistral has such a window, and no biases",
    )
    return "mistral"


def _require_only(config: ModelConfig, name: str, only: Any) -> None:
    value = getattr(config, name)
    require(value == only, f"--{name} {value}: transformers has no such decoder, only {only}")


def _their_activation(config: ModelConfig) -> str:
    for theirs, ours in _ACTIVATIONS.items():
        if ours == config.activation:
            return theirs
    raise UsageError(
        f"--activation {config.activation}: transformers has no such decoder, only"
        f" {' or '.join(dict.fromkeys(_ACTIVATIONS.values()))}"
    )


class Llama(Source):
    """Folders of transformers' decoders of Llama's family."""

    name = "llama"
    kind = "Hugging Face llama"
    families = tuple(FAMILIES)

    @classmethod
    def read(cls, place: Place) -> Found:
        config, context = configs_of(place.settings, place.path / "config.json")
        weights = weights_file(place.path)
        state = tensors_of(weights)
        model = from_llama(state, config, place.path)
        return Found(model, context, tuple(state), weights, [], has_tokenizer=True)
