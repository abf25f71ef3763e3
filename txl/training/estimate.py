"""Estimates of a training step: memory and floating-point operations."""

import dataclasses
import math
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from txl.config import Context, ModelConfig, require
from txl.memory import full_memory, n_kept_at_most
from txl.model.autocast import autocast
from txl.model.layer import run_layers
from txl.model.memory import Reading, State
from txl.model.parts import build_layer, build_position_encodings
from txl.model.sizes import model_without_values
from txl.model.span import Span
from txl.model.streams import Memory
from txl.model.transformer import TransformerXL
from txl.ops.linear import linear
from txl.ops.linear_cross_entropy import BUDGET
from txl.ops.lookup import Room
from txl.registry import ATTENTION_RULES
from txl.runtime.distributed import Ranks, from_environment
from txl.runtime.resources import available_bytes, resident_bytes
from txl.stacks.reversible import compute_in_chunks
from txl.training.config import TrainConfig
from txl.training.learning import learning_parameters
from txl.training.optim import tensors_kept
from txl.training.repeated import is_recorded
from txl.training.update_rules import rule_of

_LIBRARIES = 40 * 2**20
"""Workspace of matrix product libraries on a CPU, in bytes."""


def training_bytes(
    model: TransformerXL, config: TrainConfig, context: Context, ranks: Ranks, dtype: torch.dtype
) -> dict[str, int]:
    """An estimate of the peak memory of a process in a training step, in bytes by purpose.

    Args:
        context: with no length beyond the text of a stream.
        dtype: of the matrix products.
    """
    needed = lasting_bytes(model, config, context, ranks.world)
    if ranks.device.type == "cpu":
        needed["program"] = max(0, resident_bytes() - needed["weights"]) + _LIBRARIES
    if config.async_save and ranks.device.type == "cpu":
        copied = lasting_bytes(
            model, dataclasses.replace(config, swap_mem=False), context, ranks.world
        )
        needed["copy for a checkpoint"] = (
            copied["weights"] + copied["optimizer"] + copied["memory"] // 2
        )
    require_memory(needed, ranks)  # before layers are run below
    passing = passing_bytes(model, config, context, ranks, dtype)
    needed["activations and gradients"] = passing.pop("activations") + passing.pop("gradients")
    return needed | passing


def lasting_bytes(
    model: TransformerXL, config: TrainConfig, context: Context, world: int
) -> dict[str, int]:
    """What a process holds from step to step: weights, optimizer, memory and perhaps their average,
    in bytes.
    """
    n_stream = config.batch_size // world
    weights = weight_bytes(model) // (world if config.shard else 1)
    memory = _bytes(remembered(model.config, context, n_stream))
    needed = {
        "weights": weights,
        "optimizer": optimizer_bytes(model, config) // (world if config.shard else 1),
        "memory": 0 if config.swap_mem else 2 * memory,  # of this segment and the next
    }
    learning = learning_bytes(model) // (world if config.shard else 1)
    return needed | ({"average": learning} if config.ema else {})


def remembered(shape: ModelConfig, context: Context, n_stream: int) -> list[Tensor]:
    """Tensors without values of the shapes that a full memory of all layers has."""
    memory = full_memory(shape, context, n_stream, like=torch.empty(0, device="meta"))
    return [*memory.named().values()]


def passing_bytes(
    model: TransformerXL, config: TrainConfig, context: Context, ranks: Ranks, dtype: torch.dtype
) -> dict[str, int]:
    """Peak bytes used during a step and freed after it: activations, the gradients beside them at
    that moment and, of a model in shards, what is `gathered`.
    """
    shape = model.config
    n_stream = config.batch_size // ranks.world // config.batch_chunk
    n_token = n_stream * (context.tgt_len + context.ext_len)
    weights = weight_bytes(model) // (ranks.world if config.shard else 1)
    learning = learning_bytes(model) // (ranks.world if config.shard else 1)
    table = _bytes(model.softmax.tables)
    kinds = [type(layer.memory) for layer in model.layers]
    kept = {}
    for kind in set(kinds):
        kept[kind] = _kept_bytes(
            model, config, context, kinds.index(kind), n_stream=n_stream, dtype=dtype
        )
    # of a part; of all
    layer = max(kept.values()) // config.n_part
    layers = sum(kept[kind] for kind in kinds)
    state = n_token * shape.d_model * dtype.itemsize
    if config.recompute or shape.reversible:
        layers = layer + state * (2 if shape.reversible else shape.n_layer)
        layers += (config.n_part - 1) * _bytes(remembered(shape, context, n_stream))
    in_room = is_recorded(config, ranks)
    logits = _logit_bytes(shape, n_token, ranks.device, in_room=in_room)
    activations = layers + 2 * layer + 4 * state + logits
    if dtype != torch.float32:
        activations += weights * dtype.itemsize // 4  # autocast caches cast weights
    activations += table
    gradients = learning
    if config.batch_chunk == 1 and ranks.world == 1:  # they replace activations
        gradients = max(0, layer + learning + table - activations)
    found = {"gradients": gradients, "activations": activations}
    # a layer, the one that is fetched meanwhile, the root; with their gradients
    if config.shard and ranks.world > 1:
        in_layers = weight_bytes(*model.layers)
        found["gathered"] = 2 * (
            weight_bytes(model) - in_layers + min(2, shape.n_layer) * in_layers // shape.n_layer
        )
    return found


