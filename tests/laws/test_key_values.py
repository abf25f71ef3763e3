"""What evaluation remembers: projected keys and values, where they hold no positions."""

import copy
import dataclasses
import itertools
import sys

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import ENCODINGS, FAR, SMALL, build, clamps, read
from txl import Context, Memory, ModelConfig, Span, TransformerXL
from txl.inference.frozen import Frozen, projected
from txl.inference.key_values import KeyValueMemory

TINY = {"n_token": 50, "n_layer": 2, "n_head": 2, "d_head": 4, "d_model": 8, "d_inner": 8}


@pytest.mark.parametrize("name", ["plain", "t5", "relative_keys_short", "rotary"])
def test_they_serve_another_look_back(model: TransformerXL, token_BT: Tensor) -> None:
    """Positions are projected anew when clamp_len changes or the span grows."""
    hidden, cached = None, Frozen(model).fresh_memory(2)
    near, far = Context(tgt_len=4, mem_len=6), Context(tgt_len=4, mem_len=20)
    clamped = dataclasses.replace(far, clamp_len=2 if clamps(model) else -1)
    with torch.inference_mode():
        for context, segment_BT in zip(
            (near, far, clamped) * 2, token_BT.repeat(1, 2).split(4, dim=1), strict=True
        ):
            one, hidden = model(segment_BT, hidden, context)
            two, cached = Frozen(model)(segment_BT, cached, context)
            torch.testing.assert_close(two, one)


@pytest.mark.parametrize("name", ["plain", "t5"])
def test_distances_are_projected_once(
    model: TransformerXL, token_BT: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = type(model.layers[0].attn.pos)
    calls, project = [], cls.project
    monkeypatch.setattr(cls, "project", lambda *args: calls.append(None) or project(*args))
    with torch.inference_mode():
        read(Frozen(model), token_BT, [4, 4, 4], Context(tgt_len=4, mem_len=8))
    assert len(calls) == len(model.layers)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["plain", "relative_keys", "expire_span"])
def test_clamped_distances_beyond_have_one_row(model: TransformerXL, token_BT: Tensor) -> None:
    """Of dropout each distance has its own."""
    context = Context(tgt_len=4, mem_len=8, clamp_len=3)
    for n_row, one in ((4, model), (12, copy.deepcopy(model).train())):
        _, memory = read(Frozen(one), token_BT, [4, 4, 4], context)
        assert [len(feats) for feats in memory.feats] == [n_row] * len(one.layers)


@pytest.mark.parametrize("name", ["plain", "rotary", "expire_span"])
def test_they_may_go_two_ways(model: TransformerXL, token_BT: Tensor) -> None:
    """What one continuation appends is invisible to another from the same memory, and to the memory itself."""
    context = Context(tgt_len=4, mem_len=9)
    hidden = read(model, token_BT, [4, 4, 4], context)[1]
    cached = read(Frozen(model.requires_grad_(False)), token_BT, [4, 4, 4], context)[1]
    for first in (0, 4, 8, 0):
        ways = [(hidden, cached)] * 2
        for segment_BT in token_BT[:, first : first + 4].split(2, dim=1):
            for i, (one, two) in enumerate(ways):
                expected, one = model((segment_BT + i) % 50, one, context)
                found, two = Frozen(model)((segment_BT + i) % 50, two, context)
                torch.testing.assert_close(found, expected)
                ways[i] = one, two


