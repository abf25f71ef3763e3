"""What must hold of memory, whatever the model: laws 1 to 4, 6 and 10 of the design."""

import copy
import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import encoding
from txl import Context, Memory, ModelConfig, Span, TransformerXL
from txl.config import UsageError
from txl.memory import KeyValueMemory

FAR = Context(mem_len=100)


def read(model: TransformerXL, token_BT: Tensor, sizes: list[int], context: Context) -> tuple[Tensor, Memory]:
    """All hidden states and the last memory of a text read in segments of these sizes."""
    memory, hiddens = None, []
    for segment_BT in token_BT.split(sizes, dim=1):
        hidden_BTD, memory = model(segment_BT, memory, context)
        hiddens.append(hidden_BTD)
    assert memory is not None
    return torch.cat(hiddens, dim=1), memory


def test_segments_equal_one_pass(model: TransformerXL, token_BT: Tensor) -> None:
    """And so do single tokens."""
    whole = read(model, token_BT, [24], FAR)[0]
    for sizes in ([1, 23], [7, 5, 12], [1] * 24):
        torch.testing.assert_close(read(model, token_BT, sizes, FAR)[0], whole)


def test_the_future_is_invisible(model: TransformerXL, token_BT: Tensor) -> None:
    other_BT = token_BT.clone()
    other_BT[:, 10:] = (other_BT[:, 10:] + 7) % 50
    before, after = (read(model, text, [8, 16], FAR)[0] for text in (token_BT, other_BT))
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_memory_is_bounded_by_mem_len(model: TransformerXL, token_BT: Tensor) -> None:
    for mem_len in (0, 1, 5, 8, 11, 24, 30):
        memory = read(model, token_BT, [8, 8, 8], Context(mem_len=mem_len))[1]
        assert memory.length == min(mem_len, 24)


def test_memory_is_detached(model: TransformerXL, token_BT: Tensor) -> None:
    memory = model.train()(token_BT, None, FAR).memory
    assert not any(layer.requires_grad for layer in memory.layers)


def test_memory_is_never_written_to(model: TransformerXL, token_BT: Tensor) -> None:
    memory = model(token_BT[:, :8], None, FAR).memory
    before = [layer.clone() for layer in memory.layers]
    for context in (FAR, Context(mem_len=3), Context(mem_len=6, same_length=True)):
        hidden_BTD = model(token_BT[:, 8:], memory, context).hidden_BTD
        hidden_BTD.sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, memory.layers, strict=True))


def test_memory_keeps_the_last_tokens(model: TransformerXL, token_BT: Tensor) -> None:
    everything = read(model, token_BT, [8, 16], FAR)[1]
    first = model(token_BT[:, :8], None, FAR).memory
    bounded = model(token_BT[:, 8:], first, Context(mem_len=5)).memory
    for short, long in zip(bounded.layers, everything.layers, strict=True):
        torch.testing.assert_close(short, long[:, -5:])


def test_where_the_memory_came_from_does_not_matter(model: TransformerXL, token_BT: Tensor) -> None:
    """Positions are relative: the same remembered states read at other absolute positions give the same result."""
    late = read(model, token_BT[:, :16], [8, 8], FAR)[1]
    shifted = Memory(tuple(layer[:, -4:] for layer in late.layers))
    again = Memory(tuple(layer[:, -4:].clone() for layer in read(model, token_BT[:, :16], [16], FAR)[1].layers))
    one, two = (model(token_BT[:, 16:], memory, FAR).hidden_BTD for memory in (shifted, again))
    torch.testing.assert_close(one, two)


@pytest.mark.slow
def test_same_length_does_not_depend_on_tgt_len(relative_model: TransformerXL, token_BT: Tensor) -> None:
    for mem_len in (1, 5):
        context = Context(mem_len=mem_len, same_length=True)
        whole = read(relative_model, token_BT, [24], context)[0]
        for sizes in ([5, 5, 5, 5, *[1] * 4], [17, 7]):
            torch.testing.assert_close(read(relative_model, token_BT, sizes, context)[0], whole)


