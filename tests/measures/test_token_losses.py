"""The loss of each token, kept in a file."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.config import UsageError
from txl.data_utils.segments import scoring_stream
from txl.evaluation.measures.token_losses import (
    TokenLosses,
    TokenLossWatch,
    read_losses,
    write_losses,
)
from txl.evaluation.reading import warmup_segments
from txl.evaluation.score import evaluate
from txl.runtime.distributed import Ranks

IDS = np.random.default_rng(0).integers(0, 50, 151)
CONTEXTS = [
    Context(tgt_len=4, mem_len=6),
    Context(tgt_len=13, mem_len=0),
    Context(tgt_len=5, mem_len=4, ext_len=3),
    Context(tgt_len=200, mem_len=6),
]


def nats_by_the_book(model: TransformerXL, context: Context) -> dict[int, float]:
    """Nats of each token by its place in the text, read in one row."""
    ids, memory, nats = torch.from_numpy(IDS), None, {}
    for begin in range(0, len(IDS) - 1, context.tgt_len):
        piece = ids[begin : begin + context.tgt_len + 1]
        first = max(0, begin - context.ext_len)
        hidden, memory = model(ids[None, first : begin + len(piece) - 1], memory, context)
        logprob = model.log_prob(hidden[0, begin - first :]).detach()
        nats |= {begin + 1 + i: -float(logprob[i, token]) for i, token in enumerate(piece[1:])}
    return nats


def watched(model: TransformerXL, context: Context, world: int = 1) -> TokenLosses:
    """Of a text in three streams, which as many processes read as `world`."""
    n_warmup = warmup_segments(model.config.n_layer, context)
    lengths = {"tgt_len": context.tgt_len, "ext_len": context.ext_len, "n_warmup": n_warmup}
    shares = []
    for rank in range(world):
        stream = scoring_stream(IDS, batch_size=3, **lengths).share(rank, world)
        watch = TokenLossWatch("test", IDS, asked=context)
        evaluate(model, watch.segments(stream, stream.first_B), context, observe=watch.add)
        shares.append(watch)

    class Together(Ranks):
        def gathered(self, value: object) -> list[object]:
            return [(share._nats_N, share._visible_N) for share in shares]

    return shares[0].over(Together(0, world, torch.device("cpu")))


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
def test_every_token_has_the_nats_of_a_plain_loop(context: Context, tmp_path: Path) -> None:
    model = build("pre_lnorm_adaptive", n_layer=2)
    found = watched(model, context)
    write_losses(tmp_path / "losses.npz", [found, found], weights="abc")
    _, found = read_losses(tmp_path / "losses.npz")
    assert found.how == {"weights": "abc"}
    expected = nats_by_the_book(model, context)
    assert (found.split, found.context["mem_len"], found.ids_N.tolist()) == (
        "test",
        context.mem_len,
        IDS.tolist(),
    )
    assert np.isnan(found.nats_N[0])
    assert found.nats_N[1:] == pytest.approx(
        [expected[place] for place in range(1, len(IDS))], rel=1e-5
    )
    assert found.visible_N.tolist() == [
        0,
        *(1 + (place - 1) % context.tgt_len for place in range(1, len(IDS))),
    ]


def test_processes_keep_them_together() -> None:
    model = build("pre_lnorm_adaptive", n_layer=2)
    one, two = (watched(model, CONTEXTS[0], world) for world in (1, 2))
    assert two.nats_N == pytest.approx(one.nats_N, rel=1e-5, nan_ok=True)
    assert two.visible_N.tolist() == one.visible_N.tolist()


def test_what_is_no_such_file_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "other.npz", ids=np.zeros(3))
    for name, why in {
        "none": "No such file",
        "text": "not a file of eval",
        "other": "not a file of eval",
    }.items():
        with pytest.raises(UsageError, match=f"{name}.npz: {why}"):
            read_losses(tmp_path / f"{name}.npz")