@torch.no_grad()
@pytest.mark.parametrize("name", ["expire_span"])
def test_keys_in_blocks_and_rows_in_another_order_keep_their_spans(
    model: TransformerXL, token_BT: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they were hidden states before."""
    context, other_way = Context(tgt_len=4, mem_len=20), torch.tensor([1, 0])
    hidden = read(model, token_BT, [4, 4, 4], context)[1]
    expected, after = read(model, token_BT, [1, 7, 4], context, hidden.rows(other_way))
    assert after.length < 24  # some spans have ended
    monkeypatch.setattr(sys.modules["txl.ops.rel_attention"], "LONG", 1)
    monkeypatch.setattr(sys.modules["txl.ops.rel_attention.dense"], "_QUERIES", 3)
    cached = read(Frozen(model), token_BT, [4, 4, 4], context)[1]
    for memory in (cached, projected(model, hidden)):
        found = read(Frozen(model), token_BT, [1, 7, 4], context, memory.rows(other_way))[0]
        torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_a_token_more_does_not_copy_the_memory(token_BT: Tensor) -> None:
    model, rooms = Frozen(build("plain", **SMALL)), []
    memory = model.fresh_memory(2)
    for segment_BT in token_BT.repeat(1, 6).split(1, dim=1):
        _, memory = model(segment_BT, memory, Context(tgt_len=1, mem_len=16))
        rooms.append(memory.layers[0].k_BNMH.untyped_storage().data_ptr())
    moves = sum(a != b for a, b in itertools.pairwise(rooms[20:]))
    assert moves <= 52 // 4


@torch.no_grad()
@pytest.mark.parametrize(
    ("tgt_len", "ext_len", "n_kept", "n_new", "taken"),
    [
        *(
            (3, 0, 8, 3, 12),
            (1, 0, 9, 1, 13),
            (4, 2, 10, 4, 15),
            (6, 0, 1, 0, 14),
            (1, 0, 66, 1, 14),
        ),
        # in a workspace, where segments are long
        *((4, 0, 8, 4, 8), (9, 0, 8, 9, 8), (5, 2, 10, 5, 8)),
    ],
)
def test_in_place_keys_stay_where_they_are(
    tgt_len: int, ext_len: int, n_kept: int, n_new: int, taken: int, token_BT: Tensor
) -> None:
    """And are those of a memory that is not. Room that is too small grows, and far more than is needed is not taken."""
    model, context = (
        Frozen(build("plain", **SMALL)),
        Context(tgt_len=tgt_len, mem_len=8, ext_len=ext_len),
    )
    plain = model.fresh_memory(2)
    memory, places, sizes = plain.in_place(n_kept=n_kept, n_new=n_new), [], set()
    for segment_BT in token_BT.repeat(1, 4).split(tgt_len, dim=1):
        expected, plain = model(segment_BT, plain, context)
        found, memory = model(segment_BT, memory, context)
        assert found.equal(expected)
        kept_BNMH = memory.layers[0].k_BNMH
        places.append(kept_BNMH.untyped_storage().data_ptr())
        sizes.add(kept_BNMH.untyped_storage().nbytes() // (2 * kept_BNMH[:, :, 0].nbytes))
    assert len(set(places[len(places) // 2 :])) == 1
    assert max(sizes) == taken


@pytest.mark.parametrize("name", ["expire_span"])
def test_keys_that_a_rule_looks_back_at_are_not_written_over(model: TransformerXL) -> None:
    memory = Frozen(model).fresh_memory(2)
    for n_new in (1, 9):
        assert memory.in_place(n_kept=9, n_new=n_new).layers == memory.layers


@pytest.mark.parametrize("name", ENCODINGS)
def test_keys_that_hold_positions_are_not_remembered(model: TransformerXL) -> None:
    """Keys are kept where they hold no position, or are given one when they are read; else hidden states are."""
    state, span = torch.zeros(1, 3, 8).double(), Span(3, 3)
    feats = model.layers[0].attn.pos.prepare(span, like=state)
    placed = [
        hook(state, state, feats, span)
        for layer in model.layers
        for hook in (layer.attn.pos.layer_input, layer.attn.pos.qk_input)
    ]
    hold_positions = any(remembered.any() for _, remembered in placed)
    assert isinstance(Frozen(model).fresh_memory(2), Memory if hold_positions else KeyValueMemory)


def test_position_features_do_not_keep_what_training_dropped(token_BT: Tensor) -> None:
    """Nor the dtype of autocast."""
    model, context = TransformerXL(ModelConfig(**TINY), dropout=0.5), Context(tgt_len=6, mem_len=6)
    first, second = token_BT.split(6, dim=1)
    for autocast in (False, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model.train()
            _, memory = Frozen(model)(first, Frozen(model).fresh_memory(2), context)
        model.eval()
        found, _ = Frozen(model)(second, memory, context)
        expected, _ = Frozen(model)(second, dataclasses.replace(memory, feats=()), context)
        torch.testing.assert_close(found, expected)


@torch.inference_mode()
@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_computes_in_half_precision(model: TransformerXL, token_BT: Tensor) -> None:
    exact = read(model, token_BT, [4, 8], FAR)[0]
    for dtype in (torch.bfloat16, torch.float16):
        half = read(copy.deepcopy(model).to(dtype), token_BT, [4, 8], FAR)[0]
        assert half.dtype == dtype
        assert (half - exact).norm() < 0.2 * exact.norm()


def test_the_layers_share_one_mask(token_BT: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    made, plain = [], Span.mask_TS
    monkeypatch.setattr(
        Span, "mask_TS", lambda span, device: made.append(span) or plain(span, device)
    )
    read(TransformerXL(ModelConfig(**TINY, position="alibi")), token_BT, [8, 4], FAR)
    assert len(made) == 2
