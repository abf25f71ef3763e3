"""A training step never waits for the device: what depends on the ids is settled where they come from, on the CPU."""

import pytest
import torch

from tests.laws.conftest import SHAPES, build
from txl import Context


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_step_asks_the_device_for_no_number(shape: str) -> None:
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


def test_looking_at_a_number_there_would_be_seen() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        build("adaptive").to("meta").nll(*(torch.zeros(2, 3, dtype=torch.int64, device="meta"),) * 2, None, Context())
