"""Decoders of Llama's family in Hugging Face's folders, in and out: configuration and weights.

Their layers are ours with other parts: RMSNorm before each sub-layer and after the last layer,
rotary positions, gated feed-forward nets, keys and values that several heads of queries share, no
biases but where a model has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txl.config import Context, ModelConfig, UsageError, require
from txl.convert.source import Found, Place, Source
from txl.convert.tensor_files import tensors_in, weights_file
from txl.model.sizes import model_without_values, shapes_of, weights_of
from txl.model.transformer import TransformerXL
from txl.runtime.records import fits, read_json

SEGMENT = 256
"""Tokens that a loaded model reads at once, unless it is told otherwise."""
N_SINK = 4
"""First tokens of a text that it never forgets, likewise."""


@dataclass(frozen=True)
class Family:
    """How models of one `model_type` differ from Llama's.

    Attributes:
        architecture: the class in transformers.
        own: fields of `ModelConfig` that all of them have.
        defaults: of fields that a config.json may leave out.
    """

    architecture: str
    own: Mapping[str, Any]
    defaults: Mapping[str, Any]


FAMILIES = {
    "llama": Family("LlamaForCausalLM", {}, {"max_position_embeddings": 2048}),
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
        {"max_position_embeddings": 32_768, "num_key_value_heads": 32},
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        {"qk_norm": True},
        {"max_position_embeddings": 32_768, "num_key_value_heads": 32, "head_dim": 128},
    ),
}
"""By `model_type`."""

_ALWAYS: dict[str, Any] = {
    "position": "rotary",
    "norm": "rms",
    "pre_lnorm": True,
    "final_norm": True,
    "scale_embedding": False,
    "softmax_bias": False,
}
"""What all of them have in common."""
_ACTIVATIONS = {"silu": "swiglu", "gelu": "geglu"}
_OF_CONFIG: dict[str, Any] = {
    **dict.fromkeys(
        (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
        ),
        int,
    ),
    **dict.fromkeys(("num_key_value_heads", "head_dim", "sliding_window"), int | None),
    **dict.fromkeys(("rms_norm_eps", "rope_theta"), float),
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
_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)


def configs_of(settings: Mapping[str, Any], path: Path) -> tuple[ModelConfig, Context]:
    """The shape of the model, and how a text is read by it, of a config.json: in segments, with a
    memory that fills the context of its training.

    Args:
        path: of the file, for messages.
    Raises:
        UsageError: if a field is missing or damaged, or asks for what is not here.
    """
    model_type = settings.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        raise UsageError(
            f"{path}: model_type {model_type}; there are {', '.join(FAMILIES)} and transfo-xl"
        )
    config = {**_DEFAULTS, **family.defaults, **settings}
    _require_fields(config, path)
    _require_plain(config, path)
    try:
        model_config = _model_of(config, family)
        context = _context_of(config, str(model_type), path)
        if not context.same_length:
            model_config = replace(model_config, memory="sinks", n_sink=N_SINK)
    except UsageError as error:  # a file has names, and no flags
        raise UsageError(f"{path}: {str(error).replace('--', '')}") from None
    return model_config, context


def _require_fields(config: Mapping[str, Any], path: Path) -> None:
    for name in _REQUIRED:
        require(name in config, f"{path}: {name} is missing; use another copy")
    for name, hint in _OF_CONFIG.items():
        value = config.get(name)
        is_absent = value is None and name not in _REQUIRED
        require(
            is_absent or fits(value, hint),
            f"{path}: {name} is {str(value)[:40]!r}, of another type; use another copy",
        )


def _require_plain(config: Mapping[str, Any], path: Path) -> None:
    """Raise `UsageError` if the model has what ours has not."""
    act = config["hidden_act"]
    require(
        act in _ACTIVATIONS,
        f"{path}: hidden_act {act}: no such activation here, only {' and '.join(_ACTIVATIONS)}",
    )
    for name in ("quantization_config", "no_rope_layers"):
        require(
            not config.get(name),
            f"{path}: {name}: such a model is not read; convert it to plain weights first",
        )


def _model_of(config: Mapping[str, Any], family: Family) -> ModelConfig:
    n_head = config["num_attention_heads"]
    require(n_head > 0, f"num_attention_heads {n_head}: must be at least 1")
    own = dict(family.own)
    if config["attention_bias"]:
        own |= {"qkv_bias": True, "o_bias": True}
    return ModelConfig(
        n_token=config["vocab_size"],
        n_layer=config["num_hidden_layers"],
        n_head=n_head,
        n_kv_head=config.get("num_key_value_heads") or n_head,
        d_head=config.get("head_dim") or config["hidden_size"] // n_head,
        d_model=config["hidden_size"],
        d_inner=config["intermediate_size"],
        activation=_ACTIVATIONS[config["hidden_act"]],
        ff_bias=config["mlp_bias"],
        layer_norm_epsilon=config["rms_norm_eps"],
        not_tied=not config["tie_word_embeddings"],
        **_rotary_of(config),
        **_ALWAYS,
        **own,
    )


def _rotary_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the rotary positions, in the words of transformers 4 or 5."""
    given = {"rope_theta": config["rope_theta"]}
    given |= config.get("rope_scaling") or {}
    given |= config.get("rope_parameters") or {}
    kind = given.get("rope_type", given.get("type", "default"))
    part = given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    require(part == 1.0, f"partial_rotary_factor {part}: only 1 is read")
    base = _number(given, "rope_theta")
    if kind == "default":
        return {"rope_base": base}
    if kind == "linear":
        factor = _number(given, "factor")
        return {"rope_base": base, "rope_scaling": "linear", "rope_factor": factor}
    require(
        kind == "llama3",
        f"rope_type {kind}: no such scaling of frequencies here; there are default, linear, llama3",
    )
    return {
        "rope_base": base,
        "rope_scaling": "llama3",
        "rope_factor": _number(given, "factor"),
        "rope_low": _number(given, "low_freq_factor"),
        "rope_high": _number(given, "high_freq_factor"),
        "rope_trained_len": int(_number(given, "original_max_position_embeddings")),
    }