def _logit_bytes(shape: ModelConfig, n_token: int, device: torch.device, *, in_room: bool) -> int:
    """Bytes of logits, probabilities and their gradients in all clusters of the softmax. A text is
    assumed to have as many tokens in a cluster as Zipf's law says.

    Args:
        in_room: each cluster computes all that it has room for, see `txl.ops.lookup.Room`.
    """
    most = BUDGET["cpu" if device.type == "cpu" else "cuda"]
    n_word = math.log(max(2, shape.n_token))
    borders = (1, *shape.cutoffs, shape.n_token)
    shares = (1.0, *(math.log(b / a) / n_word for a, b in pairwise(borders[1:])))
    counts = [int(n_token * share) for share in shares]
    if in_room:  # the head computes all tokens
        counts[1:] = Room.of(shape.cluster_sizes, shares, n_token).at_most[1:]
    wanted = []
    for count, size in zip(counts, shape.cluster_sizes, strict=True):
        wanted.append(count * size)
    # gradients take the place of logits that come in chunks; glibc may leave a hole too small for
    # the next chunk
    if device.type == "cpu" and max(wanted) > most:
        n_copy = 2
    else:
        n_copy = 3
    return 4 * n_copy * sum(min(most, n) for n in wanted)


def require_room_for_weights(shape: ModelConfig, config: TrainConfig, ranks: Ranks) -> None:
    """Raise `UsageError` if weights of this shape are too large for this machine, without
    allocating them.
    """
    models = []
    for n in (1, 2):
        models.append(model_without_values(of_layers(shape, n)))

    def of_all(*of_models: int) -> int:
        one, two = of_models
        return (one + (shape.n_layer - 1) * (two - one)) // (ranks.world if config.shard else 1)

    weights = of_all(*map(weight_bytes, models))
    if config.train != "all":  # little besides the weights is needed
        require_memory({"weights": weights}, ranks)
        return
    state = of_all(*(optimizer_bytes(model, config) for model in models))
    require_memory({"weights": weights, "optimizer": state, "gradients": weights}, ranks)


def optimizer_bytes(model: TransformerXL, config: TrainConfig) -> int:
    """Bytes that the optimizer keeps of the parameters."""
    learning = learning_parameters(model).values()
    n_kept = tensors_kept(learning, config, rule_of(config).matrices(model))
    return sum(n * _bytes([parameter]) for parameter, n in n_kept.items())


def weight_bytes(*modules: nn.Module) -> int:
    """Bytes of the parameters, tied ones once."""
    return _bytes(nn.ModuleList(modules).parameters())


def learning_bytes(model: nn.Module) -> int:
    """Bytes of the parameters that learn."""
    return _bytes(learning_parameters(model).values())


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def _kept_bytes(
    model: TransformerXL,
    config: TrainConfig,
    context: Context,
    index: int,
    *,
    n_stream: int,
    dtype: torch.dtype,
) -> int:
    """Bytes that a layer saves for the backward pass, extrapolated from one and two streams."""
    if model.is_sharded:
        layer: Any = _layer_like(model, config, index)
    else:
        layer = model.layers[index]
    one = _count_kept(layer, model, config, context, 1, dtype)
    if n_stream == 1:
        return one
    return one + (n_stream - 1) * (_count_kept(layer, model, config, context, 2, dtype) - one)


def _count_kept(
    layer: Any,
    model: TransformerXL,
    config: TrainConfig,
    context: Context,
    n_stream: int,
    dtype: torch.dtype,
) -> int:
    compute_in_chunks(layer.ff, config.ff_chunk)
    device = layer.attn.v_net.weight.device
    kept = dict[int, Tensor]()
    own = {_storage(p) for p in layer.parameters()}

    def count(x: Tensor) -> Tensor:
        # an output as it is would hold the operation that holds it, and neither would be freed
        kept[_storage(x)] = x.detach()
        return kept[_storage(x)]

    with autocast(device, dtype), torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        state = run_layer(layer, model.config, context, n_stream, n_part=config.n_part)
    remembered = set()
    for tensor in Memory((state,)).named().values():
        remembered.add(_storage(tensor))
    own |= remembered
    return sum(x.untyped_storage().nbytes() for storage, x in kept.items() if storage not in own)


