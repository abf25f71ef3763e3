"""A training on a given number of devices, estimated without running it: memory, traffic, time and
what limits it.

The model may be made of fake tensors (`torch._subclasses.FakeTensorMode`), so that nothing is
allocated or computed.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from txl.config import SIZE, Checked, Context, option
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import MOST_PROCESSES, Ranks
from txl.training.config import TrainConfig
from txl.training.estimate import (
    flops_per_token,
    lasting_bytes,
    learning_bytes,
    passing_bytes,
    run_layer,
    weight_bytes,
)
from txl.training.repeated import is_recorded

_LAUNCH_S = 8e-6
"""Seconds in which PyTorch starts an operator on a GPU without torch.compile and graphs."""


class Device(NamedTuple):
    """Vendors' figures of a GPU: memory in GiB, dense TFLOP/s in 16 bits and in float32, GB/s in
    one direction that it sends inside its host and that its host sends to others.
    """

    gib: float
    tflops: float
    tflops_float32: float
    within: float
    between: float


DEVICES = {
    "a100": Device(79, 312, 19.5, 300, 200),
    "h100": Device(79, 989, 67, 450, 400),
    "h200": Device(140, 989, 67, 450, 400),
    "b200": Device(178, 2250, 75, 900, 400),
    "l40s": Device(44, 362, 91, 25, 25),
}


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(Checked):
    """The devices that a training is planned for."""

    gpus: int = option(1, "GPUs in all, a process each", minimum=1, maximum=MOST_PROCESSES)
    gpus_per_host: int = option(8, "GPUs of a host", minimum=1, maximum=MOST_PROCESSES)
    gpu: Literal["a100", "h100", "h200", "b200", "l40s"] = option(
        "h100",
        "kind of GPU, whose figures by its vendor are the defaults of --tflops, --gpu_gib, --within"
        " and --between",
    )
    tflops: float | None = option(
        None, "peak of a GPU in TFLOP/s, in the dtype of the products", above=0
    )
    mfu: float = option(
        0.3,
        "share of that peak that a step reaches on one GPU; measure it with a short run",
        above=0,
        maximum=1,
    )
    gpu_gib: float | None = option(None, "memory of a GPU in GiB", above=0)
    within: float | None = option(None, "GB/s that a GPU sends to others of its host", above=0)
    between: float | None = option(None, "GB/s that a host sends to other hosts", above=0)
    n_token: int | None = option(
        None, "words in the vocabulary (not given: that of the data set)", **SIZE
    )
    json: str | None = option(None, "write the results to this file")

    def device(self, dtype: torch.dtype, *, tf32: bool) -> Device:
        """The figures of a device: those given over those of its kind."""
        known = DEVICES[self.gpu]
        if dtype != torch.float32:
            peak = known.tflops
        elif tf32:
            peak = known.tflops / 2
        else:
            peak = known.tflops_float32
        given = {
            "gib": self.gpu_gib,
            "tflops": self.tflops,
            "within": self.within,
            "between": self.between,
        }
        return known._replace(tflops=peak)._replace(
            **{k: v for k, v in given.items() if v is not None}
        )


@dataclass(frozen=True)
class Plan:
    """What a training takes, with DistributedDataParallel or with shards.

    Attributes:
        memory: of a device at its peak, in bytes by purpose.
        sent: bytes that a device sends in a step.
        compute_s, send_s, launch_s: seconds of a step, if there were nothing else.
        step_s: seconds of a step, where sending and computing overlap.
    """

    memory: dict[str, int]
    sent: int
    compute_s: float
    send_s: float
    launch_s: float
    step_s: float

    @property
    def peak(self) -> int:
        """Bytes of a device."""
        return sum(self.memory.values())

    @property
    def limit(self) -> str:
        """What takes most of a step: computation, communication or launches."""
        if self.launch_s > max(self.compute_s, self.send_s):
            return "launches"
        if self.step_s <= 1.05 * self.compute_s:
            return "computation"
        return "communication"


def memory_plan(
    model: TransformerXL,
    config: TrainConfig,
    context: Context,
    ranks: Ranks,
    dtype: torch.dtype,
    *,
    shard: bool,
) -> dict[str, int]:
    """Bytes of a process at its peak by purpose, with DistributedDataParallel or in shards."""
    config = _of_kind(config, shard=shard)
    return lasting_bytes(model, config, context, ranks.world) | passing_bytes(
        model, config, context, ranks, dtype
    )


def _of_kind(config: TrainConfig, *, shard: bool) -> TrainConfig:
    """The same in shards, of which no graph can be made, or not."""
    if shard:
        return dataclasses.replace(config, shard=True, cuda_graph=False)
    return dataclasses.replace(config, shard=False)


def sent_bytes(model: TransformerXL, config: TrainConfig, world: int, *, shard: bool) -> int:
    """Bytes that a device sends in a step, by ring algorithms.

    DistributedDataParallel: an all-reduce of the gradients. Shards: all-gathers of the weights,
    those of layers in the forward and the backward pass, and a reduce-scatter of the gradients; in
    each part of --batch_chunk.
    """
    gradients = learning_bytes(model)
    if not shard:
        return 2 * (world - 1) * gradients // world
    moved = weight_bytes(*model.layers) + weight_bytes(model) + gradients
    return config.batch_chunk * moved * (world - 1) // world


def checkpoint_bytes(model: TransformerXL, config: TrainConfig, context: Context) -> int:
    """Bytes of a checkpoint: weights, optimizer, average, and the memory of all streams."""
    lasting = lasting_bytes(
        model, dataclasses.replace(config, swap_mem=False, shard=False), context, 1
    )
    return sum(lasting.values()) - lasting["memory"] // 2


def plan(
    model: TransformerXL,
    config: TrainConfig,
    context: Context,
    cluster: ClusterConfig,
    dtype: torch.dtype,
    *,
    shard: bool,
) -> Plan:
    """Estimate a training on a cluster.

    Args:
        config: whose batch divides into the devices.
        dtype: of the matrix products.
    """
    config = _of_kind(config, shard=shard)
    world = cluster.gpus
    device = cluster.device(dtype, tf32=config.tf32)
    ranks = Ranks(0, world, torch.device("cuda"))
    sent = sent_bytes(model, config, world, shard=shard)
    n_token = config.batch_size // world * context.tgt_len
    compute_s = n_token * flops_per_token(model, context) / (device.tflops * 1e12 * cluster.mfu)
    # every byte of a ring crosses the border of its host once
    if world <= cluster.gpus_per_host:
        speed = device.within
    else:
        speed = min(device.within, device.between)
    send_s = sent / (speed * 1e9)
    if config.compile or is_recorded(config, ranks):
        n_launch = 0
    else:
        n_launch = 3 * model.config.n_layer * config.batch_chunk * operators(model, context)
    launch_s = n_launch * _LAUNCH_S
    # gradients are sent during the backward pass, two thirds of a step; weights in shards during
    # all of it
    if shard:
        overlapping = max(compute_s, send_s)
    else:
        overlapping = compute_s / 3 + max(2 * compute_s / 3, send_s)
    memory = memory_plan(model, config, context, ranks, dtype, shard=shard)
    return Plan(memory, sent, compute_s, send_s, launch_s, max(overlapping, launch_s))


def operators(model: TransformerXL, context: Context) -> int:
    """Operators of the forward pass of a layer that start a kernel."""
    counter = _Counter()
    with counter:
        run_layer(model.layers[0], model.config, context, 1)
    return counter.n


class _Counter(TorchDispatchMode):
    n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += (
            func.namespace != "prim"
            and not func.is_view
            and "empty" not in func.name()
            and "view" not in func.name()
        )
        return func(*args, **(kwargs or {}))