def _number(given: Mapping[str, Any], name: str) -> float:
    value = given.get(name)
    require(fits(value, float), f"{name} is {value!r}, and no number; use another copy")
    assert value is not None
    return float(value)


def _context_of(config: Mapping[str, Any], model_type: str, path: Path) -> Context:
    window = _window_of(config, model_type, path)
    n_trained = config["max_position_embeddings"]
    require(n_trained > 1, f"{path}: max_position_embeddings {n_trained}: must be at least 2")
    if window is not None and window < n_trained:
        return Context(tgt_len=min(SEGMENT, window), mem_len=window, same_length=True)
    tgt_len = min(SEGMENT, n_trained // 2)
    return Context(tgt_len=tgt_len, mem_len=max(0, n_trained - tgt_len - N_SINK))


def _window_of(config: Mapping[str, Any], model_type: str, path: Path) -> int | None:
    """How many tokens, itself included, one sees; None: all."""
    window = config.get("sliding_window")
    if model_type in ("qwen2", "qwen3") and not config["use_sliding_window"]:
        window = None
    kinds = set(config.get("layer_types") or ())
    if kinds == {"full_attention"}:
        return None
    first_sliding = config.get("max_window_layers", 0)
    is_of_some = model_type in ("qwen2", "qwen3") and first_sliding not in (0, None)
    if window is not None and not kinds and is_of_some:
        kinds = {"full_attention", "sliding_attention"}
    require(
        window is None or len(kinds) < 2,
        f"{path}: some layers have a sliding window and others do not; such a model is not read",
    )
    return window


def from_llama(state: Mapping[str, Tensor], config: ModelConfig, path: Path) -> TransformerXL:
    """The model of these tensors, read strictly and without a copy where one tensor is one of ours.

    Args:
        path: what is named if they do not fit.
    Raises:
        UsageError: if a tensor is missing, left over, of another shape, or not finite.
    """
    n_element = sum(tensor.numel() for tensor in state.values())
    is_small = shapes_of(config, n_tensor=len(state), n_element=n_element) is not None
    require(
        is_small,
        f"{path}: config.json describes a larger model than the {n_element:,} weights beside it",
    )
    for name, tensor in state.items():
        good = tensor.is_floating_point() and bool(tensor.isfinite().all())
        require(good, f"{path}: {name} is no finite floating-point tensor; use another copy")
    model = model_without_values(config, device="cpu")
    used = set()
    dtype = next(iter(state.values())).dtype
    for name, parameter in weights_of(model).items():
        parts = []
        for their_name in their_names(name):
            require(their_name in state, f"{path}: {their_name} is missing from the weights")
            used.add(their_name)
            parts.append(state[their_name].to(dtype))
        tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
        require(
            tensor.shape == parameter.shape,
            f"{path}: {' and '.join(their_names(name))}: of the shape {tuple(tensor.shape)};"
            f" config.json asks for {tuple(parameter.shape)}",
        )
        parameter.data = tensor
    _require_no_more(state, used, config, path)
    return model.eval()


def _require_no_more(
    state: Mapping[str, Tensor], used: set[str], config: ModelConfig, path: Path
) -> None:
    """Raise `UsageError` if a tensor is left over that is no second name of a tied table."""
    left = []
    for name in sorted(set(state) - used):
        is_table = name == _HEAD and not config.not_tied
        is_same = is_table and torch.equal(state[name], state[_TABLE])
        if not is_same and not name.endswith(".rotary_emb.inv_freq"):
            left.append(name)
    require(
        not left,
        f"{path}: {', '.join(left[:3])}: no weights of the model that config.json describes",
    )


_TABLE = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
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
"""Their modules for each of ours; weights of two stand one below the other in ours."""


def their_names(name: str) -> list[str]:
    """The tensors there that one of ours is made of."""
    match name.split("."):
        case ["word_emb", "tables", "0"]:
            return [_TABLE]
        case ["softmax", "tables", "0"]:
            return [_HEAD]
        case ["final_norm", kind]:
            return [f"model.norm.{kind}"]
        case ["layers", i, *module, kind]:
            theirs = _IN_LAYER[".".join(module)]
            return [f"model.layers.{i}.{module}.{kind}" for module in theirs]
    raise KeyError(name)


def to_llama(model: TransformerXL) -> dict[str, Tensor]:
    """The state dict of the same model in transformers, without second names of a tied table."""
    theirs = {}
    for name, parameter in model.named_parameters():
        if ".memory." not in name:
            names = their_names(name)
            for their_name, part in zip(names, parameter.detach().chunk(len(names)), strict=True):
                theirs[their_name] = part.contiguous()
    return theirs


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
        **_rotary_for(config),
    }
    if model_type == "mistral":
        settings["sliding_window"] = context.mem_len
    return settings


