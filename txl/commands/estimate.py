"""Estimate what a training takes on many GPUs, from the flags of train.py; neither text nor GPU is
needed:

txl estimate --gpus 64 --gpu h100 --dataset wt103 --adaptive --n_layer 18 --d_model 1024 ...
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, unset_fake_temporarily

from txl.attention_rules import use_attention
from txl.cli.flags import Typed, read_flags
from txl.commands.settings import AUTO, Shape, new_settings, with_batch_size
from txl.commands.train import MOST_USED
from txl.config import Context, ModelConfig, build, require
from txl.data_utils.bytes import ALL_BYTES
from txl.data_utils.corpus import DataConfig
from txl.data_utils.subwords import DEFAULT_SIZE
from txl.model.transformer import TransformerXL
from txl.ops.rel_attention import resolved
from txl.runtime.distributed import Ranks
from txl.runtime.log import print_line
from txl.runtime.outputs import inputs_of, json_kind, require_outputs, write_json
from txl.training.config import TrainConfig
from txl.training.learning import freeze
from txl.training.plan import ClusterConfig, Device, Plan, checkpoint_bytes, plan
from txl.training.run import worlds_that_fit
from txl.training.sharding import why_not_in_shards

WORDS = {
    "wt103": 267_735,
    "wt2": 33_278,
    "ptb": 10_000,
    "lm1b": 793_471,
    "enwik8": 204,
    "text8": 27,
    "bpe": DEFAULT_SIZE,
    "bytes": len(ALL_BYTES),
}
"""Sizes of vocabularies that are known without the text: those of the published data sets, and
defaults.
"""
KINDS = {"DDP": False, "shards": True}
RESULT = json_kind(
    "txl estimate",
    ("parameters", "checkpoint", "limit", "batch_size", "device"),
    ("notes", *KINDS),
)


def main(argv: Sequence[str]) -> int:
    configs = (ClusterConfig, DataConfig, TrainConfig, ModelConfig, Context)
    first = ("gpus", "gpu", "mfu", "json", *MOST_USED)
    typed = read_flags(argv, *configs, description=__doc__ or "", first=first, presets="train")
    for name in ("init_from", "resume"):
        require(
            name not in typed, f"--{name}: an estimate reads no model; give the flags of its shape"
        )
    cluster = build(ClusterConfig, typed)
    require_outputs({"--json": (cluster.json, RESULT)}, inputs_of(typed, "json"))
    ranks = Ranks(0, cluster.gpus, torch.device("cuda"))
    typed, notes = with_fitting_batch(typed, ranks)
    config, context, data, asked, *_ = new_settings(typed, ranks)
    dtype = torch.bfloat16 if config.dtype == "auto" else getattr(torch, config.dtype)
    shape = shape_with_words(asked, cluster.n_token or known_size(data), data)
    kinds = dict(KINDS)
    if why := why_not_in_shards(shape, config):
        del kinds["shards"]
        notes.append(f"No shards. {why}")

    def estimated() -> tuple[dict[str, Plan], int, int]:
        model = estimated_model(shape, config, context, dtype)
        plans = {}
        for name, shard in kinds.items():
            plans[name] = plan(model, config, context, cluster, dtype, shard=shard)
        return (
            plans,
            checkpoint_bytes(model, config, context),
            sum(p.numel() for p in model.parameters()),
        )

    try:
        with FakeTensorMode():  # weights without memory
            plans, stored, n_weight = estimated()
    except DataDependentOutputException:  # an encoding that is integrated numerically needs values
        plans, stored, n_weight = estimated()
    device = cluster.device(dtype, tf32=config.tf32)
    verdict = describe_limit(plans, device, config, n_gpu=cluster.gpus)
    print_line(
        f"| {n_weight:,} parameters, {config.batch_size} streams of {context.tgt_len} tokens on"
        f" {cluster.gpus} x {cluster.gpu} ({device.tflops:g} TFLOP/s, {cluster.mfu:.0%} of them"
        " used)"
    )
    rows = figures(plans, config, context, stored)
    _print_rows(rows, [*notes, verdict])
    if cluster.json:
        record = {"parameters": n_weight, "checkpoint": stored, "limit": verdict, "notes": notes}
        record |= {"batch_size": config.batch_size, "device": device._asdict()}
        tokens = config.batch_size * context.tgt_len
        write_json(Path(cluster.json), record | _recorded(plans, tokens), RESULT)
    return 0


def shape_with_words(asked: Any, n_token: int | None, data: DataConfig) -> ModelConfig:
    """The architecture with so many words. Raises `UsageError` if it needs the text."""
    require(
        n_token is not None,
        f"--dataset {data.dataset}: its vocabulary is in its text, by --min_freq too, or in the file"
        " of --tokenizer; give its size with --n_token",
    )
    assert isinstance(asked, Shape)
    require(
        asked.cutoffs != AUTO, "--cutoffs auto: needs the text; give the ranks that train.py prints"
    )
    return asked.of_words(n_token or 0, data.dataset)


def known_size(data: DataConfig) -> int | None:
    """The size of a vocabulary that is known without the text; None: it is not."""
    if data.tokenizer is not None or data.min_freq > 0:
        return None
    n_token = data.vocab_size or WORDS.get(data.dataset)
    if n_token is not None and data.max_size is not None:
        n_token = min(n_token, data.max_size + 1)  # and <eos>
    return n_token


def _print_rows(rows: Mapping[str, Sequence[str]], notes: Sequence[str]) -> None:
    for name, values in rows.items():
        print_line(f"| {name:<34}" + "".join(f"{value:>14}" for value in values))
    for line in notes:
        print_line(f"| {line}")


def _recorded(plans: Mapping[str, Plan], tokens: int) -> dict[str, Any]:
    """What --json has of each kind of parallelism; `tokens` are those of a step."""
    record = {}
    for name, plan_of_kind in plans.items():
        record[name] = dataclasses.asdict(plan_of_kind)
        record[name] |= {"peak": plan_of_kind.peak, "tok_per_s": tokens / plan_of_kind.step_s}
    return record


def with_fitting_batch(typed: Typed, ranks: Ranks) -> tuple[Typed, list[str]]:
    """The flags with a --batch_size that divides into the devices, and what is to be said if that
    is another one.
    """
    typed = with_batch_size(typed, ranks)
    asked = build(TrainConfig, typed)
    parts = ranks.world * asked.batch_chunk
    if asked.batch_size % parts == 0:
        return typed, []
    batch_size = -(-asked.batch_size // parts) * parts
    if asked.batch_chunk > 1:
        chunks = f" times --batch_chunk {asked.batch_chunk}"
    else:
        chunks = ""
    fit = worlds_that_fit(asked, ranks.world)
    note = (
        f"The batch: --batch_size {asked.batch_size} does not divide into {ranks.world}"
        f" processes{chunks}{f', which can be {fit}' if fit else ''}. These figures are for"
        f" --batch_size {batch_size}."
    )
    return {**typed, "batch_size": batch_size}, [note]


def estimated_model(
    shape: ModelConfig, config: TrainConfig, context: Context, dtype: torch.dtype
) -> TransformerXL:
    """The model on the CPU, with the attention that it uses on a GPU. Raises `UsageError` if nothing
    of it would learn.
    """
    n_key = context.mem_len + context.tgt_len
    by_row = config.reset == "document"
    gpu = torch.device("cuda")
    impl = resolved(
        config.attn_impl,
        gpu,
        dtype,
        d_head=shape.d_head,
        n_key=n_key,
        needs_grad=True,
        by_row=by_row,
    )
    if impl == "fused":
        impl = "blockwise"  # which keeps the same for the backward pass
    # blockwise draws its dropout from a seed, which fake tensors cannot make
    model = TransformerXL(
        shape, dropout=config.dropout, dropatt=0.0 if impl == "blockwise" else config.dropatt
    )
    with unset_fake_temporarily():  # a refusal names memories with weights, which it builds
        freeze(model, config.train)
    use_attention(model, impl)
    return model


def figures(
    plans: dict[str, Plan], config: TrainConfig, context: Context, stored: int
) -> dict[str, list[str]]:
    """The table: {name of a row: a cell for each plan}, the first row with their names."""
    some = list(plans.values())
    rows = {"": list(plans)}
    for purpose in dict.fromkeys(name for one in some for name in one.memory):
        rows[f"{purpose}, GiB a GPU"] = [
            f"{one.memory.get(purpose, 0) / 2**30:.2f}" for one in some
        ]
    rows["memory in all, GiB a GPU"] = [f"{one.peak / 2**30:.2f}" for one in some]
    rows["sent, GB a step and GPU"] = [f"{one.sent / 1e9:.3f}" for one in some]
    rows["checkpoint, GB"] = [f"{stored / 1e9:.2f}"] * len(some)
    for name, field in (
        ("computing", "compute_s"),
        ("sending", "send_s"),
        ("launching", "launch_s"),
    ):
        rows[f"{name}, ms a step"] = [f"{1000 * getattr(one, field):.1f}" for one in some]
    rows["step, ms"] = [f"{1000 * one.step_s:.1f}" for one in some]
    rows["tokens per second"] = [
        f"{config.batch_size * context.tgt_len / one.step_s:,.0f}" for one in some
    ]
    rows[f"hours for {config.max_step} steps"] = [
        f"{one.step_s * config.max_step / 3600:,.1f}" for one in some
    ]
    return rows


def describe_limit(
    plans: dict[str, Plan], device: Device, config: TrainConfig, *, n_gpu: int
) -> str:
    """What limits the training, and what helps, in a sentence."""
    ddp = plans["DDP"]
    shards = plans.get("shards", ddp)
    if min(ddp.peak, shards.peak) > device.gib * 2**30:
        needed = f"{ddp.peak / 2**30:.1f}"
        if "shards" in plans:
            needed = f"{shards.peak / 2**30:.1f} with --shard, {needed} without"
        return (
            f"Memory is the limit: a GPU has {device.gib:g} GiB and needs {needed}; try --recompute,"
            " --batch_chunk, --swap_mem or more GPUs."
        )
    fewer_launches = "--compile"
    if n_gpu == 1:
        fewer_launches = "--compile or --cuda_graph"
    fits = ddp.peak <= device.gib * 2**30
    if fits:
        used = ddp
    else:
        used = shards
    ms = {}
    for name, value in vars(used).items():
        if name.endswith("_s"):
            ms[name] = f"{1000 * value:.1f} ms"
    if fits:
        memory = ""
    else:
        memory = (
            f"{ddp.peak / 2**30:.1f} of {device.gib:g} GiB would be needed without --shard; with"
            " it, "
        )
    said = {
        "launches": (
            f"launches are the limit: a step starts kernels for {ms['launch_s']} and computes for "
            f"{ms['compute_s']}; give each GPU more streams, or try {fewer_launches}."
        ),
        "communication": (
            f"communication is the limit: a step sends for {ms['send_s']} and computes for "
            f"{ms['compute_s']}; give each GPU more streams, or use fewer GPUs."
        ),
        "computation": (
            f"computation is the limit: a step sends for {ms['send_s']} while it computes for "
            f"{ms['compute_s']}; more GPUs make it faster."
        ),
    }[used.limit]
    if memory:
        return memory + said
    return said[0].upper() + said[1:]