def run_layer(
    layer: Any, shape: ModelConfig, context: Context, n_stream: int, *, n_part: int = 1
) -> State:
    """Run the forward pass of a layer as in training, over a full memory, which is returned: that
    of the first of `n_part` parts of the segment.
    """
    weight = layer.attn.v_net.weight
    rule = layer.memory
    n_new = -(-(context.tgt_len + context.ext_len) // n_part)
    for settings in shape.of_parts():
        context = settings.enough(context)
    was_training = layer.training
    was_recomputed = layer.recompute
    layer.train()
    layer.recompute = False
    run = rule.run or run_layers
    # training must not depend on this
    with torch.random.fork_rng([weight.device] if weight.device.type == "cuda" else []):
        first = state = rule.full(shape, context, n_stream, like=weight.detach())
        for _ in range(n_part):
            h_BTD = weight.new_zeros(n_stream, n_new, shape.d_model, requires_grad=True)
            span = Span.of(context, n_mem=rule.n_kept(state), n_new=n_new)
            _, (after,) = run(
                [layer], h_BTD, (state,), Reading(context, span, layer.attn.pos, like=h_BTD)
            )
            if rule.traits.keeps_places:  # one that does not drops states by their values
                state = after
    layer.train(was_training)
    layer.recompute = was_recomputed
    return first


def of_layers(shape: ModelConfig, n_layer: int) -> ModelConfig:
    """The configuration of a model of fewer layers."""
    own: dict[str, Any] = {}
    for settings in shape.of_parts():
        own |= vars(settings.of_any_depth())
    return dataclasses.replace(shape, n_layer=n_layer, **own)


def positions_before(shape: ModelConfig, context: Context) -> int:
    """What stands before a segment once the memory is full."""
    return n_kept_at_most(shape, context)


def _storage(x: Tensor) -> int:
    """Identifies the memory of a tensor, a fake one too."""
    return x.untyped_storage()._cdata


def _layer_like(model: TransformerXL, config: TrainConfig, index: int) -> nn.Module:
    """A whole layer of a sharded model, with other weights."""
    with torch.random.fork_rng([]):
        pos = build_position_encodings(of_layers(model.config, 1), dropout=config.dropout)[0]
        rates = {"dropout": config.dropout, "dropatt": config.dropatt}
        layer = build_layer(model.config, pos, index=index, **rates).to(model.device)
    layer.attn.rule.impl = model.layers[0].attn.rule.impl
    return layer


def require_memory(needed: dict[str, int], ranks: Ranks) -> None:
    """Raise `UsageError` on all ranks if one has too little memory.

    Args:
        needed: see `training_bytes`; activations and gradients may be overestimated by a third.
    """
    unsure = needed.get("activations and gradients", 0) // 3
    least = sum(needed.values()) - unsure
    has = available_bytes(ranks.device)
    if ranks.device.type == "cpu":
        n_local = from_environment("LOCAL_WORLD_SIZE", 1)
    else:
        n_local = 1
    if ranks.device.type == "cuda":
        held = torch.cuda.memory_allocated(ranks.device)
    else:
        held = resident_bytes()
    message = ""
    if has is not None and least > has // n_local + held:
        largest = max(needed, key=lambda name: needed[name])
        message = (
            "out of memory before the first step: a process needs about"
            f" {sum(needed.values()) / 2**30:.1f} GiB, most of it for {largest}, and"
            f" {(has // n_local + held) / 2**30:.1f} GiB are free; lower --batch_size, --mem_len,"
            " --tgt_len or the model's sizes, or see --batch_chunk, --recompute and --swap_mem"
        )
    for other in ranks.gathered(message):
        require(not other, other)


def _pairs(shape: ModelConfig, n_key: int) -> int:
    """Scores per query and head, or what the attention rule computes in their place."""
    rule = ATTENTION_RULES[shape.attention]
    if hasattr(rule, "n_product"):
        return rule.n_product(shape)
    return n_key


def flops_per_token(model: TransformerXL, context: Context) -> float:
    """Multiplications and additions of forward and backward pass per trained token: 6 per weight of
    a matrix product, plus the two products of attention and the one with positions. Recomputation
    does not count.
    """
    shape = model.config
    n_key = context.tgt_len + context.ext_len + positions_before(shape, context)
    modules = nn.ModuleList(model.layers).modules()
    in_layers = sum(module.weight.numel() for module in modules if isinstance(module, nn.Linear))
    head = (shape.cluster_sizes[0] + len(shape.cutoffs)) * shape.d_embed
    attention = 3 * shape.n_layer * shape.n_head * shape.d_head * _pairs(shape, n_key)
    return 6.0 * (in_layers + head + attention)


def layer_parameters(model: TransformerXL) -> list[nn.Parameter]:
    """The parameters of the layers, shared ones once."""
    return [p for name, p in model.named_parameters() if name.startswith("layers.")]


def measured_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of one large matrix product on this device; MFU is relative to it."""
    if device.type == "cuda":
        n = 4096
    else:
        n = 768
    n_product = 100 if device.type == "cuda" else 1  # a tenth of a second, for the clocks to rise
    own = torch.Generator(device).manual_seed(0)  # training must not depend on this
    a, b = (torch.rand(n, n, device=device, generator=own).to(dtype) for _ in range(2))
    best = 0.0
    c = a
    for _ in range(4):
        start = time.perf_counter()
        for _ in range(n_product):
            c = linear(a, b)  # by the library that computes the layers
        float(c[0, 0])  # synchronises the device
        best = max(best, 2.0 * n**3 * n_product / (time.perf_counter() - start))
    return best
