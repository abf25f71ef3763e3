"""A recorded pass gives the model's numbers. Here the recording is the work itself; a GPU replays a CUDA graph."""

import dataclasses

import pytest
import torch
from torch import Tensor

from txl import Context, ModelConfig, TransformerXL
from txl.inference import reader
from txl.inference.cuda_graph import CudaGraphModel
from txl.inference.frozen import Frozen
from txl.inference.reader import Reader

CONTEXTS = [
    Context(tgt_len=4, mem_len=6),
    Context(tgt_len=4, mem_len=3, same_length=True, clamp_len=2),
    Context(tgt_len=4, mem_len=0),
]


@pytest.fixture
def model() -> TransformerXL:
    torch.manual_seed(0)
    config = ModelConfig(
        n_token=30, n_layer=3, n_head=2, d_head=4, d_model=8, d_inner=10, cutoffs=(10,), div_val=2
    )
    model = TransformerXL(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def nats(predictor: Frozen, token_BT: Tensor, sizes: list[int], context: Context) -> Tensor:
    memory, found = predictor.fresh_memory(len(token_BT)), []
    pieces = zip(
        token_BT[:, :-1].split(sizes, dim=1), token_BT[:, 1:].split(sizes, dim=1), strict=True
    )
    with torch.no_grad():
        for input_BT, target_BT in pieces:
            nll_BT, memory = predictor.nll(input_BT, target_BT, memory, context)
            found.append(nll_BT)
    return torch.cat(found, dim=1)


CUTS = [
    ([4] * 6, 0),
    ([4] * 5 + [3, 1], 1),
    ([1] * 24, 0),
    ([4, 4, 4, 2, 4, 4, 2], 1),
    ([4] * 6, 2),
]


@pytest.mark.parametrize(("sizes", "n"), CUTS, ids=str)
def test_a_recording_gives_the_models_nats(model: TransformerXL, sizes: list[int], n: int) -> None:
    context, token_BT, recorded = CONTEXTS[n], torch.randint(0, 30, (3, 25)), []
    graphed = CudaGraphModel(model, record=lambda work: recorded.append(work) or work)
    torch.testing.assert_close(
        nats(graphed, token_BT, sizes, context), nats(Frozen(model), token_BT, sizes, context)
    )
    assert len(recorded) > 0 or context.mem_len == 0


def test_segments_of_one_length_are_recorded_once(model: TransformerXL) -> None:
    """In all texts together, also where the last segments of texts have lengths of their own."""
    recorded = []
    graphed = CudaGraphModel(model, record=lambda work: recorded.append(work) or work)
    for last in (4, 2, 4, 2, 3, 4):
        token_BT, sizes = torch.randint(0, 30, (2, 17 + last)), [4] * 4 + [last]
        expected = nats(Frozen(model), token_BT, sizes, CONTEXTS[0])
        torch.testing.assert_close(nats(graphed, token_BT, sizes, CONTEXTS[0]), expected)
    assert len(recorded) == 3  # segments of 4, of 2 and of 3 tokens


def test_a_memory_serves_once(model: TransformerXL) -> None:
    graphed, context = CudaGraphModel(model, record=lambda work: work), CONTEXTS[0]
    memory = graphed.fresh_memory(1)
    for token_BT in torch.randint(0, 30, (1, 16)).split(4, dim=1):
        _, memory = graphed(token_BT, memory, context)
    graphed(torch.zeros(1, 4, dtype=torch.int64), memory, context)
    with pytest.raises(ValueError, match="has been used"):
        graphed(torch.zeros(1, 4, dtype=torch.int64), memory, context)
    with pytest.raises(ValueError, match="has been used"):
        graphed(
            torch.zeros(1, 4, dtype=torch.int64), memory, dataclasses.replace(context, clamp_len=3)
        )


def test_what_cannot_be_recorded_is_read_without(
    model: TransformerXL, caplog: pytest.LogCaptureFixture
) -> None:
    def record(work: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    token_BT, context = torch.randint(0, 30, (2, 25)), CONTEXTS[0]
    graphed = CudaGraphModel(model, record=record)
    torch.testing.assert_close(
        nats(graphed, token_BT, [4] * 6, context), nats(Frozen(model), token_BT, [4] * 6, context)
    )
    assert caplog.messages == [
        "no CUDA graph, running without: operation not permitted when stream is capturing"
    ]


def test_positions_are_projected_before_the_recording(
    model: TransformerXL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory that was filled by hand has none yet; were they made in the recording, each replay would make them."""
    context, empty = CONTEXTS[0], Frozen(model).fresh_memory(1)
    layers = [layer.appended(*torch.randn(2, 1, 2, 6, 4).double()) for layer in empty.layers]
    memory, calls = dataclasses.replace(empty, layers=tuple(layers)), []
    project = type(model.layers[0].attn.pos).project
    monkeypatch.setattr(
        type(model.layers[0].attn.pos), "project", lambda *a: calls.append(a) or project(*a)
    )
    graphed = CudaGraphModel(model, record=lambda work: work)
    for token_BT in torch.randint(0, 30, (1, 16)).split(4, dim=1):
        _, memory = graphed(token_BT, memory, context)
    assert len(calls) == len(model.layers)


def test_a_memory_of_other_numbers_is_read_without(model: TransformerXL) -> None:
    """Filled before the products were narrowed, or after; new keys would not go into its rooms."""
    model, context, recorded = model.float(), CONTEXTS[0], []
    graphed = CudaGraphModel(model, record=lambda work: recorded.append(work) or work)
    parts, results = torch.randint(0, 30, (2, 32)).split(4, dim=1), []
    for predictor in (Frozen(model), graphed):
        memory, hiddens = predictor.fresh_memory(2), []
        for i, token_BT in enumerate(parts):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=i in (3, 4)):
                hidden_BTD, memory = predictor(token_BT, memory, context)
            hiddens.append(hidden_BTD.clone())
        results.append(torch.cat(hiddens, dim=1))
    torch.testing.assert_close(*results)
    assert recorded


def test_a_text_of_several_segments_has_the_states_of_each(
    model: TransformerXL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording overwrites what it gave for the segment before."""
    context = Context(tgt_len=4, mem_len=4, same_length=True)
    ids_1S = torch.randint(0, 30, (1, 23), generator=torch.Generator().manual_seed(0))
    expected = Reader(model, context, 1).read(ids_1S)
    monkeypatch.setattr(
        reader, "frozen", lambda model: CudaGraphModel(model, record=lambda work: work)
    )
    torch.testing.assert_close(Reader(model, context, 1).read(ids_1S), expected)
