"""Checkpoints in shards and in the background. One process is the only rank of a group here."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.checkpoints import as_of_0_2
from tests.training.runs import ADAPTIVE, ALONE, SHAPE, Run, config
from txl import ModelConfig, TransformerXL
from txl.checkpoint import Background, CheckpointWriter, checkpoint_of, last_checkpoint, load_model
from txl.checkpoint.folder import DIGESTS
from txl.config import UsageError
from txl.runtime.distributed import Ranks, whole
from txl.training.init import init_weights
from txl.training.sharding import drawn_in_shards


@pytest.fixture
def only_rank() -> Iterator[Ranks]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Ranks(0, 1, torch.device("cpu"), dist.group.WORLD)
    dist.destroy_process_group()


@pytest.mark.parametrize("position", ["rel_sinusoid", "t5"])
def test_weights_drawn_in_shards_are_those_drawn_whole(only_rank: Ranks, position: str) -> None:
    """T5 has a buffer, whose values are not drawn."""
    shape, settings = ModelConfig(**SHAPE | ADAPTIVE | {"position": position}), config(shard=True)
    drawn = drawn_in_shards(shape, settings, only_rank)
    after = torch.get_rng_state()
    torch.manual_seed(settings.seed)
    model = TransformerXL(shape)
    init_weights(model, settings)
    assert torch.equal(after, torch.get_rng_state())
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        found = (
            drawn.get_parameter(name)
            if isinstance(value, torch.nn.Parameter)
            else drawn.get_buffer(name)
        )
        assert torch.equal(whole(found), value), name


def test_a_checkpoint_in_shards_holds_the_average_and_the_trained_weights(
    only_rank: Ranks, tmp_path: Path
) -> None:
    settings = {"ema": 0.5, "max_step": 3}
    both = [
        Run(config(shard=shard, **settings), only_rank, folder=tmp_path / str(shard))
        for shard in (False, True)
    ]
    for run in both:
        run.begin().train()
    saved = [dict(load_model(last_checkpoint(run.folder)).named_parameters()) for run in both]
    assert saved[0].keys() == saved[1].keys()
    # sums of a tied table's gradients are in another order in shards
    torch.testing.assert_close(*saved)
    again = Run(config(**settings), folder=tmp_path / "True").resume()
    torch.testing.assert_close(again.weights(), both[0].weights())
    torch.testing.assert_close(again.state.optimizers.state(), both[0].state.optimizers.state())


def test_damaged_shards_are_refused_by_name(only_rank: Ranks, tmp_path: Path) -> None:
    Run(config(shard=True, max_step=2), only_rank, folder=tmp_path).begin().train()
    folder = tmp_path / "step_00000002"
    (shard,) = folder.glob("shard-*")
    assert not (folder / "model.safetensors").exists()
    good = shard.read_bytes()
    changed, cut, missing = good[:-1] + bytes([good[-1] ^ 1]), good[:-10], None
    for digests, damage in (
        (True, changed),
        (True, cut),
        (True, missing),
        (False, cut),
        (False, missing),
    ):
        shard.write_bytes(good)
        if not digests and (folder / DIGESTS).exists():
            as_of_0_2(folder, digests=False)
        shard.unlink() if damage is None else shard.write_bytes(damage)
        for read in (
            lambda: load_model(last_checkpoint(tmp_path)),
            lambda: checkpoint_of(tmp_path, 2),
        ):
            with pytest.raises(
                UsageError, match=r"(shard-|model\.safetensors).*use another checkpoint"
            ):
                read()


class Held(Background):
    """Work begins only when it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def start(self, work: Callable[[], object]) -> None:
        self.go.clear()
        super().start(lambda: self.go.wait() and work())

    def wait(self) -> None:
        self.go.set()
        super().wait()


@pytest.mark.parametrize("shard", [False, True])
def test_the_background_writes_the_state_that_was_saved(
    only_rank: Ranks, tmp_path: Path, shard: bool
) -> None:
    run = Run(config(shard=shard, max_step=2, dropout=0.1), only_rank).begin().trained()
    writer = CheckpointWriter(
        tmp_path, run.state.context, only_rank, run.columns, background=Held()
    )
    weights = run.weights()
    states = {name: whole(value).clone() for name, value in run.state.optimizers.state().items()}
    with writer.finished():
        folder = writer.save(run.state.model, run.state.snapshot(), step=2, best=True)
        assert not folder.exists()
        run.config = run.state.config = config(shard=shard, max_step=4, dropout=0.1)
        run.train()
        assert not torch.equal(run.weights()["softmax.biases.0"], weights["softmax.biases.0"])
    assert (tmp_path / "best").read_text().strip() == folder.name
    again = Run(config(max_step=2), folder=tmp_path).resume()
    assert all(torch.equal(weight, again.weights()[name]) for name, weight in weights.items())
    theirs = again.state.optimizers.state()
    assert all(torch.equal(value, theirs[name]) for name, value in states.items())


def test_an_error_of_the_background_ends_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config(max_step=1), ALONE).begin().trained()
    writer = CheckpointWriter(
        tmp_path, run.state.context, ALONE, run.columns, background=Background()
    )

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("txl.checkpoint.save.flush", full)
    writer.save(run.state.model, run.state.snapshot(), step=1, best=False)
    with pytest.raises(OSError, match="No space left"):
        writer.save(run.state.model, run.state.snapshot(), step=2, best=False)
    assert list(tmp_path.iterdir()) == []
    writer.wait()  # it is raised once
