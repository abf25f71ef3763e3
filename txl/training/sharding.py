"""Weights, gradients and optimizer state in shards over the ranks, with PyTorch's `fully_shard`
(FSDP2).

FSDP2 is imported where a model is sharded: it takes half a second.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from txl.config import ModelConfig, require
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks, is_in_shards, local
from txl.runtime.resources import return_freed_memory
from txl.training.config import TrainConfig
from txl.training.init import init_weights
from txl.training.learning import freeze
from txl.training.update_rules import rule_of


def in_shards(config: TrainConfig, ranks: Ranks) -> bool:
    """True if the model is to be sharded; a run that has come down to one process has nothing to
    share out.
    """
    return config.shard and ranks.world > 1


def require_shards(shape: ModelConfig, config: TrainConfig, ranks: Ranks) -> None:
    """Raise `UsageError` if the model is to be sharded and a setting is in the way, which the
    message names.
    """
    if in_shards(config, ranks):
        why = why_not_in_shards(shape, config)
        require(not why, why)


def why_not_in_shards(shape: ModelConfig, config: TrainConfig) -> str:
    """What is in the way of sharding a model; empty: nothing."""
    if shape.reversible:
        return (
            "--shard: --reversible recomputes its layers by a pass that cannot gather weights; drop"
            " one of the two"
        )
    why = rule_of(config).not_in_shards
    if why:
        return f"--shard: --optim {config.optim} {why}"
    return ""


def model_in_shards(
    shape: ModelConfig, config: TrainConfig, ranks: Ranks, dtype: torch.dtype = torch.float32
) -> TransformerXL:
    """A sharded model without values, in memory for this rank's rows only; seeds the generator and
    draws from it as a whole model does. A model with buffers is built whole first, for their
    values.
    """
    rates = {"dropout": config.dropout, "dropatt": config.dropatt}
    torch.manual_seed(config.seed)
    with torch.device("meta"), WholeDraws():
        model = TransformerXL(shape, **rates)
    if any(True for _ in model.buffers()):
        torch.manual_seed(config.seed)
        model = TransformerXL(shape, **rates)
    freeze(model, config.train)
    shard(model.to(dtype), ranks)
    return model


def drawn_in_shards(shape: ModelConfig, config: TrainConfig, ranks: Ranks) -> TransformerXL:
    """A sharded model with the weights that `init_weights` draws from the seed for a whole one."""
    model = model_in_shards(shape, config, ranks)
    with WholeDraws():
        init_weights(model, config)
    return model


def shard(model: TransformerXL, ranks: Ranks) -> None:
    """Give each rank its rows of every parameter; parameters on the device `meta` get memory for
    these, without values.

    A layer is gathered for its own pass only. The softmax, and with it the embedding where they
    share weights, belongs to the root, which stays gathered from the forward pass until `reshard`
    is called: parts of a segment use it before and after the gradient of a memory has passed
    through it. Weights that layers share stay gathered from the forward to the backward pass.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if ranks.device.type == "cpu":
        return_freed_memory()
    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    of_layers = [set(layer.parameters()) for layer in model.layers]
    shared = set()
    for i, mine in enumerate(of_layers):
        for other in of_layers[:i]:
            for p in mine & other:
                shared.add(p)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, ignored_params=shared)
    encodings = [layer.attn.pos for layer in model.layers]
    if shared:
        others = set(model.parameters()) - shared
        fully_shard(encodings, mesh=mesh, ignored_params=others, reshard_after_forward=False)
    if not set(model.word_emb.parameters()) & set(model.softmax.parameters()):
        fully_shard(model.word_emb, mesh=mesh)
    root = fully_shard(model, mesh=mesh, reshard_after_forward=False)
    root.set_reshard_after_backward(False, recurse=False)
    if next(model.parameters()).is_meta:
        model.to_empty(device=ranks.device)
    root.unshard()  # the first to be unsharded becomes the root
    root.reshard()
    if shared:
        model.register_forward_pre_hook(lambda *_: encodings[0].unshard())
    model.is_sharded = True


def reshard(model: TransformerXL) -> None:
    """Free the gathered weights of a sharded model, which do not follow changes of the shards."""
    if not model.is_sharded:
        return
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


class WholeDraws(TorchDispatchMode):
    """Inside this context random numbers for a meta tensor or a shard are drawn for the whole
    tensor on the CPU, and whole values are copied to a shard by its part of them.

    Every rank draws the same, so the generator moves on, and the shards get their values, as in a
    model that is not sharded. One whole tensor is in memory at a time.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            func is torch.ops.aten.copy_.default
            and is_in_shards(args[0])
            and not is_in_shards(args[1])
        ):
            return _with_part_of(args[0], args[1])
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if args and isinstance(args[0], Tensor):
            first = args[0]
        else:
            first = None
        if first is None:
            func(*args, **kwargs | {"device": "cpu"})
            return func(*args, **kwargs)
        drawn = func(torch.empty(first.shape, dtype=first.dtype), *args[1:], **kwargs)
        if is_in_shards(first):
            return _with_part_of(first, drawn)
        return first


def _with_part_of(shard: Tensor, values: Tensor) -> Tensor:
    """A tensor in shards, with this rank's part of whole values that all ranks have."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(shard, DTensor)
    parts = distribute_tensor(values, shard.device_mesh, shard.placements, src_data_rank=None)
    local(shard).copy_(local(parts))
    return shard
