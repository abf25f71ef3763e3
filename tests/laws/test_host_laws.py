"""A training step never waits for the device: what depends on the ids is settled where they come from, on the CPU."""

import sys
from contextlib import nullcontext

import pytest
import torch

from tests.laws.conftest import SHAPES, build
from txl import Context
from txl.runtime.distributed import Ranks
from txl.training.config import TrainConfig
from txl.training.step import TrainState


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_loss_and_gradients_ask_the_device_for_no_number(shape: str) -> None:
    """Tensors on the meta device have no values: what would look at one raises."""
    if SHAPES[shape].get("position") == "floater":
        pytest.skip("torchdiffeq compares times where they are, at every step")
    model = build(shape).train().to("meta")
    token_BT = torch.randint(0, 50, (2, 13))
    nll_BT, memory = model.nll(token_BT[:, :6], token_BT[:, 1:7], None, Context(mem_len=8))
    nll_BT, _ = model.nll(token_BT[:, 6:12], token_BT[:, 7:], memory, Context(mem_len=8))
    nll_BT.mean().backward()
    assert nll_BT.device.type == "meta"
    assert all(p.grad.device.type == "meta" for p in model.parameters())


@pytest.mark.parametrize("optim", ["adam", "lamb"])
def test_a_training_step_asks_the_device_for_no_number(optim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it: clipping, the note of a gradient that is not finite, the update. To look for that note is to ask."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # off here, and not to be had on meta
    monkeypatch.setattr(sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *_: None)
    meta = torch.device("meta")
    config = TrainConfig(optim=optim, batch_size=4, batch_chunk=2, max_step=2, clip=1.0)
    state = TrainState(build("pre_lnorm_adaptive").train().to(meta), config, Context(mem_len=8), Ranks(0, 1, meta))
    token_BT = torch.randint(0, 50, (4, 13))
    for first in (0, 6):
        nll_BT = state.step(token_BT[:, first : first + 6], token_BT[:, first + 1 : first + 7])
    assert nll_BT.device == state.grad_norm.device == state.bad_step.device == meta
    assert len(state.optimizers.state()) >= 2 * len(list(state.model.parameters()))
    with pytest.raises((RuntimeError, NotImplementedError)):
        state.check()


def test_looking_at_a_number_there_would_be_seen() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        build("pre_lnorm_adaptive").to("meta").nll(
            *(torch.zeros(2, 3, dtype=torch.int64, device="meta"),) * 2, None, Context()
        )
