"""Sinks against the plain definition, in float64: all inputs of each layer are kept, and of those before a segment the
first A and the last M are attended to."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import ENCODINGS, SIZES, SMALL
from txl import Context, ModelConfig, TransformerXL
from txl.config import build as built
from txl.inference.cuda_graph import CudaGraphModel
from txl.inference.frozen import Frozen, projected
from txl.inference.reader import Reader
from txl.model.span import Span

A, N_READ = 2, 23
CUTS = [[5, 5, 5, 5, 3], [1] * N_READ, [7, 1, 3, 1, 1, 10], [2, 9, 1, 11], [N_READ]]
LOOKS = [(3, 0), (1, 2), (0, 0), (6, 1)]
"""mem_len and ext_len."""
FULLY = ("pre_lnorm", "alibi")
"""Tried with all of these."""
SHAPES: dict[str, dict[str, Any]] = {
    "pre_lnorm": {"pre_lnorm": True},
    "reversible": {"pre_lnorm": True, "reversible": True},
    "performer": {"attention": "performer", "position": "rotary"},
    "lsh": {"attention": "lsh", "position": "none", "lsh_bucket": 2},
    "yarn": {"position": "rotary", "rope_scaling": "yarn", "rope_factor": 40.0},
    "longrope": {
        "position": "rotary",
        "rope_scaling": "longrope",
        "rope_short": (1.0, 2.0),
        "rope_long": (3.0, 5.0),
        "rope_trained_len": 4,
        "rope_attention": 1.3,
    },
} | {name: {"position": name, **settings} for name, settings in ENCODINGS.items()}


def build(memory: str = "sinks", **changes: Any) -> TransformerXL:
    config = {"n_sink": A} if memory == "sinks" else {}
    torch.manual_seed(3)
    shape = SIZES | SMALL | {"n_head": 2} | changes
    if shape.get("position") == "floater":
        pytest.importorskip("torchdiffeq")
    model = TransformerXL(built(ModelConfig, shape | config | {"memory": memory})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def by_definition(
    model: TransformerXL, token_BT: Tensor, sizes: list[int], context: Context
) -> Tensor:
    """The hidden states of a text, (B, T, D), whose last ext_len tokens of a segment are read again with the next."""
    inputs: list[list[Tensor]] = [[] for _ in model.layers]
    outs, begin = [], 0
    for size in sizes:
        n_again = min(context.ext_len, begin)
        h_BTD = model.word_emb(token_BT[:, begin - n_again : begin + size])
        begin += size
        for layer, before in zip(model.layers, inputs, strict=True):
            n_all = len(before)
            kept = [i for i in range(n_all) if i < A or i >= n_all - context.mem_len]
            none_B0D = h_BTD[:, :0]
            mem_BMD = torch.stack([before[i] for i in kept], 1) if kept else none_B0D
            span = Span.of(context, n_mem=len(kept), n_new=h_BTD.shape[1])
            feats = layer.attn.pos.prepare(span, like=h_BTD)
            x_BTD = h_BTD
            h_BTD = layer.attend(h_BTD, mem_BMD, feats, span)
            n_new = max(0, x_BTD.shape[1] - context.ext_len)
            before += x_BTD.detach()[:, :n_new].unbind(1)
        outs.append(h_BTD[:, n_again:])
    return torch.cat(outs, dim=1)


def in_segments(
    model: Any,
    token_BT: Tensor,
    sizes: list[int],
    context: Context,
    memory: Any = None,
    since_BT: Tensor | None = None,
) -> tuple[Tensor, Any]:
    outs, begin = [], 0
    for size in sizes:
        n_again = min(context.ext_len, begin)
        part = slice(begin - n_again, begin + size)
        mark_BT = None if since_BT is None else since_BT[:, part]
        hidden_BTD, memory = model(token_BT[:, part], memory, context, mark_BT)
        outs.append(hidden_BTD[:, n_again:].clone())
        begin += size
    return torch.cat(outs, dim=1), memory


@pytest.fixture
def text_BT() -> Tensor:
    return torch.randint(
        0, SIZES["n_token"], (2, N_READ), generator=torch.Generator().manual_seed(5)
    )


@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients_are_the_definition(name: str, text_BT: Tensor) -> None:
    """And those of what is remembered as keys and values, in place or not."""
    model = build(**SHAPES[name])
    is_reversible = model.config.reversible
    cuts = CUTS if name in FULLY else [CUTS[0], CUTS[2]]
    for sizes in cuts:
        for mem_len, ext_len in LOOKS if name in FULLY else LOOKS[:2]:
            context = Context(tgt_len=5, mem_len=mem_len, ext_len=ext_len)
            found, memory = in_segments(model, text_BT, sizes, context)
            n_kept = min(N_READ - min(ext_len, max(sizes)), A + mem_len)
            assert memory.length == n_kept or ext_len
            assert not any(x.requires_grad for x in memory.layers)
            if not is_reversible:
                expected = by_definition(model, text_BT, sizes, context)
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
                weight_BTD = torch.randn_like(found)
                of = list(model.layers.parameters())
                grads = [
                    torch.autograd.grad(
                        (weight_BTD * x).sum(), of, allow_unused=True, materialize_grads=True
                    )
                    for x in (found, expected)
                ]
                torch.testing.assert_close(*grads, rtol=0, atol=1e-10)
            frozen = Frozen(model)
            fresh = frozen.fresh_memory(2)
            ways = [fresh]
            if hasattr(fresh, "in_place"):
                n_in_place = context.mem_len + context.ext_len
                ways += [fresh.in_place(n_kept=n_in_place, n_new=n) for n in (1, 9)]
            for way in ways:
                again, _ = in_segments(frozen, text_BT, sizes, context, way)
                torch.testing.assert_close(again, found, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["rel_sinusoid", "rotary", "learned_absolute", "reversible"])
def test_before_it_is_full_it_is_a_memory_that_holds_everything(name: str, text_BT: Tensor) -> None:
    settings = SHAPES.get(name, {})
    sinks, fifo = build(**settings), build("fifo", **settings)
    fifo.load_state_dict(sinks.state_dict())
    for sizes in CUTS:
        context = Context(tgt_len=5, mem_len=N_READ - A)
        found, memory = in_segments(sinks, text_BT, sizes, context)
        expected, other = in_segments(fifo, text_BT, sizes, context.overlaid(mem_len=100))
        assert found.equal(expected)
        assert all(map(torch.equal, memory.layers, other.layers))


BORDERS = ((0, 4, 9, 10), (0, 15))
"""Where the documents of each row begin."""


@pytest.mark.parametrize(
    "name", ["rel_sinusoid", "rotary", "t5", "alibi", "shaw", "deberta", "none", "reversible"]
)
def test_each_document_has_sinks_of_its_own(name: str, text_BT: Tensor) -> None:
    """It has the states that it has alone, in segments that end at the same tokens; keys and values have, too."""
    model = build(**SHAPES.get(name, {}))
    rows = [[i - max(b for b in row if b <= i) for i in range(N_READ)] for row in BORDERS]
    since_BT = torch.tensor(rows)
    cuts = [[3] * 7 + [2], [6, 1, 5, 4, 4, 3]]
    if name == "alibi":
        cuts += [[1] * N_READ, [12, 11]]
    for sizes in cuts:
        looks = [(3, 0), (0, 0), (7, 0), (3, 2)] if name == "alibi" else [(1, 0), (4, 1)]
        for mem_len, ext_len in looks:
            context = Context(tgt_len=5, mem_len=mem_len, ext_len=ext_len)
            ways: list[tuple[Any, Any]] = [
                (model, None),
                (Frozen(model), Frozen(model).fresh_memory(2)),
            ]
            for way, memory in ways:
                found, after = in_segments(way, text_BT, sizes, context, memory, since_BT)
                assert after.length == min(N_READ - ext_len, A + mem_len)
                for row, borders in enumerate(BORDERS):
                    for begin, end in zip(borders, (*borders[1:], N_READ), strict=True):
                        own = cut_between(sizes, begin, end)
                        alone, _ = in_segments(
                            model, text_BT[row : row + 1, begin:end], own, context
                        )
                        torch.testing.assert_close(
                            found[row : row + 1, begin:end], alone, rtol=0, atol=1e-11
                        )


def cut_between(sizes: list[int], begin: int, end: int) -> list[int]:
    """The lengths of the segments of a document, of a text that is cut into `sizes`."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    cuts = [begin, *(e for e in ends if begin < e < end), end]
    return [b - a for a, b in pairwise(cuts)]


