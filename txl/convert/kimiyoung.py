"""Weights of kimiyoung/transformer-xl, in and out: names and layout of its parameters, beside ours."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from txl.config import Context, ModelConfig, UsageError, require
from txl.convert.kimiyoung_arguments import constructor_arguments
from txl.convert.tensor_files import widest
from txl.model.attention import RelativeSoftmax
from txl.model.transformer import TransformerXL

_SIZES = (
    "n_token",
    "n_layer",
    "n_head",
    "d_model",
    "d_head",
    "d_inner",
    "d_embed",
    "div_val",
    "pre_lnorm",
)


def from_kimiyoung(
    state: Mapping[str, Tensor], config: Mapping[str, Any]
) -> tuple[TransformerXL, Context]:
    """Build the model and the context of a model of kimiyoung/transformer-xl (PyTorch).

    Sizes, clusters, tied weights and the attention type are read off the weights.

    Args:
        state: its `state_dict()` or `dict(named_parameters())`; names that DataParallel or
            torch.compile prefixed are accepted. Their dtype is kept.
        config: the arguments of its constructor, or of train.py as it logged them. `pre_lnorm` must
            be among them; `cutoffs` where div_val is 1, and `n_head` where attn_type is 2, since
            weights do not show these.
    Raises:
        UsageError: if an argument is unknown, missing, or contradicts the weights; if a tensor is
            missing, unknown, of the wrong shape or dtype, or not finite.
    """
    state = {unwrapped(name): tensor for name, tensor in state.items()}
    arguments = constructor_arguments(state, config)
    lengths = {}
    for name in ("tgt_len", "ext_len", "mem_len"):
        lengths[name] = arguments.get(name) or 0
    model_config = ModelConfig(
        **{name: arguments[name] for name in _SIZES},
        adaptive=bool(arguments["cutoffs"]),
        cutoffs=tuple(arguments["cutoffs"]),
        not_tied=not arguments["tie_weight"],
        tie_projs=tuple(arguments["tie_projs"]),
        position=ATTN_TYPES[arguments["attn_type"]],
        n_position=state["r_emb"].shape[1] if "r_emb" in state else sum(lengths.values()) or None,
        count_back=arguments["attn_type"] in (2, 3),
    )
    rates = {name: arguments.get(name) or 0.0 for name in RATES}
    model = TransformerXL(model_config, **rates)
    fill(model, state, to_ours, besides=[INV_FREQ, *tied_names(model_config)])
    if INV_FREQ in state:
        own = inv_freq(model_config.d_model)
        theirs = state[INV_FREQ].float().cpu()
        same = theirs.shape == own.shape and torch.allclose(theirs, own, rtol=1e-2)
        require(
            same,
            f"{INV_FREQ}: other frequencies than the 2019 code's; this is a model of another kind",
        )
    read: dict[str, Any] = lengths | {"tgt_len": lengths["tgt_len"] or Context.tgt_len}
    context = Context(
        **read,
        same_length=arguments.get("same_length", False),
        # 3 never looked at it
        clamp_len=-1 if arguments["attn_type"] == 3 else arguments.get("clamp_len", -1),
    )
    return model, context


def to_kimiyoung(model: TransformerXL) -> dict[str, Tensor]:
    """The state dict of the same model of kimiyoung/transformer-xl, which loads it with
    `strict=True`. Raises `UsageError` if it has no such model: another position encoding, u and v
    in each layer of its first one, positions that count from the start, another attention rule,
    activation or recurrence.
    """
    theirs = parameters_as_kimiyoung(model, dict(model.named_parameters()))
    theirs |= {name: theirs[first] for name, first in tied_names(model.config).items()}
    if model.config.position in ("rel_sinusoid", "sinusoid_input"):
        theirs[INV_FREQ] = inv_freq(model.config.d_model).to(theirs["word_emb.emb_layers.0.weight"])
    return {name: tensor.detach() for name, tensor in theirs.items()}


def arguments_for_kimiyoung(model: TransformerXL, context: Context) -> dict[str, Any]:
    """The constructor's arguments of the same model of kimiyoung/transformer-xl. Raises
    `UsageError` if its table of positions has no place for the memory that `same_length` needs
    there.
    """
    config = model.config
    return {
        **{name: getattr(config, name) for name in _SIZES},
        **_lengths_for_kimiyoung(config, context),
        **rates_of(model),
        "tie_weight": not config.not_tied,
        "tie_projs": [
            *config.tie_projs,
            *(False for _ in config.cluster_sizes[len(config.tie_projs) :]),
        ],
        "cutoffs": list(config.cutoffs),
        "same_length": context.same_length,
        "clamp_len": context.clamp_len,
        "attn_type": ATTN_TYPES.index(config.position),
    }


def _lengths_for_kimiyoung(config: ModelConfig, context: Context) -> dict[str, int]:
    """The three lengths for the constructor, which makes tables of positions as
    long as their sum.
    """
    lengths = {}
    for name in ("tgt_len", "ext_len", "mem_len"):
        lengths[name] = getattr(context, name)
    n_row = config.own.get("n_position")
    mem_len = context.mem_len
    if config.position not in TABLES or n_row is None or sum(lengths.values()) == n_row:
        return lengths
    if n_row > mem_len:
        return {"tgt_len": n_row - mem_len, "ext_len": 0, "mem_len": mem_len}
    fits = (
        f"--same_length there needs a memory, and --mem_len {mem_len} leaves no row of --n_position"
        f" {n_row}"
    )
    require(
        not context.same_length,
        f"{fits} for new tokens; use --to txl, or train with more positions",
    )
    return {"tgt_len": n_row, "ext_len": 0, "mem_len": 0}


def parameters_as_kimiyoung(
    model: TransformerXL, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Tensors by our parameter names (weights, gradients) under their names and in their layout,
    tied ones once. Raises as `to_kimiyoung`.
    """
    require_exportable(model.config)
    return to_theirs(tensors, model.config)


