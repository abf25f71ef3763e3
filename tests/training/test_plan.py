"""Plans for many GPUs: bytes sent are those that PyTorch sends, memory of fake weights is that of real ones."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from txl import Context, ModelConfig, TransformerXL
from txl.config import UsageError
from txl.runtime.distributed import Ranks
from txl.training.config import TrainConfig
from txl.training.estimate import training_bytes, weight_bytes
from txl.training.learning import freeze
from txl.training.nats import Nats
from txl.training.plan import checkpoint_bytes, memory_plan, sent_bytes
from txl.training.run import require_shares
from txl.training.sharding import shard

WORLD = 8
SIZES: dict[str, Any] = {
    "n_token": 640,
    "n_layer": 3,
    "n_head": 2,
    "d_head": 16,
    "d_model": 32,
    "d_inner": 64,
}
SHAPE = ModelConfig(**SIZES, cutoffs=(64, 320), div_val=2, tie_projs=(True,) * 3)
CONTEXT = Context(tgt_len=8, mem_len=8)
GPU = Ranks(0, 1, torch.device("cuda"))
CPU = Ranks(0, 1, torch.device("cpu"))


@pytest.fixture
def eight_ranks() -> Iterator[Ranks]:
    """A process group that does nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    try:
        yield Ranks(0, WORLD, torch.device("cpu"))
    finally:
        dist.destroy_process_group()


class Sent(TorchDispatchMode):
    """Counts the bytes that a ring of ranks sends for all-gathers and reduce-scatters."""

    n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in ("c10d::_allgather_base_", "c10d::_reduce_scatter_base_"):
            self.n += max(args[0].nbytes, args[1].nbytes) * (WORLD - 1) // WORLD
        return func(*args, **(kwargs or {}))


def backward(nats: nn.Module) -> None:
    ids = torch.randint(640, (1, 8))
    loss_BT, *_ = nats(ids, ids, None, CONTEXT)
    loss_BT.mean().backward()


@pytest.mark.parametrize("what", ["all", "last:1"])
def test_the_bytes_sent_are_those_of_distributed_data_parallel(
    eight_ranks: Ranks, what: str
) -> None:
    model, sent = TransformerXL(SHAPE), []
    freeze(model, what)

    def note(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent.append(2 * bucket.buffer().nbytes * (WORLD - 1) // WORLD)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    nats = DistributedDataParallel(Nats(model, 0.0), gradient_as_bucket_view=True)
    nats.register_comm_hook(None, note)
    backward(nats)
    assert sum(sent) == sent_bytes(model, TrainConfig(batch_size=WORLD), WORLD, shard=False)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_the_bytes_sent_are_those_of_shards(eight_ranks: Ranks) -> None:
    model = TransformerXL(SHAPE)
    planned = sent_bytes(model, TrainConfig(batch_size=WORLD), WORLD, shard=True)
    shard(model, eight_ranks)
    with Sent() as sent:
        backward(Nats(model, 0.0))
    assert 1 <= sent.n / planned < 1.03  # rows are padded to a multiple of the ranks


@pytest.mark.parametrize("position", ["rel_sinusoid", "t5", "shaw", "learned_absolute"])
def test_fake_weights_take_the_memory_of_real_ones(position: str) -> None:
    sizes = {"n_layer": 2, "n_head": 2, "d_head": 4, "d_model": 8, "d_inner": 16, "n_position": 16}
    shape, config = ModelConfig(n_token=50, position=position, **sizes), TrainConfig(batch_size=4)

    def needed() -> dict[str, int]:
        return training_bytes(
            TransformerXL(shape, dropout=0.1), config, CONTEXT, CPU, torch.float32
        )

    real = needed()
    with FakeTensorMode():
        fake = needed()
    assert real | {"program": 0} == fake | {"program": 0}


def test_shards_take_their_part_of_the_memory() -> None:
    model, config, ranks = (
        TransformerXL(SHAPE),
        TrainConfig(batch_size=WORLD),
        Ranks(0, WORLD, torch.device("cpu")),
    )
    whole, part = (
        memory_plan(model, config, CONTEXT, ranks, torch.float32, shard=shard)
        for shard in (False, True)
    )
    for name in ("weights", "optimizer", "gradients"):
        assert part[name] == whole[name] // WORLD
    assert part["activations"] == whole["activations"]
    assert 0 < part["gathered"] <= 2 * whole["weights"] == 2 * weight_bytes(model)


def test_a_graph_computes_as_many_words_of_a_cluster_as_it_has_room_for() -> None:
    """4 x 8 tokens, which is less than the room: three copies of their logits more, less those of their share."""
    config = TrainConfig(batch_size=4)
    activations = []
    for cuda_graph in (False, True):
        asked = dataclasses.replace(config, cuda_graph=cuda_graph)
        plan = memory_plan(TransformerXL(SHAPE), asked, CONTEXT, GPU, torch.float32, shard=False)
        activations.append(plan["activations"])
    n_word = math.log(640)
    more = [32 - int(32 * math.log(b / a) / n_word) for a, b in ((64, 320), (320, 640))]
    assert activations[1] - activations[0] == 4 * 3 * (more[0] * 256 + more[1] * 320)


def test_a_checkpoint_holds_the_memory_of_all_streams() -> None:
    model = TransformerXL(SHAPE)
    for more in ({}, {"swap_mem": True}):
        config = TrainConfig(batch_size=16, ema=0.9, **more)
        memory = 16 * 8 * 32 * 3 * 4
        assert checkpoint_bytes(model, config, CONTEXT) == 4 * weight_bytes(model) + memory


def test_processes_that_the_batch_does_not_divide_into_are_refused_with_those_that_it_does() -> (
    None
):
    for world in (1, 2, 6, 12):
        require_shares(TrainConfig(batch_size=24, batch_chunk=2), Ranks(0, world, CPU.device))
    with pytest.raises(
        UsageError, match=r"into 5 processes .* nearest: 20 or 30; processes can be 1, 2, 3, 4, 6$"
    ):
        require_shares(TrainConfig(batch_size=24, batch_chunk=2), Ranks(0, 5, CPU.device))
    with pytest.raises(
        UsageError, match=r"fewer streams than the 9 processes; .*; processes can be 1, 2, 4, 8$"
    ):
        require_shares(TrainConfig(batch_size=8), Ranks(0, 9, CPU.device))
