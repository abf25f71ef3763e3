"""Constructor arguments of a model of kimiyoung/transformer-xl, from what is given and what its
weights show.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from txl.config import UsageError, require

CONSTRUCTOR = (
    "n_token n_layer n_head d_model d_head d_inner dropout dropatt tie_weight d_embed div_val"
    " tie_projs pre_lnorm tgt_len ext_len mem_len cutoffs adapt_inp same_length attn_type clamp_len"
    " sample_softmax"
).split()
_TRAIN_PY = (
    "data dataset init emb_init init_range emb_init_range init_std proj_init_std optim lr mom"
    " scheduler warmup_step decay_rate lr_min clip clip_nonemb max_step batch_size batch_chunk"
    " eval_tgt_len not_tied tied seed cuda adaptive varlen multi_gpu log_interval eval_interval"
    " work_dir restart restart_dir debug eta_min gpu0_bsz max_eval_steps patience finetune_v2"
    " finetune_v3 fp16 static_loss_scale dynamic_loss_scale n_all_param n_nonemb_param"
).split()


class Published(NamedTuple):
    """What the 2019 train.py takes for `--adaptive`.

    Attributes:
        cutoffs: empty: it knows none for this data set.
        ties_projections: of the clusters after the first.
    """

    cutoffs: tuple[int, ...]
    ties_projections: bool = True


PUBLISHED = {
    "wt103": Published((20_000, 40_000, 200_000)),
    "lm1b": Published((60_000, 100_000, 640_000), ties_projections=False),
}


def constructor_arguments(state: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of the 2019 constructor: what the weights show, then what was given (arguments
    of the constructor, or those that train.py logs), then its defaults. Raises `UsageError` if one
    is unknown, contradicts the weights, or is missing and cannot be read off them.
    """
    arguments = _of_constructor(given)
    for name, value in _shown(state, arguments).items():
        if (said := arguments.get(name)) is not None:
            if isinstance(value, list):
                said = list(said)
            if name == "tie_projs":
                said = _of_each_cluster(said, len(value))
            require(
                said == value,
                f"{name}: {said} is given, but the weights are those of {name} {value}",
            )
        arguments[name] = value
    given_norm = arguments.get("pre_lnorm") is not None
    require(
        given_norm,
        "pre_lnorm: missing, and weights do not show it; give it (the 2019 code's default is"
        " False)",
    )
    lengths = []
    for name in ("tgt_len", "ext_len", "mem_len"):
        lengths.append(arguments.get(name) or 0)
    # of each position at construction
    if "r_emb" in state and sum(lengths) != (n_row := state["r_emb"].shape[1]):
        raise UsageError(
            f"tgt_len, ext_len, mem_len: {lengths} given, r_emb has {n_row} rows; give those of the"
            " training"
        )
    return arguments


