"""Weights of kimiyoung/transformer-xl, in and out."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from txl.config import Context, ModelConfig, UsageError, require
from txl.model.transformer import TransformerXL


def from_kimiyoung(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> tuple[TransformerXL, Context]:
    """Build the model and the look-back of a model of kimiyoung/transformer-xl (PyTorch).

    Args:
        state: its parameters by name, as in `named_parameters()` or `state_dict()`; names of tied weights and the
            buffer `pos_emb.inv_freq` may be there or not. Their dtype is kept.
        config: the arguments of its constructor, `MemTransformerLM(...)`.
    Raises:
        UsageError: if a parameter is missing or of the wrong shape, or the attn_type is none of 0 to 3.
    """
    model_config = _model_config(config)
    dtype = next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), torch.get_default_dtype())
    model = TransformerXL(model_config, dropout=config.get("dropout", 0.0), dropatt=config.get("dropatt", 0.0))
    model.to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            theirs = _read(state, name, model_config)
            require(
                theirs.shape == parameter.shape,
                f"{_their_name(name, model_config)}: has the shape of {tuple(theirs.shape)} where the configuration "
                f"asks for {tuple(parameter.shape)}; give the constructor arguments the weights were trained with",
            )
            parameter.copy_(theirs)
    context = Context(
        tgt_len=config.get("tgt_len") or Context.tgt_len,
        mem_len=config.get("mem_len") or 0,
        ext_len=config.get("ext_len") or 0,
        same_length=config.get("same_length", False),
        # attn_type 3 never looked at its clamp_len
        clamp_len=-1 if model_config.position == "learned_per_layer" else config.get("clamp_len", -1),
    )
    return model, context


def to_kimiyoung(model: TransformerXL, tensors: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The model's parameters under the names and in the layout of kimiyoung/transformer-xl, tied ones once.

    Args:
        tensors: what to export in place of the parameters, by our parameter names: gradients, for one.
    Raises:
        UsageError: if the original has no place for them: another position encoding, u and v in each layer of its first
            one, or positions that count from the start.
    """
    config = model.config
    require(
        config.position in ATTN_TYPES,
        f"--position {config.position}: the original has no such encoding; it has {', '.join(ATTN_TYPES)}",
    )
    require(
        config.position != "rel_sinusoid" or not config.untie_r,
        "--untie_r: the original has one pair of u and v for all layers",
    )
    require(
        config.count_back or config.position not in ("sinusoid_input", "learned_per_layer"),
        f"--position {config.position}: the original counts positions back from the last token, this model does not",
    )
    ours = dict(model.named_parameters()) if tensors is None else dict(tensors)
    theirs: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        their_name = _their_name(name, config)
        if their_name in theirs:
            continue
        if name.endswith(("attn.q_net.weight", "attn.k_net.weight")):
            prefix, parts = name[: -len("q_net.weight")], _joined(their_name)
            theirs[their_name] = torch.cat([ours[f"{prefix}{x}_net.weight"] for x in parts])
        elif their_name in _STACKED and config.position != "rel_sinusoid":
            own = name.removeprefix("layers.0.")
            stacked = torch.stack([ours[f"layers.{layer}.{own}"] for layer in range(config.n_layer)])
            theirs[their_name] = _far_first(stacked, their_name).reshape(config.n_layer, *_STACKED[their_name](config))
        else:
            theirs[their_name] = tensor.flip(0) if name in _FLIPPED else tensor
    return theirs


ATTN_TYPES = ("rel_sinusoid", "learned_relative", "sinusoid_input", "learned_per_layer")
"""Our position encodings by the number the original gives them."""

_FLIPPED = ("softmax.cluster_weight", "softmax.cluster_bias")  # the original numbers tail clusters from the last one
_STACKED: dict[str, Callable[[ModelConfig], tuple[int, ...]]] = {
    "r_emb": lambda config: (config.n_position or 0, config.n_head, config.d_head),
    "r_bias": lambda config: (config.n_position or 0, config.n_head),
    "r_w_bias": lambda config: (config.n_head, config.d_head),
}
"""What attn_type 1 and 3 hold for all layers in one tensor, and the shape of a layer's share."""
_IN_LAYER = {
    "attn.o_net": "dec_attn.o_net",
    "attn.pos.r_net": "dec_attn.r_net",
    "attn_norm": "dec_attn.layer_norm",
    "ff.0": "pos_ff.CoreNet.0",
    "ff.3": "pos_ff.CoreNet.3",
    "ff_norm": "pos_ff.layer_norm",
}


