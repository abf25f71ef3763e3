"""Laws of `MemoryTransformer`: rows start anew anywhere, and steps give what segments give."""

from typing import Any

import pytest
import torch
from torch import Tensor

import txl
from txl import AgentMemory, Context, MemoryTransformer, ModelConfig

B, T, D = 3, 17, 8
CONTEXT = Context(tgt_len=T, mem_len=5, same_length=True)
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "gated": {"pre_lnorm": True, "gate": "gru"},
    "highway": {"pre_lnorm": True, "gate": "highway"},
    "alibi": {"position": "alibi", "pre_lnorm": True, "gate": "output"},
    "rotary": {"position": "rotary", "activation": "swiglu"},
    "untied": {"position": "shaw", "max_distance": 4, "untie_r": True},
}


def body_of(**settings: Any) -> MemoryTransformer:
    sizes: dict[str, Any] = {"n_layer": 2, "n_head": 2, "d_head": 4, "d_model": D, "d_inner": 12}
    return MemoryTransformer(ModelConfig(**sizes | settings)).double().eval()


@pytest.fixture(params=SHAPES)
def body(request: pytest.FixtureRequest, seeded: None) -> MemoryTransformer:
    return body_of(**SHAPES[request.param])


@pytest.fixture
def x_BTD(seeded: None) -> Tensor:
    return torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def reset_BT() -> Tensor:
    reset_BT = torch.zeros(B, T, dtype=torch.bool)
    reset_BT[0, [0, 6]] = reset_BT[1, [3, 4, 11]] = True  # row 2 never starts anew
    return reset_BT


def by_parts(
    body: MemoryTransformer, x_BTD: Tensor, reset_BT: Tensor, lengths: list[int], *, projected: bool
) -> Tensor:
    memory, hidden = None, []
    for x, reset in zip(x_BTD.split(lengths, 1), reset_BT.split(lengths, 1), strict=True):
        h, memory = body(x, memory, CONTEXT, reset)
        memory = body.projected(memory) if projected and len(hidden) == 0 else memory
        hidden.append(h)
    return torch.cat(hidden, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[1] * T, [4, 9, 1, 3]], ids=["steps", "segments"])
def test_what_an_actor_sees_step_by_step_is_what_a_learner_computes(
    body: MemoryTransformer, x_BTD: Tensor, reset_BT: Tensor, lengths: list[int]
) -> None:
    """Also with projected memories."""
    whole, _ = body(x_BTD, None, CONTEXT, reset_BT)
    for projected in (False, True):
        found = by_parts(body, x_BTD, reset_BT, lengths, projected=projected)
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)


def test_an_episode_is_what_it_would_be_alone(body: MemoryTransformer, x_BTD: Tensor, reset_BT: Tensor) -> None:
    """Values, and gradients, which no other episode gets."""
    weight_TD = torch.randn(T, D, dtype=torch.float64)
    together, _ = body(x_BTD, None, CONTEXT, reset_BT)
    for row, begin, end in [(0, 0, 6), (0, 6, T), (1, 0, 3), (1, 3, 4), (1, 4, 11), (1, 11, T), (2, 0, T)]:
        alone, _ = body(x_BTD[row : row + 1, begin:end], None, CONTEXT)
        torch.testing.assert_close(together[row, begin:end], alone[0], rtol=0, atol=1e-12)
        sums = [(h * weight_TD[begin:end]).sum() for h in (together[row, begin:end], alone[0])]
        ours, theirs = (torch.autograd.grad(one, x_BTD, retain_graph=True)[0] for one in sums)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        assert not theirs[row, end:].any()