def noted(works: list[object], work: Callable[[], None]) -> Callable[[], None]:
    """In place of a CUDA graph: the work itself."""
    works.append(work)
    return work


@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["rel_sinusoid", "rotary", "yarn", "longrope", "learned_absolute", "t5"]
)
def test_a_reader_and_a_recording_read_as_segments_do(name: str, text_BT: Tensor) -> None:
    model = build(**SHAPES.get(name, {}))
    for context in (
        Context(tgt_len=4, mem_len=3),
        Context(tgt_len=4, mem_len=0),
        Context(tgt_len=3, mem_len=5, ext_len=2),
    ):
        sizes = [context.tgt_len] * (N_READ // context.tgt_len)
        read_BT = text_BT[:, : sum(sizes)]
        expected, _ = in_segments(model, read_BT, sizes, context)
        for parts in ([1] * sum(sizes), [sum(sizes)], [6, 1, sum(sizes) - 7]):
            reader = Reader(model, context, 2)
            found = torch.cat([reader.read(part) for part in read_BT.split(parts, 1)], dim=1)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
        recorded: list[object] = []
        graphed = CudaGraphModel(model, record=partial(noted, recorded))
        memory = graphed.fresh_memory(2)
        found, _ = in_segments(graphed, read_BT, sizes, context, memory)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
        assert bool(recorded) == (name != "learned_absolute" and not context.ext_len)


@torch.no_grad()
def test_hidden_states_become_keys_and_values(text_BT: Tensor) -> None:
    model, context = build(), Context(tgt_len=4, mem_len=3)
    _, hidden = in_segments(model, text_BT, [9], context)
    expected, _ = in_segments(model, text_BT[:, 9:], [4, 4, 4, 2], context, hidden)
    keys = projected(model, hidden)
    found, _ = in_segments(Frozen(model), text_BT[:, 9:], [4, 4, 4, 2], context, keys)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@torch.no_grad()
def test_a_memory_that_is_shortened_and_lengthened_keeps_its_sinks(text_BT: Tensor) -> None:
    """As `--draw_mem_len` does."""
    model = build(n_layer=1, position="none")
    first_BAD = model.word_emb(text_BT)[:, :A]
    for since_BT in (None, torch.arange(N_READ).expand(2, -1)):
        memory, begin = None, 0
        for mem_len, n in ((5, 6), (0, 3), (4, 4), (1, 5), (9, 5)):
            since = None if since_BT is None else since_BT[:, begin : begin + n]
            context = Context(tgt_len=5, mem_len=mem_len)
            _, memory = model(text_BT[:, begin : begin + n], memory, context, since)
            begin += n
            assert memory.layers[0][:, :A].equal(first_BAD)
            assert memory.length <= A + mem_len


@torch.no_grad()
def test_a_token_takes_the_same_however_much_was_read_with_turned_keys() -> None:
    reader = Reader(build(position="rotary"), Context(tgt_len=8, mem_len=16), 1)
    segments: Any = reader._segments
    lengths, rooms = [], []
    for token_11 in torch.randint(0, 50, (1, 800)).split(1, dim=1):
        reader.read(token_11)
        lengths.append(segments._end - segments._begin)
        rooms.append(segments._kv_2LBKCH.shape[4])
    assert set(lengths[32:]) == set(range(A + 16, A + 16 + 8))
    assert max(rooms) <= 2 * (A + 16 + 8) + 128
    assert segments._sinks.kv_2LBKAH.shape[4] == A


@torch.no_grad()
def test_a_token_takes_the_same_however_much_was_read() -> None:
    """Counted, over many segments: what is held, and the keys that are written."""
    model = build()
    context = Context(tgt_len=8, mem_len=16)
    reader = Reader(model, context, 1)
    segments: Any = reader._segments
    lengths, rooms = [], []
    for token_11 in torch.randint(0, 50, (1, 800)).split(1, dim=1):
        reader.read(token_11)
        keys = segments._memory.layers[0].kv_2BNMH
        lengths.append(segments._memory.length)
        rooms.append(keys.untyped_storage().nbytes() // keys[:, :, :, :1].nbytes)
        assert len(segments._memory.feats[0]) <= A + 16 + 2 * 8
    assert max(lengths[24:]) == A + 16 + 7
    assert set(lengths[24 + 8 :]) == set(range(A + 16, A + 16 + 8))
    assert max(rooms) <= 2 * (A + 16 + 8)