def test_same_length_shows_exactly_mem_len_keys(token_BT: Tensor, model: TransformerXL) -> None:
    """In one layer a token sees itself and the mem_len - 1 tokens before it, whether they are remembered or new."""
    one_layer = TransformerXL(type(model.config)(**{**vars(model.config), "n_layer": 1})).double().eval()
    context = Context(mem_len=6, same_length=True)
    base = read(one_layer, token_BT, [8, 16], context)[0]
    for place in range(24):
        changed_BT = token_BT.clone()
        changed_BT[:, place] = (changed_BT[:, place] + 1) % 50
        difference = (read(one_layer, changed_BT, [8, 16], context)[0] - base).abs().amax(dim=(0, 2))
        moved = (difference > 1e-12).nonzero().flatten()  # rounding depends on which clusters the batch has
        assert moved.tolist() == list(range(place, min(24, place + 6)))


def test_clamped_distances_are_all_the_same(token_BT: Tensor, clamping_model: TransformerXL) -> None:
    """Beyond clamp_len the order of remembered tokens is lost: in one layer, exchanging two changes nothing."""
    config = dataclasses.replace(clamping_model.config, n_layer=1)
    one_layer = TransformerXL(config).double().eval()
    context = Context(mem_len=100, clamp_len=3)
    exchanged_BT = token_BT.clone()
    exchanged_BT[:, [3, 4]] = exchanged_BT[:, [4, 3]]
    one, two = (read(one_layer, text, [8, 16], context)[0][:, 8:] for text in (token_BT, exchanged_BT))
    torch.testing.assert_close(one, two)
    unclamped = read(one_layer, exchanged_BT, [8, 16], FAR)[0][:, 8:]
    assert not torch.allclose(unclamped, read(one_layer, token_BT, [8, 16], FAR)[0][:, 8:])


def test_rows_of_a_batch_do_not_mix(model: TransformerXL, token_BT: Tensor) -> None:
    together = read(model, token_BT, [8, 16], FAR)[0]
    for row in range(2):
        torch.testing.assert_close(read(model, token_BT[row : row + 1], [8, 16], FAR)[0][0], together[row])


def test_re_read_tokens_are_not_remembered(model: TransformerXL, token_BT: Tensor) -> None:
    """With ext_len the text reads on without a seam: the memory ends where the next input begins."""
    context = Context(tgt_len=8, mem_len=100, ext_len=3)
    first = model(token_BT[:, :8], None, context)
    second = model(token_BT[:, 5:16], first.memory, context)
    assert (first.memory.length, second.memory.length) == (5, 13)
    whole = read(model, token_BT, [24], FAR)[0]
    torch.testing.assert_close(second.hidden_BTD, whole[:, 5:16])


SEGMENTS = [[8, 8, 8], [3, 16, 5], [18, *[1] * 6]]
KEPT = [
    (FAR, SEGMENTS),
    (Context(tgt_len=8, mem_len=0), SEGMENTS[:1]),
    (Context(tgt_len=2, mem_len=5), SEGMENTS[2:]),
    (Context(tgt_len=8, mem_len=11, clamp_len=4), SEGMENTS[:1]),
    (Context(tgt_len=8, mem_len=7, same_length=True), SEGMENTS[1:2]),
    (Context(tgt_len=8, mem_len=9, ext_len=3), SEGMENTS[1:2]),
]


@torch.inference_mode()
def test_remembered_keys_and_values_equal_remembered_hidden_states(model: TransformerXL, token_BT: Tensor) -> None:
    for context, segments in KEPT:
        if context.clamp_len > 0 and not encoding(model).clamps:
            continue
        for sizes in segments:
            hidden, cached = None, model.fresh_memory(2)
            for segment_BT in token_BT.split(sizes, dim=1):
                one, hidden = model(segment_BT, hidden, context)
                two, cached = model(segment_BT, cached, context)
                torch.testing.assert_close(two, one)
                assert cached.length == hidden.length