def _trained_len(config: ModelConfig, context: Context) -> int:
    """How many tokens stand together at most."""
    n_sink = config.n_sink if config.memory == "sinks" else 0
    return n_sink + context.mem_len + context.tgt_len


def _model_type(config: ModelConfig, context: Context) -> str:
    """The class of transformers that has such a model."""
    for name, only in {**_ALWAYS, "attention": "softmax", "gate": "none", "div_val": 1}.items():
        _require_only(config, name, only)
    for name, only in {"reversible": False, "recurrence": "below", "cutoffs": ()}.items():
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
        f" {' or '.join(_ACTIVATIONS.values())}"
    )


def _rotary_for(config: ModelConfig) -> dict[str, Any]:
    """In the words of transformers 4, which 5 reads too."""
    base = {"rope_theta": config.rope_base}
    if config.rope_scaling == "none":
        return base
    scaling = {"rope_type": config.rope_scaling, "factor": config.rope_factor}
    if config.rope_scaling == "llama3":
        scaling |= {
            "low_freq_factor": config.rope_low,
            "high_freq_factor": config.rope_high,
            "original_max_position_embeddings": config.rope_trained_len,
        }
    return base | {"rope_scaling": scaling}


class Llama(Source):
    """Folders of transformers' decoders of Llama's family."""

    name = "llama"
    kind = "Hugging Face llama"

    @classmethod
    def recognises(cls, place: Place) -> bool:
        try:
            return read_json(place.path / "config.json")["model_type"] in FAMILIES
        except (OSError, ValueError, TypeError, KeyError):
            return False

    @classmethod
    def read(cls, place: Place) -> Found:
        path = place.path / "config.json"
        settings = read_json(path)
        config, context = configs_of(settings, path)
        state = tensors_in(place.path)
        model = from_llama(state, config, place.path)
        return Found(model, context, tuple(state), weights_file(place.path), [])