ATTN_TYPES = ("rel_sinusoid", "learned_relative", "sinusoid_input", "learned_per_layer")
"""Our position encodings by their `attn_type` in the 2019 code."""

TABLES = ("learned_relative", "learned_per_layer")
"""Those with a row for each position."""

RATES = ("dropout", "dropatt")
"""The rates of dropout in the configurations of all these programs."""

INV_FREQ = "pos_emb.inv_freq"
"""The buffer of frequencies that models with sinusoids save."""
_IN_LAYER = {
    "attn.o_net": "dec_attn.o_net",
    "attn.pos.r_net": "dec_attn.r_net",
    "attn_norm": "dec_attn.layer_norm",
    "ff.0": "pos_ff.CoreNet.0",
    "ff.3": "pos_ff.CoreNet.3",
    "ff_norm": "pos_ff.layer_norm",
}
_OF_ALL_LAYERS = {
    "r_RNH": "r_emb",
    "p_RD": "r_emb",
    "b_RN": "r_bias",
    "u_NH": "r_w_bias",
    "v_NH": "r_r_bias",
}
# theirs number tail clusters from the last one
_FLIPPED = ("softmax.cluster_weight", "softmax.cluster_bias")
_ALL_LAYERS = ("r_emb", "r_bias", "r_w_bias")  # attn_type 1 and 3: one tensor for all layers


def unwrapped(name: str) -> str:
    """A tensor's name without what torch.compile and DataParallel put into it."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def fill(
    model: TransformerXL,
    state: Mapping[str, Tensor],
    tensor_for: Callable[[str, Mapping[str, Tensor], ModelConfig], tuple[str, Tensor]],
    *,
    besides: Collection[str],
) -> None:
    """Give a model the weights of a state dict of another program, in the dtype that holds all.

    Args:
        tensor_for: of the name of one of our parameters: the name there, and the tensor in our
            layout.
        besides: names that may be there too.
    Raises:
        UsageError: if a tensor is missing, left over, of another shape, or not finite.
    """
    for name, tensor in state.items():
        good = tensor.is_floating_point() and bool(tensor.isfinite().all())
        require(good, f"{name}: not a finite floating-point tensor; take another checkpoint")
    table = "word_emb.emb_layers.0.weight"
    used = {*besides}
    require(table in state, f"{table}: missing from the weights; is this a model of another kind?")
    model.to(widest(state[name] for name in set(state) - used))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            key, tensor = tensor_for(name, state, model.config)
            used.add(key)
            has = tuple(tensor.shape)
            asked = tuple(parameter.shape)
            require(
                has == asked,
                f"{key}: has the shape of {has}; the configuration, which must fit, asks for"
                f" {asked}",
            )
            parameter.copy_(tensor)
    left = sorted(set(state) - used)
    require(
        not left, f"{', '.join(left[:5])}: no weights of the model that the configuration describes"
    )


def their_name(name: str, config: ModelConfig) -> str:
    """The name of one of our parameters in the 2019 code."""
    match name.split("."):
        case ["layers", layer, "attn", "q_net" | "k_net" | "v_net" as net, kind]:
            if not config.own.get("count_back", False):
                joined = "qkv_net"
            elif net == "q_net":
                joined = "q_net"
            else:
                joined = "kv_net"
            return f"layers.{layer}.dec_attn.{joined}.{kind}"
        case ["layers", _, "attn", "pos", kind] if kind in _OF_ALL_LAYERS:
            return _OF_ALL_LAYERS[kind]
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
    if config.div_val == 1:
        n_table = 1
    else:
        n_table = len(config.cluster_sizes)
    names = {}
    if not config.not_tied:
        for i in range(n_table):
            names[f"crit.out_layers.{i}.weight"] = f"word_emb.emb_layers.{i}.weight"
    if config.div_val > 1 or config.d_embed != config.d_model:
        for i, is_tied in zip(range(len(config.cluster_sizes)), config.tie_projs, strict=False):
            if is_tied:
                names[f"crit.out_projs.{i}"] = (
                    f"word_emb.emb_projs.{0 if config.div_val == 1 else i}"
                )
    return names


def to_ours(name: str, state: Mapping[str, Tensor], config: ModelConfig) -> tuple[str, Tensor]:
    """The name of one of our parameters there, and its tensor in our layout. Raises `UsageError` if
    their tensor is missing, or of another shape than the configuration asks for.
    """
    theirs = their_name(name, config)
    if theirs not in state:
        raise UsageError(f"{theirs}: missing from the weights; is this a model of another kind?")
    tensor = state[theirs]
    parts = name.split(".")
    if theirs in _ALL_LAYERS and config.position != "rel_sinusoid":
        tensor = _far_first(tensor, theirs)[int(parts[1])]
        return theirs, tensor.flatten(1) if parts[-1] == "p_RD" else tensor
    if parts[2:4] in (["attn", "q_net"], ["attn", "k_net"], ["attn", "v_net"]):
        held = _joined(theirs)
        return theirs, tensor.chunk(len(held))[held.index(parts[3][0])]
    return theirs, tensor.flip(0) if name in _FLIPPED else tensor


def to_theirs(ours: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our tensors, by our parameter names, under their names and in their
    layout; tied ones once.
    """
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
            stacked = torch.stack(
                [ours[f"layers.{layer}.{own}"] for layer in range(config.n_layer)]
            )
            if new == "r_emb" and stacked.dim() == 3:
                stacked = stacked.unflatten(2, (config.n_head, config.d_head))
            theirs[new] = _far_first(stacked, new)
        else:
            theirs[new] = tensor.flip(0) if name in _FLIPPED else tensor
    return theirs


