"""What decoders with rotary positions of other programs have in common: how a config.json and weights
are checked, rotary settings, and how a text is read by them.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txl.config import Context, ModelConfig, UsageError, require
from txl.convert.tensor_files import widest
from txl.model.sizes import model_without_values, shapes_of, weights_of
from txl.model.transformer import TransformerXL
from txl.positions.rotary import Rotary
from txl.runtime.records import fits

ALWAYS: dict[str, Any] = {
    "position": "rotary",
    "pre_lnorm": True,
    "final_norm": True,
    "scale_embedding": False,
    "softmax_bias": False,
}
"""What all of them have in common."""
REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
"""The fields of a config.json without which there is no model."""
TANH_GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate")
"""Names there of GELU by tanh, which differ in rounding only."""
SEGMENT = 256
"""Tokens that a loaded model reads at once, unless it is told otherwise."""
N_SINK = 4
"""First tokens of a text that it never forgets, likewise."""


def read_in_segments(
    config: ModelConfig, n_trained: int, window: int | None
) -> tuple[ModelConfig, Context]:
    """The model with its memory, and how a text is read: by the rest of the text that fits the
    context of the training, and where it is full by the first tokens and the last ones.

    Args:
        n_trained: tokens that stood together in training; of yarn at least as many as it stretches
            its own to, whatever config.json says.
        window: how many tokens, itself included, one sees; None: all.
    """
    rope = config.settings(Rotary.Settings)
    if rope.rope_scaling == "yarn":
        n_trained = max(n_trained, int(min(rope.rope_factor * rope.rope_trained_len, 2**53)))
    require(n_trained > 1, f"max_position_embeddings {n_trained}: must be at least 2")
    if window is not None and window < n_trained:
        return config, Context(tgt_len=min(SEGMENT, window), mem_len=window, same_length=True)
    tgt_len = min(SEGMENT, n_trained // 2)
    context = Context(tgt_len=tgt_len, mem_len=max(0, n_trained - tgt_len - N_SINK))
    return replace(config, memory="sinks", n_sink=N_SINK), context


def require_types(config: Mapping[str, Any], hints: Mapping[str, Any], path: Path) -> None:
    """Raise `UsageError` if a field of a config.json is missing or of another type."""
    for name in REQUIRED:
        require(name in config, f"{path}: {name} is missing; use another copy")
    for name, hint in hints.items():
        value = config.get(name)
        require(
            name not in config or fits(value, hint),
            f"{path}: {name} is {str(value)[:40]!r}, of another type; use another copy",
        )


def require_activation(act: str, known: Collection[str], path: Path) -> None:
    """Raise `UsageError` if there is no such activation here."""
    require(
        act in known,
        f"{path}: hidden_act {act}: no such activation here, only {' and '.join(known)}",
    )


def require_plain_weights(config: Mapping[str, Any], path: Path) -> None:
    """Raise `UsageError` if weights or positions are of a kind that is not here."""
    for name in ("quantization_config", "no_rope_layers"):
        require(
            not config.get(name),
            f"{path}: {name}: such a model is not read; convert it to plain weights first",
        )


def sizes_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that all of them name alike."""
    n_head = config["num_attention_heads"]
    require(n_head > 0, f"num_attention_heads {n_head}: must be at least 1")
    return {
        "n_token": config["vocab_size"],
        "n_layer": config["num_hidden_layers"],
        "n_head": n_head,
        "d_model": config["hidden_size"],
        "d_inner": config["intermediate_size"],
        "not_tied": not config["tie_word_embeddings"],
    }


@contextmanager
def naming_fields(path: Path) -> Iterator[None]:
    """Put the file before the messages of a configuration, which then name fields: a file has no
    flags.
    """
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{path}: {str(error).replace('--', '')}") from None