def _of_constructor(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the constructor's terms: train.py says `not_tied`, `adaptive` and `dataset`."""
    unknown = sorted(set(given) - {*CONSTRUCTOR, *_TRAIN_PY})
    require(
        not unknown,
        f"{', '.join(unknown)}: no argument of the 2019 model or of its train.py; leave it out",
    )
    arguments = {}
    for name in CONSTRUCTOR:
        if name in given:
            arguments[name] = given[name]
    if arguments.get("d_embed") == -1:
        del arguments["d_embed"]
    says_tied = {}
    for name in ("tie_weight", "tied"):
        if given.get(name) is not None:
            says_tied[name] = given[name]
    if given.get("not_tied") is not None:
        says_tied["not_tied"] = not given["not_tied"]
    require(
        len(set(says_tied.values())) <= 1,
        f"{' and '.join(says_tied)} contradict each other; give one of them",
    )
    if says_tied:
        arguments["tie_weight"] = next(iter(says_tied.values()))
    if "adaptive" in given and arguments.get("cutoffs") is None:
        # train.py's default
        published = PUBLISHED.get(given.get("dataset", "wt103"), Published(()))
        arguments["cutoffs"] = cutoffs = list(published.cutoffs) if given["adaptive"] else []
        if arguments.get("tie_projs") is None:
            arguments["tie_projs"] = [False] + [published.ties_projections] * len(cutoffs)
    return arguments


def _shown(state: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """What shapes, names and equal values of the weights decide."""
    table = "word_emb.emb_layers.{}.weight"
    out = "layers.0.dec_attn.o_net.weight"
    for name in (table.format(0), out, "layers.0.pos_ff.CoreNet.0.weight"):
        require(
            name in state, f"{name}: missing from the weights; is this a model of another kind?"
        )
    tables = []
    for i in range(_count(state, r"word_emb\.emb_layers\.(\d+)\.")):
        tables.append(state[table.format(i)])
    n_layer = _count(state, r"layers\.(\d+)\.")
    shown: dict[str, Any] = {
        "n_token": sum(len(t) for t in tables),
        "d_embed": tables[0].shape[1],
        "d_model": state[out].shape[0],
        "d_inner": len(state["layers.0.pos_ff.CoreNet.0.weight"]),
        "n_layer": n_layer,
        "attn_type": _attn_type(state),
    }
    shown |= _heads(state, given, width=state[out].shape[1], attn_type=shown["attn_type"])
    shown["div_val"] = _div_val(
        state, given, [t.shape[1] for t in tables], d_model=shown["d_model"]
    )
    shown["cutoffs"] = _cutoffs(state, given, [len(t) for t in tables])
    twins = {}
    for i in range(len(tables)):
        twins[table.format(i)] = f"crit.out_layers.{i}.weight"
    if any(
        name in state and not torch.equal(state[name], state[twin]) for twin, name in twins.items()
    ):
        shown["tie_weight"] = False
    elif not any(name in state for name in twins.values()) or given.get("tie_weight") is None:
        shown["tie_weight"] = True
    shown["tie_projs"] = _tie_projs(
        state, given, len(shown["cutoffs"]) + 1, div_val=shown["div_val"]
    )
    return shown


def _count(state: Mapping[str, Tensor], pattern: str) -> int:
    found = {int(match[1]) for name in state if (match := re.match(pattern, name))}
    require(
        found == set(range(len(found))),
        f"{pattern}: numbers are missing from the weights: {sorted(found)}",
    )
    return len(found)


def _attn_type(state: Mapping[str, Tensor]) -> int:
    if "layers.0.dec_attn.r_net.weight" in state:
        return 0
    if "r_emb" in state:
        if "r_bias" in state:
            return 1
        return 3
    return 2


def _heads(
    state: Mapping[str, Tensor], given: Mapping[str, Any], *, width: int, attn_type: int
) -> dict[str, int]:
    name = {0: "r_w_bias", 1: "r_w_bias", 3: "r_emb"}.get(attn_type)
    # NVIDIA's r_emb has no axis of heads
    if name is None or (attn_type == 3 and state[name].dim() == 3):
        n_head = given.get("n_head")
        if n_head is None:
            raise UsageError(
                f"n_head: missing, and weights of attn_type {attn_type} do not show it; give it"
            )
        require(
            n_head > 0 and width % n_head == 0,
            f"n_head: {n_head} does not divide the {width} columns of o_net",
        )
        return {"d_head": width // n_head}
    require(name in state, f"{name}: missing from the weights; is this a model of another kind?")
    n_head, d_head = state[name].shape[-2:]
    return {"n_head": n_head, "d_head": d_head}


def _div_val(
    state: Mapping[str, Tensor], given: Mapping[str, Any], widths: list[int], *, d_model: int
) -> int:
    said = given.get("div_val")
    if len(widths) == 1:
        if "word_emb.emb_projs.0" not in state or "crit.cluster_weight" in state:
            return 1  # above 1 each cluster has a table, and each table a projection
        # of 1 has a projection only where a width asks for it
        if widths[0] == d_model:
            least = 2
        else:
            least = 1
        return max(least, said or 1)
    fitting = []
    for v in range(2, widths[0] + 2):
        if [widths[0] // v**i for i in range(len(widths))] == widths:
            fitting.append(v)
    require(bool(fitting), f"word_emb.emb_layers: widths {widths} are of no div_val")
    if said is not None and said in fitting:
        return said
    return fitting[0]


def _cutoffs(state: Mapping[str, Tensor], given: Mapping[str, Any], sizes: list[int]) -> list[int]:
    if len(sizes) > 1:
        return list(accumulate(sizes))[:-1]
    if "crit.cluster_weight" in state:
        n_tail = len(state["crit.cluster_weight"])
    else:
        n_tail = 0
    if not n_tail:
        return []
    said: list[int] = list(given.get("cutoffs") or ())
    require(
        len(said) == n_tail,
        f"cutoffs: {said} are given, the weights have {n_tail} (div_val 1); give them all",
    )
    return said


def _of_each_cluster(is_tied: Sequence[Any], n_cluster: int) -> list[bool]:
    """tie_projs of so many clusters: there it may name fewer, of which the others are not tied, as
    by default.
    """
    named = [bool(tied) for tied in is_tied[:n_cluster]]
    return named + [False] * (n_cluster - len(named))


def _tie_projs(
    state: Mapping[str, Tensor], given: Mapping[str, Any], n_cluster: int, *, div_val: int
) -> list[bool]:
    said = _of_each_cluster(given.get("tie_projs") or (), n_cluster)
    if "word_emb.emb_projs.0" not in state:
        return said  # there are none
    is_tied = []
    for i in range(n_cluster):
        ours = f"crit.out_projs.{i}"
        theirs = f"word_emb.emb_projs.{0 if div_val == 1 else i}"
        if ours not in state:
            is_tied.append(True)
        elif torch.equal(state[ours], state[theirs]):
            is_tied.append(said[i] if given.get("tie_projs") is not None else True)
        else:
            is_tied.append(False)
    return is_tied