def require_exportable(config: ModelConfig) -> None:
    """Raise `UsageError` if the 2019 code has no model of this kind."""
    flag = f"--position {config.position}"
    has = ", ".join(ATTN_TYPES)
    require(
        config.position in ATTN_TYPES, f"{flag}: the original has no such encoding; it has {has}"
    )
    shared = config.position != "rel_sinusoid" or not config.untie_r
    require(shared, "--untie_r: the original has one pair of u and v for all layers")
    counted = config.own.get("count_back", False) or config.position not in (
        "sinusoid_input",
        "learned_per_layer",
    )
    require(
        counted,
        f"{flag}: the original counts positions back from the last token, this model does not",
    )
    width = config.n_head * config.d_head
    # NVIDIA's model has no such limit
    by_heads = config.position != "learned_per_layer" or width == config.d_model
    require(
        by_heads,
        f"--d_model {config.d_model}: in attn_type 3 of the original it is n_head * d_head"
        f" ({width})",
    )
    plain_norm = config.layer_norm_epsilon == ModelConfig.layer_norm_epsilon
    only = ModelConfig.layer_norm_epsilon
    require(
        plain_norm,
        f"layer_norm_epsilon {config.layer_norm_epsilon}: the original has no such model, only"
        f" {only}",
    )
    require_plain(config, "the original")


def require_plain(config: ModelConfig, program: str) -> None:
    """Raise `UsageError` if a model has layers that neither the 2019 code nor Hugging Face has."""
    plain: dict[str, object] = {
        "attention": "softmax",
        "activation": "relu",
        "gate": "none",
        "recurrence": "below",
    }
    plain |= {"reversible": False, "memory": "fifo", "norm": "layer", "final_norm": False}
    plain |= {"scale_embedding": True, "softmax_bias": True, "ff_bias": True, "n_kv_head": None}
    plain |= {"qkv_bias": False, "o_bias": False, "qk_norm": False, "parallel": False}
    for name, only in plain.items():
        value = getattr(config, name)
        require(value == only, f"--{name} {value}: {program} has no such model, only {only}")


def _joined(name: str) -> str:
    """Which projections one of their matrices holds, one below the other."""
    return name.split(".")[-2].removesuffix("_net")


def _far_first(table: Tensor, name: str) -> Tensor:
    """Tables of all layers with their rows reversed: theirs begin with the farthest distance."""
    if name == "r_w_bias":
        return table
    return table.flip(1)


def rates_of(model: TransformerXL) -> dict[str, float]:
    """The rates of dropout that a model was built with."""
    rule = model.layers[0].attn.rule
    return {
        "dropout": model.drop.p,
        "dropatt": rule.drop.p if isinstance(rule, RelativeSoftmax) else 0.0,
    }


def inv_freq(d_model: int) -> Tensor:
    """`INV_FREQ` of a model, (d_model / 2,)."""
    return 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
