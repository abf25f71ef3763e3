"""Names and layout of parameters in kimiyoung/transformer-xl, beside ours."""

from collections.abc import Mapping

import torch
from torch import Tensor

from txl.config import ModelConfig, UsageError, require

ATTN_TYPES = ("rel_sinusoid", "learned_relative", "sinusoid_input", "learned_per_layer")
"""Our position encodings by their `attn_type` in the 2019 code."""

_IN_LAYER = {
    "attn.o_net": "dec_attn.o_net",
    "attn.pos.r_net": "dec_attn.r_net",
    "attn_norm": "dec_attn.layer_norm",
    "ff.0": "pos_ff.CoreNet.0",
    "ff.3": "pos_ff.CoreNet.3",
    "ff_norm": "pos_ff.layer_norm",
}
_FLIPPED = ("softmax.cluster_weight", "softmax.cluster_bias")  # theirs number tail clusters from the last one
_ALL_LAYERS = ("r_emb", "r_bias", "r_w_bias")  # attn_type 1 and 3: one tensor for all layers


def their_name(name: str, config: ModelConfig) -> str:
    """The name of one of our parameters in the 2019 code."""
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
    raise AssertionError(f"no counterpart in the 2019 code for {name}")


def tied_names(config: ModelConfig) -> dict[str, str]:
    """Second names of tied tensors in a state dict of the 2019 code, each with the first."""
    n_table = 1 if config.div_val == 1 else len(config.cluster_sizes)
    names = {}
    if not config.not_tied:
        names |= {f"crit.out_layers.{i}.weight": f"word_emb.emb_layers.{i}.weight" for i in range(n_table)}
    if config.div_val > 1 or config.d_embed != config.d_model:
        for i, is_tied in zip(range(len(config.cluster_sizes)), config.tie_projs, strict=False):
            if is_tied:
                names[f"crit.out_projs.{i}"] = f"word_emb.emb_projs.{0 if config.div_val == 1 else i}"
    return names


def to_ours(state: Mapping[str, Tensor], name: str, config: ModelConfig) -> Tensor:
    """Our parameter, taken from their tensors.

    Raises:
        UsageError: if their tensor is missing, or of another shape than the configuration asks for.
    """
    theirs = their_name(name, config)
    if theirs not in state:
        raise UsageError(f"{theirs}: missing from the weights; is this a model of another kind?")
    tensor = state[theirs]
    parts = name.split(".")
    if theirs in _ALL_LAYERS and config.position != "rel_sinusoid":
        tensor = _far_first(tensor, theirs)[int(parts[1])]
        return tensor.flatten(1) if parts[-1] == "p_RD" else tensor
    if parts[2:4] in (["attn", "q_net"], ["attn", "k_net"], ["attn", "v_net"]):
        held = _joined(theirs)
        return tensor.chunk(len(held))[held.index(parts[3][0])]
    return tensor.flip(0) if name in _FLIPPED else tensor


def to_theirs(ours: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our tensors, by our parameter names, under their names and in their layout; tied ones once."""
    theirs: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        new = their_name(name, config)
        if new in theirs:
            continue
        if name.endswith(("attn.q_net.weight", "attn.k_net.weight")):
            prefix = name[: -len("q_net.weight")]
            theirs[new] = torch.cat([ours[f"{prefix}{x}_net.weight"] for x in _joined(new)])
        elif new in _ALL_LAYERS and config.position != "rel_sinusoid":
            own = name.removeprefix("layers.0.")
            stacked = torch.stack([ours[f"layers.{layer}.{own}"] for layer in range(config.n_layer)])
            if new == "r_emb":
                stacked = stacked.unflatten(2, (config.n_head, config.d_head)) if stacked.dim() == 3 else stacked
            theirs[new] = _far_first(stacked, new)
        else:
            theirs[new] = tensor.flip(0) if name in _FLIPPED else tensor
    return theirs


def require_exportable(config: ModelConfig) -> None:
    """Raise `UsageError` if the 2019 code has no model of this kind."""
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
    for name, default in (("attention", "softmax"), ("activation", "relu"), ("recurrence", "below")):
        value = getattr(config, name)
        require(value == default, f"--{name} {value}: the original has no such model")
    require(not config.reversible, "--reversible: the original has no such model")


def _joined(name: str) -> str:
    """Which projections one of their matrices holds, one below the other."""
    return name.split(".")[-2].removesuffix("_net")


def _far_first(table: Tensor, name: str) -> Tensor:
    """Tables of all layers with their rows reversed: theirs begin with the farthest distance."""
    return table if name == "r_w_bias" else table.flip(1)


def inv_freq(d_model: int) -> Tensor:
    """The buffer of frequencies that each model of theirs saves."""
    return 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
