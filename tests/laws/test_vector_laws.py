"""Laws of `MemoryTransformer`: rows start anew anywhere, and steps give what segments give."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import txl
from tests.laws.conftest import ENCODINGS, MEMORY_MODELS, context_of, shape_of
from txl import AgentMemory, Context, MemoryTransformer, ModelConfig
from txl.config import UsageError
from txl.model.streams import joined

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


def test_an_episode_is_what_it_would_be_alone(
    body: MemoryTransformer, x_BTD: Tensor, reset_BT: Tensor
) -> None:
    """Values, and gradients, which no other episode gets."""
    weight_TD = torch.randn(T, D, dtype=torch.float64)
    together, _ = body(x_BTD, None, CONTEXT, reset_BT)
    for row, begin, end in [
        (0, 0, 6),
        (0, 6, T),
        (1, 0, 3),
        (1, 3, 4),
        (1, 4, 11),
        (1, 11, T),
        (2, 0, T),
    ]:
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
def test_a_memory_is_plain_tensors_a_row_an_environment(x_BTD: Tensor, reset_BT: Tensor) -> None:
    body = body_of()
    _, memory = body(x_BTD[:, :9], None, CONTEXT, reset_BT[:, :9])
    assert [tuple(tensor.shape) for tensor in memory.tensors().values()] == [
        (B, 5, D),
        (B, 5, D),
        (B,),
    ]
    assert memory.tensors()["age"].tolist() == [3, 5, 9]
    index_B = torch.tensor([2, 0, 0])
    swapped = AgentMemory.of(memory.rows(index_B).to("cpu").tensors())
    parts = [memory.rows(torch.tensor([i])) for i in index_B.tolist()]
    wanted, _ = body(x_BTD[:, 9:], memory, CONTEXT, reset_BT[:, 9:])
    for one in (swapped, AgentMemory.stacked(parts)):
        ours, _ = body(x_BTD[index_B, 9:], one, CONTEXT, reset_BT[index_B, 9:])
        torch.testing.assert_close(ours, wanted[index_B], rtol=0, atol=1e-12)
    # a row that never started anew stacks with others
    never = body(x_BTD[2:, :9], None, CONTEXT)[1]
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
    with_resets, without = (
        body(x_BTD[:, -1:], memory, context, reset)[0] for reset in (reset_BT, None)
    )
    torch.testing.assert_close(with_resets[1:], without[1:], rtol=0, atol=1e-12)
    assert not torch.allclose(with_resets[0], without[0])


def test_what_does_not_fit_is_said_with_both_shapes(x_BTD: Tensor, reset_BT: Tensor) -> None:
    body, other = body_of(), body_of(d_model=12)
    with torch.no_grad():
        _, memory = body(x_BTD, None, CONTEXT, reset_BT)
        _, wide = other(torch.zeros(B, T, 12, dtype=torch.float64), None, CONTEXT)
        projected = body.projected(memory)
    cases = [
        (
            (x_BTD[..., :5], None, None),
            r"vectors of shape \(3, 17, 5\): must be \(rows, steps, 8\)",
        ),
        ((x_BTD, None, reset_BT[:, :4]), r"reset of shape \(3, 4\): must be \(3, 17\)"),
        (
            (x_BTD, None, reset_BT.float()),
            r"reset of torch.float32: must be True .*; give reset.bool\(\)",
        ),
        (
            (x_BTD, None, reset_BT.long()),
            r"reset of torch.int64: must be True .*; give reset.bool\(\)",
        ),
        ((x_BTD[:, :0], None, None), r"vectors of shape \(3, 0, 8\): must have at least one step"),
        ((x_BTD[:, :0], memory, reset_BT[:, :0]), "must have at least one step"),
        (
            (x_BTD[:2], memory, None),
            "memory of 3 rows, 2 layers of size 8: must have 2 rows, 2 of size 8",
        ),
        (
            (x_BTD, wide, None),
            "memory of 3 rows, 2 layers of size 12: must have 3 rows, 2 of size 8",
        ),
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


BAD = 2
"""The step of row 0 that is not finite."""
OF_MEMORY = {
    name: settings
    for name, settings in MEMORY_MODELS.items()
    if settings.get("memory") not in ("toy", "recurrent_tokens")
}


def body_and_context(name: str) -> tuple[MemoryTransformer, Context]:
    """Those of a line of `OF_MEMORY`."""
    body = body_of(**shape_of(name))
    with torch.no_grad():
        for parameter in body.parameters():
            parameter.normal_(std=0.4)
    return body, context_of(name, tgt_len=4)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", [*SHAPES, *OF_MEMORY])
def test_what_is_not_finite_before_a_reset_changes_nothing_after_it(
    name: str, bad: float, x_BTD: Tensor
) -> None:
    """Values and gradients, within a segment; its own episode is NaN from there on, and not before."""
    body, context = (body_of(**SHAPES[name]), CONTEXT) if name in SHAPES else body_and_context(name)
    reset_BT = torch.zeros(B, 8, dtype=torch.bool)
    reset_BT[0, 4] = reset_BT[1, 6] = True
    good_BTD = x_BTD[:, :8].detach()
    bad_BTD = good_BTD.clone()
    bad_BTD[0, BAD] = bad
    outs, grads = [], []
    for x in (good_BTD, bad_BTD):
        h_BTD, _ = body(x, None, context, reset_BT)
        loss = h_BTD[0, 4:].square().sum() + h_BTD[1:].square().sum()
        grads.append(torch.autograd.grad(loss, [*body.parameters()], materialize_grads=True))
        outs.append(h_BTD)
    assert outs[1][0, BAD:4].isnan().all()
    outs = [torch.cat([out[:, :BAD], out[:, 4:]], dim=1) for out in outs]
    torch.testing.assert_close(outs[1], outs[0])
    torch.testing.assert_close(grads[1], grads[0])


@torch.no_grad()
@pytest.mark.parametrize("name", [*SHAPES, *OF_MEMORY])
def test_what_is_not_finite_spoils_nothing_before_it(name: str, x_BTD: Tensor) -> None:
    """Neither episodes that have ended nor the beginning of its own, which a segment reads with it; also where
    the next segment, read with keys or without, goes on with the episode."""
    body, context = (body_of(**SHAPES[name]), CONTEXT) if name in SHAPES else body_and_context(name)
    context = dataclasses.replace(context, tgt_len=8)
    reset_BT = torch.zeros(B, 8, dtype=torch.bool)
    reset_BT[0, 3] = True
    good_BTD = x_BTD[:, :8].detach()
    bad_BTD = good_BTD.clone()
    bad_BTD[0, 6] = torch.nan
    for begin in (None, body.projected(None, B)):
        expected, _ = body(good_BTD, begin, context, reset_BT)
        found, after = body(bad_BTD, begin, context, reset_BT)
        assert found[0, 6:].isnan().all()
        torch.testing.assert_close(found[0, :6], expected[0, :6], rtol=0, atol=1e-12)
        torch.testing.assert_close(found[1:], expected[1:], rtol=0, atol=1e-12)
        later, _ = body(good_BTD, after, context, torch.zeros_like(reset_BT))
        assert name == "no_memory" or later[0].isnan().all()
        assert later[1:].isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("n_new", [6, 2, 1])
def test_vectors_that_are_read_again_count_once(n_new: int, x_BTD: Tensor) -> None:
    """With ext_len 2; an episode sees nothing of the one before it, in later segments too."""
    body = body_of()
    context = Context(tgt_len=4, mem_len=12, ext_len=2)
    reset_BT = torch.zeros(B, T, dtype=torch.bool)
    reset_BT[:, [0, 4]] = True
    other_BTD = x_BTD.clone()
    other_BTD[:, :4] += 1
    segments = [
        (0, n_new),
        (0, 6),
        (4, 6),
        (8, 6),
    ]  # what is no longer than ext_len is read again whole
    if n_new == 6:
        del segments[0]
    outs = []
    for x in (x_BTD, other_BTD):
        memory, hidden = None, []
        for at, n in segments:
            h, memory = body(x[:, at : at + n], memory, context, reset_BT[:, at : at + n])
            hidden.append(h[:, max(0, 4 - at) :])
        outs.append(torch.cat(hidden, dim=1))
        assert memory is not None
        assert memory.age_B is not None
        assert memory.age_B.tolist() == [8] * B, "the next segment begins at 12, the episode at 4"
    assert outs[0].shape[1] == 2 + 6 + 6
    torch.testing.assert_close(outs[1], outs[0], rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("name", OF_MEMORY)
def test_what_is_not_finite_before_a_reset_reaches_no_later_rollout(
    name: str, projected: bool
) -> None:
    body, context = body_and_context(name)
    good_BTD = torch.randn(2, 32, D, dtype=torch.float64)
    bad_BTD = good_BTD.clone()
    bad_BTD[0, BAD] = torch.nan
    for at in (4, 6, 9):  # with the next rollout, within it, within a later one
        reset_BT = torch.zeros(2, 32, dtype=torch.bool)
        reset_BT[0, at] = True
        outs = []
        for x_BTD in (good_BTD, bad_BTD):
            memory, hidden = (body.projected(None, 2) if projected else None), []
            for x, reset in zip(x_BTD.split(4, 1), reset_BT.split(4, 1), strict=True):
                h, memory = body(x, memory, context, reset)
                hidden.append(h)
            outs.append(torch.cat(hidden, dim=1))
        assert outs[1][0, BAD:4].isnan().all()
        assert name == "no_memory" or outs[1][0, 4:at].isnan().all()
        torch.testing.assert_close(outs[1][0, at:], outs[0][0, at:])
        torch.testing.assert_close(outs[1][1], outs[0][1])


@torch.no_grad()
@pytest.mark.parametrize("name", OF_MEMORY)
def test_stacked_memories_give_what_each_gives_alone_or_are_refused(
    name: str, seeded: None
) -> None:
    """Memories of texts of different lengths: as many hidden states may stand beside different numbers of others."""
    body, context = body_and_context(name)
    longer, shorter = (torch.randn(1, n, D, dtype=torch.float64) for n in (20, 8))
    next_BTD = torch.randn(2, 4, D, dtype=torch.float64)
    parts = []
    for x_BTD in (longer, shorter):
        memory = None
        for x in x_BTD.split(4, dim=1):
            _, memory = body(x, memory, context)
        assert memory is not None
        parts.append(memory)
    if name in ("compressive", "knn"):
        what = {"compressive": r"2 and 4 states \(compressed\)", "knn": r"5 and 7 states \(keys\)"}[
            name
        ]
        for join in (AgentMemory.stacked, lambda both: joined([part.hidden for part in both])):
            with pytest.raises(
                ValueError, match=f"memories of {what}: give memories of one length"
            ):
                join(parts)
        parts[1] = parts[0]
    stacked, _ = body(next_BTD, AgentMemory.stacked(parts), context)
    alone = [body(x, part, context)[0] for x, part in zip(next_BTD.split(1), parts, strict=True)]
    torch.testing.assert_close(stacked, torch.cat(alone), rtol=0, atol=1e-12)


@torch.no_grad()
def test_memories_that_cannot_be_joined_are_refused(x_BTD: Tensor) -> None:
    memories = [
        body_of(**settings)(x_BTD[:, :4], None, CONTEXT)[1] for settings in ({}, {"n_layer": 1})
    ]
    with pytest.raises(ValueError, match="memories of different models"):
        AgentMemory.stacked(memories)
    with pytest.raises(ValueError, match="no memories to join"):
        AgentMemory.stacked([])


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODINGS)
def test_where_the_length_of_segments_matters_a_change_of_it_is_refused(
    name: str, seeded: None
) -> None:
    """Elsewhere an actor's steps are what a learner computes, whatever the lengths."""
    settings = {"position": name} | ENCODINGS[name]
    if settings["position"] == "floater":
        pytest.importorskip("torchdiffeq")
    body = body_of(
        **{key: value for key, value in settings.items() if key not in ("n_head", "d_head")}
    )
    x_BTD = torch.randn(2, 8, D, dtype=torch.float64)
    context = Context(tgt_len=8, mem_len=3, same_length=True)
    memory = body(x_BTD[:, :2], None, context)[1]
    again = body(x_BTD[:, 2:4], memory, context)[1]
    if body.layers[0].attn.pos.places_hidden_states():
        for n, kept in (
            (1, memory),
            (3, again),
            (1, AgentMemory.stacked([AgentMemory.of(memory.tensors())])),
        ):
            with pytest.raises(
                UsageError,
                match=rf"--position {settings['position']}: a segment of {n} steps after.*2",
            ):
                body(x_BTD[:, :n], kept.rows(torch.tensor([1, 0])), context)
        return
    whole, _ = body(x_BTD, None, context)
    memory, found = None, []
    for x in x_BTD.split([2, 1, 1, 4], dim=1):
        h_BTD, memory = body(x, memory, context)
        found.append(h_BTD)
    torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["infini", "neural", "fifo"])
def test_a_detached_memory_begins_a_backward_pass_of_its_own(name: str, x_BTD: Tensor) -> None:
    body, context = body_and_context(name)
    memory = None
    for x in x_BTD[:, :16].split(4, dim=1):
        memory = memory if memory is None else memory.detached()
        h_BTD, memory = body(x, memory, context, torch.zeros(B, 4, dtype=torch.bool))
        h_BTD.sum().backward()
    assert memory is not None
    assert not any(tensor.requires_grad for tensor in memory.detached().tensors().values())