def test_remembered_keys_and_values_serve_another_look_back(model: TransformerXL, token_BT: Tensor) -> None:
    """Positions are projected anew when clamp_len changes or the span grows."""
    hidden, cached = None, model.fresh_memory(2)
    contexts = [
        Context(tgt_len=4, mem_len=6),
        Context(tgt_len=4, mem_len=20),
        Context(tgt_len=4, mem_len=20, clamp_len=2 if encoding(model).clamps else -1),
    ]
    with torch.inference_mode():
        for context, segment_BT in zip(contexts * 2, token_BT.split(4, dim=1), strict=True):
            one, hidden = model(segment_BT, hidden, context)
            two, cached = model(segment_BT, cached, context)
            torch.testing.assert_close(two, one)


def test_remembered_distances_are_projected_once(
    model: TransformerXL, token_BT: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not encoding(model).by_distance:
        pytest.skip("no row per distance to keep")
    context, calls, project = Context(tgt_len=8, mem_len=16), [], type(encoding(model)).project
    monkeypatch.setattr(type(encoding(model)), "project", lambda *args: calls.append(None) or project(*args))
    memory = model.fresh_memory(2)
    with torch.inference_mode():
        for segment_BT in token_BT.split(8, dim=1):
            _, memory = model(segment_BT, memory, context)
    assert len(calls) == len(model.layers)


@pytest.mark.slow
def test_remembered_keys_and_values_may_go_two_ways(model: TransformerXL, token_BT: Tensor) -> None:
    """What one continuation appends is invisible to another from the same memory, and to the memory itself."""
    context = Context(tgt_len=4, mem_len=9)
    hidden, cached = None, model.fresh_memory(2)
    for segment_BT in token_BT[:, :12].split(4, dim=1):
        _, hidden = model(segment_BT, hidden, context)
        _, cached = model(segment_BT, cached, context)
    for first in (12, 16, 20, 12):
        ways = [(hidden, cached)] * 2
        for segment_BT in token_BT[:, first : first + 4].split(2, dim=1):
            for i, (one, two) in enumerate(ways):
                expected, one = model((segment_BT + i) % 50, one, context)
                found, two = model((segment_BT + i) % 50, two, context)
                torch.testing.assert_close(found, expected)
                ways[i] = one, two


def test_a_fresh_memory_takes_gradients_to_every_layer(model: TransformerXL, token_BT: Tensor) -> None:
    """As the empty memory does; one of keys and values that holds something is refused."""
    context, (first, second) = Context(tgt_len=4, mem_len=8), token_BT[:, :9].split((4, 5), dim=1)
    grads = []
    for memory in (None, model.fresh_memory(2)):
        model.zero_grad()
        _, memory = model.nll(first, first, memory, context)
        model.nll(second[:, :-1], second[:, 1:], memory, context)[0].sum().backward()
        grads.append([p.grad.clone() for p in model.layers.parameters() if p.grad is not None])
    torch.testing.assert_close(grads[0], grads[1])
    with torch.no_grad():
        _, memory = model.nll(first, first, model.fresh_memory(2), context)
    if isinstance(memory, KeyValueMemory):
        with pytest.raises(ValueError, match="takes no gradient"):
            model.nll(first, first, memory, context)


def test_frozen_embeddings_do_not_keep_gradients_from_the_layers(token_BT: Tensor) -> None:
    model = TransformerXL(ModelConfig(n_token=50, n_layer=2, n_head=2, d_head=4, d_model=8, d_inner=8, not_tied=True))
    model.word_emb.requires_grad_(False)
    context = Context(tgt_len=4, mem_len=8)
    model.nll(token_BT, token_BT, model.fresh_memory(len(token_BT)), context)[0].sum().backward()
    assert [name for name, p in model.layers.named_parameters() if p.grad is None] == []
    with torch.no_grad():
        memory = model(token_BT, model.fresh_memory(len(token_BT)), context).memory
    with pytest.raises(ValueError, match="takes no gradient"):
        model(token_BT, memory, context)


def test_position_features_do_not_keep_what_training_dropped(token_BT: Tensor) -> None:
    """Nor the dtype of autocast."""
    config = ModelConfig(n_token=50, n_layer=2, n_head=2, d_head=4, d_model=8, d_inner=8)
    model, context = TransformerXL(config, dropout=0.5).train(), Context(tgt_len=8, mem_len=8)
    first, second = token_BT[:, :8], token_BT[:, 8:16]
    for autocast in (False, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            memory = model(first, model.fresh_memory(len(first)), context).memory
        model.eval()
        with torch.no_grad():
            found = model(second, memory, context).hidden_BTD
            expected = model(second, dataclasses.replace(memory, feats=()), context).hidden_BTD
        torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_a_token_more_does_not_copy_the_memory(model: TransformerXL, token_BT: Tensor) -> None:
    if encoding(model).places_hidden_states():
        pytest.skip("hidden states are remembered")
    context, memory, rooms = Context(tgt_len=1, mem_len=16), model.fresh_memory(2), []
    for segment_BT in token_BT.repeat(1, 3).split(1, dim=1):
        _, memory = model(segment_BT, memory, context)
        rooms.append(memory.layers[0].k_BNMH.untyped_storage().data_ptr())
    moves = sum(a != b for a, b in itertools.pairwise(rooms[20:]))
    assert moves <= 52 // 4


def test_keys_that_hold_positions_are_not_remembered(model: TransformerXL) -> None:
    """Keys are kept where they hold no position, or are given one when they are read; else hidden states are."""
    state, span = torch.zeros(1, 3, 16).double(), Span(3, 3)
    feats = encoding(model).prepare(span, like=state)
    placed = [
        hook(state, state, feats, span)
        for layer in model.layers
        for hook in (layer.attn.pos.layer_input, layer.attn.pos.qk_input)
    ]
    hold_positions = any(remembered.any() for _, remembered in placed)
    assert isinstance(model.fresh_memory(2), Memory if hold_positions else KeyValueMemory)


def test_a_clamp_that_an_encoding_has_no_distances_for_is_refused(model: TransformerXL, token_BT: Tensor) -> None:
    context = Context(mem_len=8, clamp_len=4)
    if encoding(model).clamps:
        model(token_BT, None, context)
        return
    with pytest.raises(UsageError, match=rf"--clamp_len 4: --position {model.config.position} has no distances"):
        model(token_BT, None, context)


@torch.inference_mode()
def test_evaluation_may_look_further_than_any_table(model: TransformerXL, token_BT: Tensor) -> None:
    """No table is longer than 40: beyond it encodings are shared, and every number stays finite."""
    for context in (Context(mem_len=60), Context(mem_len=60, same_length=True)):
        memory = model.fresh_memory(2)
        for segment_BT in token_BT.repeat(1, 4).split(12, dim=1):
            hidden_BTD, memory = model(segment_BT, memory, context)
            assert hidden_BTD.isfinite().all()
        assert memory.length == 60


def test_a_memory_of_another_batch_is_refused(model: TransformerXL, token_BT: Tensor) -> None:
    memory = model(token_BT, None, FAR).memory
    with pytest.raises(ValueError, match="memory holds 2 rows, the segment 1"):
        model(token_BT[:1], memory, FAR)


@torch.inference_mode()
def test_every_encoding_computes_in_half_precision(model: TransformerXL, token_BT: Tensor) -> None:
    exact = read(model, token_BT, [8, 16], FAR)[0]
    for dtype in (torch.bfloat16, torch.float16):
        half = read(copy.deepcopy(model).to(dtype), token_BT, [8, 16], FAR)[0]
        assert half.dtype == dtype
        assert (half - exact).norm() < 0.2 * exact.norm()


def test_the_layers_share_one_mask(token_BT: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"n_token": 50, "n_layer": 3, "n_head": 2, "d_head": 4, "d_model": 8, "d_inner": 8, "position": "alibi"}
    made, plain = [], Span._mask
    monkeypatch.setattr(Span, "_mask", lambda span, device: made.append(span) or plain(span, device))
    read(TransformerXL(ModelConfig(**sizes)), token_BT, [16, 8], FAR)
    assert len(made) == 2
