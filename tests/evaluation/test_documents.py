"""`--reset document`: every article is read with an empty memory, whatever is read beside it."""

import numpy as np
import pytest
import torch

from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.data_utils.rows import document_streams
from txl.evaluation.score import Score, evaluate

IDS = np.random.default_rng(0).integers(0, 50, 151)
STARTS = np.array([1, 9, 10, 11, 40, 97, 149, 150])  # two of one token, side by side, and one at the very end
CONTEXT = Context(tgt_len=4, mem_len=6)


def score(
    model: TransformerXL, context: Context, batch_size: int, world: int = 1, starts: np.ndarray = STARTS
) -> Score:
    lengths = {"batch_size": batch_size, "tgt_len": context.tgt_len, "ext_len": context.ext_len}
    return Score.total(
        evaluate(model, stream, context)
        for rank in range(world)
        for stream in document_streams(IDS, starts, **lengths)[rank::world]
    )


@pytest.mark.parametrize(
    "context",
    [
        Context(tgt_len=4, mem_len=0),
        CONTEXT,
        Context(tgt_len=5, mem_len=5, same_length=True, clamp_len=3),
        Context(tgt_len=4, mem_len=6, ext_len=3),
        Context(tgt_len=200, mem_len=6),
    ],
    ids=str,
)
def test_documents_are_scored_as_if_each_were_alone(context: Context) -> None:
    """A plain loop over documents: the token before each, which predicts its first, and nothing before that."""
    model = build("pre_lnorm_adaptive", n_layer=2)
    nats = 0.0
    for start, end in zip(STARTS, [*STARTS[1:], len(IDS)], strict=True):
        text_1S, memory = torch.from_numpy(IDS[start - 1 : end])[None], None
        for begin in range(0, text_1S.shape[1] - 1, context.tgt_len):
            target_1T = text_1S[:, begin + 1 : begin + 1 + context.tgt_len]
            input_1T = text_1S[:, max(0, begin - context.ext_len) : begin + target_1T.shape[1]]
            nll_1T, memory = model.nll(input_1T, target_1T, memory, context)
            nats += nll_1T.sum().item()
    for batch_size in (1, 2, 7, 16):
        ours = score(model, context, batch_size)
        assert ours.tokens == len(IDS) - 1
        assert ours.nats == pytest.approx(nats, rel=1e-9)


def test_another_document_does_not_matter_but_for_its_last_token() -> None:
    model = build("plain", n_layer=2)
    before = [nats_of_last_document(model, IDS)]
    for place, differs in ((0, False), (95, False), (96, True), (120, True)):
        changed = IDS.copy()
        changed[place] = (changed[place] + 1) % 50
        assert (nats_of_last_document(model, changed) != before[0]) == differs


def nats_of_last_document(model: TransformerXL, ids: np.ndarray) -> float:
    (stream,) = document_streams(ids, np.array([97]), batch_size=2, tgt_len=4)
    segments = [segment._replace(counted_BT=segment.counted_BT & last_row(stream.first_B)) for segment in stream]
    return evaluate(model, segments, CONTEXT).nats


def last_row(first_B: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(first_B == 96)[:, None]


@pytest.mark.parametrize("starts", [[], [0], [1], [0, 1], [0, 150]])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_every_token_but_the_first_counts_once(starts: list[int], batch_size: int) -> None:
    """Also where nothing stands before the first heading, and where a document has no token of its own to predict."""
    streams = document_streams(IDS, np.array(starts, dtype=np.int64), batch_size=batch_size, tgt_len=4)
    segments = [segment for stream in streams for segment in stream]
    targets = torch.cat([segment.target_BT[segment.counted_BT] for segment in segments])
    assert sorted(targets.tolist()) == sorted(IDS[1:].tolist())
    assert sum(map(len, streams)) == len(segments)


def test_documents_of_like_length_are_read_together() -> None:
    streams = document_streams(IDS, STARTS, batch_size=2, tgt_len=4)
    lengths = [(stream.last_B - stream.first_B).tolist() for stream in streams]
    assert lengths == [[57, 52], [29, 8], [1, 1], [1, 1]]