def rotary_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the rotary positions, in the words of transformers 4 or 5. Those of 4 count
    where both are there, as in both.
    """
    given = {"rope_theta": config["rope_theta"]}
    given |= config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = given.get("rope_type", given.get("type", "default"))
    part = given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    require(fits(part, float), f"partial_rotary_factor is {part!r}, and no number")
    settings = {"rope_base": _number(given, "rope_theta"), "rope_part": float(part)}
    if kind == "default":
        return settings
    why = "no such scaling of frequencies here"
    if kind == "dynamic":
        why = (
            "its frequencies depend on the length of a text, so that all of it would be read again;"
            f" without rope_scaling it reads {config['max_position_embeddings']} tokens as well"
        )
    require(
        str(kind) in _SCALINGS,
        f"rope_type {kind}: {why}; there are default, {', '.join(_SCALINGS)}",
    )
    return settings | {"rope_scaling": kind} | _SCALINGS[kind](config, given)


def _linear(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"rope_factor": _number(given, "factor")}


def _llama3(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rope_factor": _number(given, "factor"),
        "rope_low": _number(given, "low_freq_factor"),
        "rope_high": _number(given, "high_freq_factor"),
        "rope_trained_len": _trained_len(config, given),
    }


def _yarn(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    settings = _with_attention(config, given)
    scales = [given.get("mscale"), given.get("mscale_all_dim")]
    if settings["rope_attention"] is None and all(scales):
        logarithm = 0.1 * math.log(max(1, settings["rope_factor"]))
        of_one, of_all = (1 + _number(given, name) * logarithm for name in _MSCALES)
        require(of_all > 0, f"mscale_all_dim {scales[1]}: must be above 0; use another copy")
        settings["rope_attention"] = of_one / of_all
    truncates = given.get("truncate", True)
    require(isinstance(truncates, bool), f"truncate is {truncates!r}, and no boolean")
    return settings | {
        "rope_high": _number({"beta_fast": given.get("beta_fast") or 32.0}, "beta_fast"),
        "rope_low": _number({"beta_slow": given.get("beta_slow") or 1.0}, "beta_slow"),
        "rope_truncate": truncates,
    }


def _longrope(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    settings = _with_attention(config, given)
    for name in ("short", "long"):
        factors = given.get(f"{name}_factor")
        require(
            fits(factors, list[float]), f"{name}_factor is no list of numbers; use another copy"
        )
        settings[f"rope_{name}"] = tuple(map(float, factors or ()))
    return settings


_SCALINGS = {"linear": _linear, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope}
_MSCALES = ("mscale", "mscale_all_dim")


def _with_attention(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Length, factor and that of queries and keys, of yarn and longrope."""
    trained_len = _trained_len(config, given)
    settings: dict[str, Any] = {"rope_trained_len": trained_len, "rope_attention": None}
    if given.get("factor") is None:
        given = {**given, "factor": config["max_position_embeddings"] / max(1, trained_len)}
    settings["rope_factor"] = _number(given, "factor")
    if given.get("attention_factor") is not None:
        settings["rope_attention"] = _number(given, "attention_factor")
    return settings


def _trained_len(config: Mapping[str, Any], given: Mapping[str, Any]) -> int:
    """Tokens of the first training's texts: beside the scaling, inside it, or as many as now."""
    name = "original_max_position_embeddings"
    for place in (config, given):
        if place.get(name) is not None:
            return int(_number(place, name))
    return config["max_position_embeddings"]


def _number(given: Mapping[str, Any], name: str) -> float:
    value = given.get(name)
    require(fits(value, float), f"{name} is {value!r}, and no number; use another copy")
    assert value is not None
    return float(value)


def rotary_for(config: ModelConfig) -> dict[str, Any]:
    """In the words of transformers 4, which 5 reads too."""
    rope = config.settings(Rotary.Settings)
    base: dict[str, Any] = {"rope_theta": rope.rope_base}
    if rope.rope_scaling == "none":
        return base
    scaling = {"rope_type": rope.rope_scaling, "factor": rope.rope_factor}
    if rope.rope_scaling != "linear":
        scaling["original_max_position_embeddings"] = rope.rope_trained_len
    if rope.rope_attention is not None:
        scaling["attention_factor"] = rope.rope_attention
    if rope.rope_scaling == "llama3":
        scaling |= {"low_freq_factor": rope.rope_low, "high_freq_factor": rope.rope_high}
    if rope.rope_scaling == "yarn":
        scaling |= {"beta_slow": rope.rope_low, "beta_fast": rope.rope_high}
        scaling["truncate"] = rope.rope_truncate
    if rope.rope_scaling == "longrope":
        scaling |= {"short_factor": [*rope.rope_short], "long_factor": [*rope.rope_long]}
    return base | {"rope_scaling": scaling}


