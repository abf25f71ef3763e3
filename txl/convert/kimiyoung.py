"""Weights of kimiyoung/transformer-xl, in and out."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from txl.config import Context, ModelConfig, require
from txl.convert.kimiyoung_arguments import constructor_arguments
from txl.convert.kimiyoung_names import (
    ATTN_TYPES,
    INV_FREQ,
    RATES,
    TABLES,
    fill,
    inv_freq,
    rates_of,
    require_exportable,
    tied_names,
    to_ours,
    to_theirs,
    unwrapped,
)
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
