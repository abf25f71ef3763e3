"""Loss by position: the bins sum to what the evaluation counted, whatever it is cut into."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.data_utils.segments import scoring_stream
from txl.evaluation.measures.loss_by_position import BinnedLoss, LossByPosition
from txl.evaluation.reading import warmup_segments
from txl.evaluation.score import Score, evaluate
from txl.runtime.distributed import Ranks

IDS = np.random.default_rng(0).integers(0, 50, 151)
STARTS = np.array([20, 21, 90])
CONTEXTS = [
    Context(tgt_len=4, mem_len=6),
    Context(tgt_len=13, mem_len=0),
    Context(tgt_len=5, mem_len=4, ext_len=3),
    Context(tgt_len=200, mem_len=6),
]
ALONE = Ranks(0, 1, torch.device("cpu"))


def measured(
    model: TransformerXL, context: Context, *, batch_size: int, starts: np.ndarray | None = STARTS
) -> tuple[Score, dict[str, BinnedLoss]]:
    stream = scoring_stream(
        IDS,
        batch_size=batch_size,
        tgt_len=context.tgt_len,
        ext_len=context.ext_len,
        n_warmup=warmup_segments(model.config.n_layer, context),
    )
    watch = LossByPosition(context, n_token=len(IDS), starts=starts)
    score = evaluate(model, watch.segments(stream, stream.first_B), context, observe=watch.add)
    return score, watch.over(ALONE)


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


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
def test_each_bin_is_a_sum_over_a_plain_loop(context: Context) -> None:
    """Of the losses that are had without watching."""
    model = build("pre_lnorm_adaptive", n_layer=2)
    score, tables = measured(model, context, batch_size=3)
    nats = nats_by_the_book(model, context)
    position = {place: (place - 1) % context.tgt_len for place in nats}
    distance = {
        place: place - max(start for start in (0, *STARTS) if start <= place) for place in nats
    }
    assert tables.keys() == {"position", "distance"}
    for name, value in {"position": position, "distance": distance}.items():
        assert sum(tables[name].tokens_K) == score.tokens == len(IDS) - 1
        assert sum(tables[name].nats_K) == pytest.approx(score.nats, rel=1e-12)
        for row in tables[name].as_dicts():
            inside = [place for place in nats if row["from"] <= value[place] <= row["to"]]
            assert row["tokens"] == len(inside)
            assert row["nats"] == pytest.approx(sum(nats[place] for place in inside), rel=1e-9)


def test_a_text_without_documents_has_no_table_by_distance() -> None:
    assert measured(build("plain"), CONTEXTS[0], batch_size=2, starts=None)[1].keys() == {
        "position"
    }


def test_bins_without_tokens_are_not_told() -> None:
    assert BinnedLoss([0, 1, 2, 5], [0.0, 3.0, 4.0], [0, 2, 4]).as_dicts() == [
        {"from": 1, "to": 1, "tokens": 2, "nats": 3.0, "nats_per_token": 1.5},
        {"from": 2, "to": 4, "tokens": 4, "nats": 4.0, "nats_per_token": 1.0},
    ]


class BothRanks(Ranks):
    """Two processes that take turns: what one has handed in is there when the other does."""

    shares: ClassVar[list] = []

    def gathered(self, value: Any) -> list:
        self.shares.append(value)
        return self.shares


def test_the_shares_of_two_ranks_add_up() -> None:
    model, context = build("plain", n_layer=2), Context(tgt_len=4, mem_len=6)
    for rank in (0, 1):
        stream = scoring_stream(IDS, batch_size=3, tgt_len=4, n_warmup=4).share(rank, 2)
        watch = LossByPosition(context, n_token=len(IDS), starts=STARTS)
        evaluate(model, watch.segments(stream, stream.first_B), context, observe=watch.add)
        tables = watch.over(BothRanks(rank, 2, torch.device("cpu")))
    for name, table in measured(model, context, batch_size=3)[1].items():
        assert tables[name].tokens_K == table.tokens_K
        assert tables[name].nats_K == pytest.approx(table.nats_K, rel=1e-12)