@dataclass(frozen=True)
class Names:
    """The tensors there, by the names of ours.

    Attributes:
        table, head: of the embedding and of the softmax.
        final_norm: the module of the last norm.
        layers: what the names of layers begin with.
        in_layer: the modules there for each of ours in a layer; weights of two stand one below the
            other in ours.
    """

    table: str
    head: str
    final_norm: str
    layers: str
    in_layer: Mapping[str, tuple[str, ...]]

    def of(self, name: str) -> list[str]:
        """The tensors there that one of ours is made of."""
        match name.split("."):
            case ["word_emb", "tables", "0"]:
                return [self.table]
            case ["softmax", "tables", "0"]:
                return [self.head]
            case ["final_norm", kind]:
                return [f"{self.final_norm}.{kind}"]
            case ["layers", i, *module, kind]:
                theirs = self.in_layer[".".join(module)]
                return [f"{self.layers}.{i}.{module}.{kind}" for module in theirs]
        raise KeyError(name)


def filled(
    config: ModelConfig, state: Mapping[str, Tensor], names: Names, path: Path
) -> TransformerXL:
    """The model of these tensors, read strictly and without a copy where one tensor is one of ours.

    Args:
        path: what is named if they do not fit.
    Raises:
        UsageError: if a tensor is missing, left over, of another shape, or not finite.
    """
    state = {name: state[name] for name in state if not name.endswith(_MADE_AGAIN)}
    n_element = sum(tensor.numel() for tensor in state.values())
    shapes = shapes_of(config, n_tensor=len(state), n_element=n_element)
    require(
        shapes is not None,
        f"{path}: config.json describes a larger model than the {n_element:,} weights beside it",
    )
    used = _used(shapes or {}, state, names, path)
    for name, tensor in state.items():
        good = tensor.is_floating_point() and bool(tensor.isfinite().all())
        require(good, f"{path}: {name} is no finite floating-point tensor; use another copy")
    model = model_without_values(config, device="cpu")
    dtype = widest(state.values())
    for name, parameter in weights_of(model).items():
        parts = [state[their_name].to(dtype) for their_name in names.of(name)]
        parameter.data = parts[0] if len(parts) == 1 else torch.cat(parts)
    is_tied = not config.not_tied and names.head in state
    if is_tied and torch.equal(state[names.head], state[names.table]):
        used.add(names.head)
    _require_no_more(state, used, path)
    return model.eval()


def _used(
    shapes: Mapping[str, tuple[int, ...]], state: Mapping[str, Tensor], names: Names, path: Path
) -> set[str]:
    """The names of the tensors that the model is made of. Raises `UsageError` if one is missing or
    of another shape; no value is read.
    """
    used: set[str] = set()
    for name, shape in shapes.items():
        theirs = names.of(name)
        for their_name in theirs:
            require(their_name in state, f"{path}: {their_name} is missing from the weights")
        used.update(theirs)
        found = [tuple(state[their_name].shape) for their_name in theirs]
        is_fit = all(found) and {one[1:] for one in found} == {shape[1:]}
        require(
            is_fit and sum(one[0] for one in found) == shape[0],
            f"{path}: {' and '.join(theirs)}: of the shape {' and '.join(map(str, found))};"
            f" config.json asks for {shape}",
        )
    return used


def _require_no_more(state: Mapping[str, Tensor], used: set[str], path: Path) -> None:
    """Raise `UsageError` if a tensor is left over."""
    left = sorted(set(state) - used)
    require(
        not left,
        f"{path}: {', '.join(left[:3])}: no weights of the model that config.json describes",
    )


_MADE_AGAIN = (".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")
"""Ends of the names of tensors that follow from the configuration: frequencies, and a mask of
booleans with what it adds, which is infinite in 16 bits.
"""
