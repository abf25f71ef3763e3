"""Weights of kimiyoung/transformer-xl, in and out."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from txl.config import Context, ModelConfig, UsageError, require
from txl.model import TransformerXL


def from_kimiyoung(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> tuple[TransformerXL, Context]:
    """Build the model and the look-back of a model of kimiyoung/transformer-xl (PyTorch).

    Args:
        state: its parameters by name, as in `named_parameters()` or `state_dict()`; names of tied weights and the
            buffer `pos_emb.inv_freq` may be there or not. Their dtype is kept.
        config: the arguments of its constructor, `MemTransformerLM(...)`.
    Raises:
        UsageError: if a parameter is missing or of the wrong shape, or the model is not of attn_type 0.
    """
    attn_type = config.get("attn_type", 0)
    require(attn_type == 0, f"attn_type {attn_type}: only attn_type 0 can be converted so far")
    model_config = _model_config(config)
    dtype = state["r_w_bias"].dtype if "r_w_bias" in state else torch.get_default_dtype()
    model = TransformerXL(model_config, dropout=config.get("dropout", 0.0), dropatt=config.get("dropatt", 0.0))
    model.to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            theirs = _read(state, name, model_config)
            require(
                theirs.shape == parameter.shape,
                f"{_their_name(name)}: has the shape of {tuple(theirs.shape)} where the configuration "
                f"asks for {tuple(parameter.shape)}; give the constructor arguments the weights were trained with",
            )
            parameter.copy_(theirs)
    context = Context(
        tgt_len=config.get("tgt_len") or Context.tgt_len,
        mem_len=config.get("mem_len") or 0,
        ext_len=config.get("ext_len") or 0,
        same_length=config.get("same_length", False),
        clamp_len=config.get("clamp_len", -1),
    )
    return model, context


def to_kimiyoung(model: TransformerXL, tensors: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The model's parameters under the names and in the layout of kimiyoung/transformer-xl, tied ones once.

    Args:
        tensors: what to export in place of the parameters, by our parameter names: gradients, for one.
    Raises:
        UsageError: if each layer has its own u and v, for which the original has no place.
    """
    require(not model.config.untie_r, "--untie_r: the original has one pair of u and v for all layers")
    ours = dict(model.named_parameters()) if tensors is None else dict(tensors)
    theirs: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        their_name = _their_name(name)
        if name.endswith("attn.q_net.weight"):
            prefix = name.removesuffix("q_net.weight")
            theirs[their_name] = torch.cat([ours[f"{prefix}{x}_net.weight"] for x in "qkv"])
        elif not name.endswith(("k_net.weight", "v_net.weight")):
            theirs[their_name] = tensor.flip(0) if name in _FLIPPED else tensor
    return theirs


_FLIPPED = ("softmax.cluster_weight", "softmax.cluster_bias")  # the original numbers tail clusters from the last one
_IN_LAYER = {
    "attn.q_net": "dec_attn.qkv_net",
    "attn.k_net": "dec_attn.qkv_net",
    "attn.v_net": "dec_attn.qkv_net",
    "attn.o_net": "dec_attn.o_net",
    "attn.pos.r_net": "dec_attn.r_net",
    "attn_norm": "dec_attn.layer_norm",
    "ff.0": "pos_ff.CoreNet.0",
    "ff.3": "pos_ff.CoreNet.3",
    "ff_norm": "pos_ff.layer_norm",
}


def _model_config(config: Mapping[str, Any]) -> ModelConfig:
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
    )


def _their_name(name: str) -> str:
    parts = name.split(".")
    match parts:
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
    theirs = _their_name(name)
    yield theirs
    if not config.not_tied and theirs.startswith("word_emb.emb_layers."):
        yield theirs.replace("word_emb.emb_layers", "crit.out_layers")


def _read(state: Mapping[str, Tensor], name: str, config: ModelConfig) -> Tensor:
    for theirs in _candidates(name, config):
        if theirs in state:
            break
    else:
        raise UsageError(f"{_their_name(name)}: missing from the weights; is this a model of another kind?")
    tensor = state[theirs].detach()
    if "qkv_net" in theirs:
        return tensor.chunk(3)["qkv".index(name.split(".")[3][0])]
    return tensor.flip(0) if name in _FLIPPED else tensor