def _model_config(config: Mapping[str, Any]) -> ModelConfig:
    attn_type = config.get("attn_type", 0)
    require(attn_type in range(4), f"attn_type {attn_type}: the original has 0, 1, 2 and 3")
    cutoffs = tuple(config.get("cutoffs") or ())
    return ModelConfig(
        **{name: config[name] for name in ("n_token", "n_layer", "n_head", "d_head", "d_model", "d_inner")},
        d_embed=config.get("d_embed") or -1,
        adaptive=bool(cutoffs),
        cutoffs=cutoffs,
        div_val=config.get("div_val", 1),
        not_tied=not config.get("tie_weight", True),
        tie_projs=tuple(config.get("tie_projs") or ()),
        pre_lnorm=config.get("pre_lnorm", False),
        position=ATTN_TYPES[attn_type],
        n_position=sum(config.get(name) or 0 for name in ("tgt_len", "ext_len", "mem_len")) or None,
        count_back=attn_type in (2, 3),
    )


def _joined(their_name: str) -> str:
    """Which projections a matrix of the original holds, one below the other."""
    return their_name.split(".")[-2].removesuffix("_net")


def _far_first(table: Tensor, their_name: str) -> Tensor:
    """A layer's tables or all of them, with their rows turned around: the original's begin with the farthest one."""
    return table if their_name == "r_w_bias" else table.flip(1)


def _their_name(name: str, config: ModelConfig) -> str:
    parts = name.split(".")
    match parts:
        case ["layers", _, "attn", "q_net", kind] if config.count_back:
            return f"layers.{parts[1]}.dec_attn.q_net.{kind}"
        case ["layers", _, "attn", "k_net" | "v_net", kind] if config.count_back:
            return f"layers.{parts[1]}.dec_attn.kv_net.{kind}"
        case ["layers", _, "attn", "q_net" | "k_net" | "v_net", kind]:
            return f"layers.{parts[1]}.dec_attn.qkv_net.{kind}"
        case ["layers", _, "attn", "pos", "r_RNH" | "p_RD"]:
            return "r_emb"
        case ["layers", _, "attn", "pos", "b_RN"]:
            return "r_bias"
        case ["layers", _, "attn", "pos", "u_NH"]:
            return "r_w_bias"
        case ["layers", _, "attn", "pos", "v_NH"]:
            return "r_r_bias"
        case ["layers", layer, *inner, kind]:
            return f"layers.{layer}.{_IN_LAYER['.'.join(inner)]}.{kind}"
        case ["word_emb", "tables", i]:
            return f"word_emb.emb_layers.{i}.weight"
        case ["word_emb", "projs", i]:
            return f"word_emb.emb_projs.{i}"
        case ["softmax", "tables", i]:
            return f"crit.out_layers.{i}.weight"
        case ["softmax", "biases", i]:
            return f"crit.out_layers.{i}.bias"
        case ["softmax", "projs", i]:
            return f"crit.out_projs.{i}"
        case ["softmax", kind]:
            return f"crit.{kind}"
    raise AssertionError(f"no counterpart in the original for {name}")


def _candidates(name: str, config: ModelConfig) -> Iterator[str]:
    """The names a parameter may have there: tied ones may be listed under either of theirs."""
    theirs = _their_name(name, config)
    yield theirs
    if not config.not_tied and theirs.startswith("word_emb.emb_layers."):
        yield theirs.replace("word_emb.emb_layers", "crit.out_layers")


def _read(state: Mapping[str, Tensor], name: str, config: ModelConfig) -> Tensor:
    for theirs in _candidates(name, config):
        if theirs in state:
            break
    else:
        raise UsageError(f"{_their_name(name, config)}: missing from the weights; is this a model of another kind?")
    tensor = state[theirs].detach()
    parts = name.split(".")
    if theirs in _STACKED and config.position != "rel_sinusoid":
        require(
            len(tensor) == config.n_layer,
            f"{theirs}: holds {len(tensor)} layers where the configuration asks for {config.n_layer}; give the "
            f"constructor arguments the weights were trained with",
        )
        own = _far_first(tensor, theirs)[int(parts[1])]
        return own.flatten(1) if parts[-1] == "p_RD" else own
    if parts[2:4] in (["attn", "q_net"], ["attn", "k_net"], ["attn", "v_net"]):
        held = _joined(theirs)
        return tensor.chunk(len(held))[held.index(parts[3][0])]
    return tensor.flip(0) if name in _FLIPPED else tensor