@torch.no_grad()
def test_a_reset_of_no_row_is_no_reset(body: MemoryTransformer, x_BTD: Tensor) -> None:
    without, memory = body(x_BTD[:, :9], None, CONTEXT)
    assert memory.age_B is None
    never, kept = body(x_BTD[:, :9], None, CONTEXT, torch.zeros(B, 9, dtype=torch.bool))
    torch.testing.assert_close(never, without, rtol=0, atol=1e-12)
    late_BT = torch.zeros(B, T - 9, dtype=torch.bool)
    late_BT[1, 2] = True
    for reset_BT in (None, late_BT):
        later = [body(x_BTD[:, 9:], m, CONTEXT, reset_BT)[0] for m in (memory, kept)]
        torch.testing.assert_close(*later, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_numbers_that_say_where_a_row_starts_anew_are_taken(
    x_BTD: Tensor, reset_BT: Tensor, dtype: torch.dtype
) -> None:
    body = body_of()
    wanted, memory = body(x_BTD, None, CONTEXT, reset_BT)
    found, as_numbers = body(x_BTD, None, CONTEXT, reset_BT.to(dtype))
    assert torch.equal(found, wanted)
    assert torch.equal(as_numbers.ages_B, memory.ages_B)


@torch.no_grad()
def test_a_memory_is_plain_tensors_a_row_an_environment(x_BTD: Tensor, reset_BT: Tensor) -> None:
    body = body_of()
    _, memory = body(x_BTD[:, :9], None, CONTEXT, reset_BT[:, :9])
    assert [tuple(tensor.shape) for tensor in memory.tensors().values()] == [(B, 5, D), (B, 5, D), (B,)]
    assert memory.tensors()["age"].tolist() == [3, 5, 9]
    index_B = torch.tensor([2, 0, 0])
    swapped = AgentMemory.of(memory.rows(index_B).to("cpu").tensors())
    parts = [memory.rows(torch.tensor([i])) for i in index_B.tolist()]
    wanted, _ = body(x_BTD[:, 9:], memory, CONTEXT, reset_BT[:, 9:])
    for one in (swapped, AgentMemory.stacked(parts)):
        ours, _ = body(x_BTD[index_B, 9:], one, CONTEXT, reset_BT[index_B, 9:])
        torch.testing.assert_close(ours, wanted[index_B], rtol=0, atol=1e-12)
    never = body(x_BTD[2:, :9], None, CONTEXT)[1]  # a row that never started anew stacks with others
    others = body(x_BTD[:2, :9], None, CONTEXT, reset_BT[:2, :9])[1]
    ours, _ = body(x_BTD[:, 9:], AgentMemory.stacked([others, never]), CONTEXT, reset_BT[:, 9:])
    torch.testing.assert_close(ours, wanted)


@torch.no_grad()
def test_compressed_states_belong_to_an_episode_that_never_started_anew(x_BTD: Tensor) -> None:
    """Resets of other rows change nothing for it."""
    body = body_of(memory="compressive", compress_rate=2)
    context = Context(tgt_len=4, mem_len=4, compressed_len=3)
    memory = None
    for x in x_BTD.split(4, dim=1)[:-1]:
        _, memory = body(x, memory, context)
    assert memory is not None
    reset_BT = torch.tensor([[True], [False], [False]])
    with_resets, without = (body(x_BTD[:, -1:], memory, context, reset)[0] for reset in (reset_BT, None))
    torch.testing.assert_close(with_resets[1:], without[1:], rtol=0, atol=1e-12)
    assert not torch.allclose(with_resets[0], without[0])


def test_what_does_not_fit_is_said_with_both_shapes(x_BTD: Tensor, reset_BT: Tensor) -> None:
    body, other = body_of(), body_of(d_model=12)
    with torch.no_grad():
        _, memory = body(x_BTD, None, CONTEXT, reset_BT)
        _, wide = other(torch.zeros(B, T, 12, dtype=torch.float64), None, CONTEXT)
        projected = body.projected(memory)
    cases = [
        ((x_BTD[..., :5], None, None), r"vectors of shape \(3, 17, 5\): must be \(rows, steps, 8\)"),
        ((x_BTD, None, reset_BT[:, :4]), r"reset of shape \(3, 4\): must be \(3, 17\)"),
        ((x_BTD[:2], memory, None), "memory of 3 rows, 2 layers of size 8: must have 2 rows, 2 of size 8"),
        ((x_BTD, wide, None), "memory of 3 rows, 2 layers of size 12: must have 3 rows, 2 of size 8"),
        ((x_BTD[:2], projected, None), "memory of 3 rows: must have 2"),
    ]
    for (x, before, reset), message in cases:
        with torch.no_grad(), pytest.raises(ValueError, match=message):
            body(x, before, CONTEXT, reset)
    with pytest.raises(ValueError, match="takes no gradient"):
        body(x_BTD, projected, CONTEXT, reset_BT)
    with pytest.raises(ValueError, match="keep the memory that it began with"):
        projected.tensors()
    with pytest.raises(ValueError, match="2 and 5 steps"):
        AgentMemory.stacked([memory, body(x_BTD[:, :2], None, CONTEXT)[1]])
    with pytest.raises(ValueError, match="n_token"):
        txl.TransformerXL(body.config)
