"""The conventions of others, each against a loop written out from what their code does."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.evaluation.test_eval_path import OneOfMany
from tests.golden.test_model import Golden
from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.convert import from_kimiyoung
from txl.data_utils.errors import DataError
from txl.data_utils.segments import equal_streams
from txl.evaluation.config import EvalConfig
from txl.evaluation.conventions import reading_of
from txl.evaluation.score import Score, evaluate
from txl.model.streams import of_hidden
from txl.positions.base import rel_shift
from txl.runs import scoring

IDS = np.random.default_rng(0).integers(0, 50, 157)
GOLDEN = Path(__file__).parents[1] / "golden" / "huggingface.npz"
KEEP_ALL = Context(mem_len=10**6)
CPU = torch.device("cpu")


def score(
    convention: str, model: TransformerXL, context: Context, batch_size: int, ids: np.ndarray = IDS
) -> Score:
    """As eval.py does it."""
    reading = reading_of(convention, model, context, n_token=10**9)
    lengths = {"batch_size": batch_size, "tgt_len": context.tgt_len, "ext_len": context.ext_len}
    stream = equal_streams(ids, **lengths, n_warmup=reading.n_warmup)
    return evaluate(model, stream, reading.context, predictor=reading.predictor)


def columns_of(batch_size: int) -> Tensor:
    """The text as LMOrderedIterator lays it out: (n_step, B), the remainder dropped."""
    n_step = len(IDS) // batch_size
    return torch.from_numpy(IDS[: batch_size * n_step]).view(batch_size, -1).t().contiguous()


def batches(data: Tensor, context: Context) -> Iterator[tuple[int, Tensor, Tensor]]:
    """As LMOrderedIterator's get_batch: where a segment begins, its input and target, batch first."""
    for i in range(0, len(data) - 1, context.tgt_len):
        seq_len = min(context.tgt_len, len(data) - 1 - i)
        yield (
            i,
            data[max(0, i - context.ext_len) : i + seq_len].t(),
            data[i + 1 : i + 1 + seq_len].t(),
        )


def average(weighted: list[tuple[int, float]]) -> float:
    """Their total_loss / total_len: each segment's mean loss weighs its length."""
    return sum(seq_len * loss for seq_len, loss in weighted) / sum(
        seq_len for seq_len, _ in weighted
    )


ORIGINAL = [
    (Context(tgt_len=4, mem_len=0), 1),
    (Context(tgt_len=4, mem_len=6, clamp_len=5), 10),
    (Context(tgt_len=8, mem_len=3), 10),
    (Context(tgt_len=4, mem_len=0, ext_len=5), 10),
    (Context(tgt_len=4, mem_len=6, ext_len=5), 1),
    (Context(tgt_len=3, mem_len=2, ext_len=7), 10),
    (Context(tgt_len=200, mem_len=6), 10),
]


@pytest.mark.parametrize(("context", "batch_size"), ORIGINAL, ids=str)
def test_original(context: Context, batch_size: int) -> None:
    """Ten streams from an empty memory; the memory is cut with its two lengths exchanged."""
    model = build("pre_lnorm_adaptive", n_layer=2)
    memory, weighted = None, []
    for _, input_BT, target_BT in batches(columns_of(batch_size), context):
        mlen, qlen = (memory.layers[0].shape[1] if memory else 0), input_BT.shape[1]
        everything = dataclasses.replace(KEEP_ALL, clamp_len=context.clamp_len)
        nll_BT, seen = model.nll(input_BT, target_BT, memory, everything)
        end = qlen + max(0, mlen - context.ext_len)
        memory = of_hidden([layer[:, max(0, end - context.mem_len) : end] for layer in seen.layers])
        weighted.append((target_BT.shape[1], nll_BT.mean().item()))
    ours = score("original", model, context, batch_size)
    assert ours.tokens == batch_size * (len(IDS) // batch_size - 1)
    assert ours.nats_per_token == pytest.approx(average(weighted), rel=1e-12)


@pytest.mark.parametrize("name", ["eval_len", "ext"])
def test_original_gives_the_figures_of_its_code(name: str) -> None:
    """The golden text as a split: streams that are cut into the golden segments again."""
    golden = Golden(name)
    model, context = golden.model()
    segments = [golden.segment(i) for i in range(golden.n_segment)]
    first_B1 = segments[0][0][:, :1]
    text_BS = torch.cat([first_B1, *(target_BT for _, target_BT, _ in segments)], dim=1)
    losses = torch.cat([loss_BT for _, _, loss_BT in segments], dim=1)
    ours = score("original", model, context, len(text_BS), text_BS.flatten().numpy())
    assert ours.tokens == losses.numel()
    assert ours.nats == pytest.approx(float(losses.sum()), rel=1e-10)


def sentences(n: int) -> np.ndarray:
    """Ids of n sentences of 0 to 8 words, with 0 between them, at the beginning and at the end."""
    dice = np.random.default_rng(1)
    return np.concatenate([[0], *([*dice.integers(1, 50, dice.integers(9)), 0] for _ in range(n))])


def dealt(ids: np.ndarray, batch_size: int, tgt_len: int) -> Iterator[tuple[Tensor, Tensor]]:
    """As LMShuffledIterator deals sentences without shuffling: a row that has only the last token of its sentence left
    takes the next one; where none is left, the segment is given up."""
    borders = np.flatnonzero(ids == 0)
    waiting = [ids[a : b + 1].tolist() for a, b in itertools.pairwise(borders)]
    held: list[list[int]] = [[] for _ in range(batch_size)]
    while True:
        rows: list[list[tuple[int, int]]] = [[] for _ in range(batch_size)]
        for row in range(batch_size):
            while len(rows[row]) < tgt_len:
                if len(held[row]) < 2:
                    if not waiting:
                        return
                    held[row] = waiting.pop(0)
                rows[row].append((held[row][0], held[row][1]))
                held[row] = held[row][1:]
        pairs_BT2 = torch.tensor(rows)
        yield pairs_BT2[..., 0], pairs_BT2[..., 1]


LM1B = [
    ("original", Context(tgt_len=7, mem_len=0), 3),
    ("original", Context(tgt_len=4, ext_len=3), 2),
    ("huggingface", Context(tgt_len=4, mem_len=6), 4),
]


@pytest.mark.parametrize(("convention", "context", "batch_size"), LM1B, ids=str)
def test_sentences_are_dealt_to_the_streams(
    convention: str, context: Context, batch_size: int
) -> None:
    """One Billion Word's: the remainder is dropped; the memory is carried across sentences."""
    model, ids = build("pre_lnorm_adaptive", n_layer=2), sentences(40)
    reading = reading_of(convention, model, context, n_token=len(ids))
    memory, before, nats, words = reading.predictor.fresh_memory(batch_size), None, [], 0
    for input_BT, target_BT in dealt(ids, batch_size, context.tgt_len):
        before = input_BT if before is None else torch.cat([before, input_BT], dim=1)
        read_BT = before[:, -(context.tgt_len + context.ext_len) :]
        nll_BT, memory = reading.predictor.nll(read_BT, target_BT, memory, reading.context)
        nats.append(nll_BT.sum().item())
        words += int((target_BT != 0).sum())
    split = scoring.Split("valid", ids, {"words": (ids != 0).astype(int)}, lambda: IDS[:0], 0)
    config = EvalConfig(convention=convention, batch_size=batch_size)
    for world in (1, 3, 7):
        shares = [
            scoring.score(model, split, context, config, OneOfMany(rank, world, CPU)).score
            for rank in range(world)
        ]
        ours = Score.total(shares)
        assert (ours.tokens, ours.words) == (len(nats) * batch_size * context.tgt_len, words)
        assert ours.nats == pytest.approx(sum(nats), rel=1e-12)


@pytest.mark.parametrize("convention", ["original", "nvidia"])
@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("attn2", {}, "its attn_type 2 adds positions to its memory again at each segment"),
        ("attn3", {}, "its attn_type 3 adds positions to its memory again at each segment"),
        ("attn2", {"mem_len": 0}, ""),
        ("attn3", {"mem_len": 0, "clamp_len": 3}, ""),
        ("attn1", {}, ""),
        ("xl_pre_lnorm", {}, ""),
    ],
)
def test_a_figure_that_is_not_reproduced_says_so(
    convention: str, name: str, changed: dict[str, int], said: str
) -> None:
    model, context = Golden(name).model()
    reading = reading_of(convention, model, dataclasses.replace(context, **changed), n_token=99)
    assert reading.unlike.endswith(said)
    assert bool(reading.unlike) == bool(said)
    assert reading.context.clamp_len == -1  # which attn_type 3 ignored there
    assert reading_of("txl", model, context, n_token=99).unlike == ""


def test_queries_that_are_not_normalised_are_not_reproduced() -> None:
    for name in ("attn2", "attn3"):
        golden = Golden(name)
        model, context = from_kimiyoung(
            golden.state(), golden.config["model"] | {"pre_lnorm": True}
        )
        without = dataclasses.replace(context, mem_len=0)
        normed = "takes queries from states that are not normalised"
        both = f"its attn_type {name[-1]} adds positions to its memory again at each segment and {normed}"
        assert reading_of("original", model, context, n_token=99).unlike.endswith(both)
        assert reading_of("original", model, without, n_token=99).unlike.endswith(
            f"attn_type {name[-1]} {normed}"
        )


def nvidia_mask(qlen: int, mlen: int, mem_len: int, same_length: bool) -> Tensor:
    """True where a query may attend, as its _forward computes it."""
    ones, klen = torch.ones(qlen, mlen + qlen), mlen + qlen
    forbidden = torch.triu(ones, 1 + mlen)
    if same_length:
        mask_len = klen - mem_len - 1
        forbidden = forbidden + torch.tril(ones, -(qlen - mask_len if mask_len > 0 else qlen))
    return ~forbidden.bool()


NVIDIA = [
    (Context(tgt_len=4, mem_len=0), 7),
    (Context(tgt_len=4, mem_len=6), 1),
    (Context(tgt_len=4, mem_len=6, same_length=True, clamp_len=3), 7),
    (Context(tgt_len=3, mem_len=6, same_length=True), 7),
    (Context(tgt_len=4, mem_len=5, ext_len=3), 7),
    (Context(tgt_len=4, mem_len=2, ext_len=3), 7),
]


@pytest.mark.parametrize(("context", "batch_size"), NVIDIA, ids=str)
def test_nvidia(context: Context, batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ceil(mem_len / tgt_len) segments of the stream before, the last one's before the first, warm the memory up. It is
    cut with its two lengths exchanged, as the original's."""
    model = build("pre_lnorm_adaptive", n_layer=2)
    ours = score("nvidia", model, context, batch_size)

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        r: Tensor,
        u: Tensor,
        w: Tensor,
        *,
        scale: float,
        **_: object,
    ) -> Tensor:
        n_new, n_key = q.shape[2], k.shape[2]
        place = rel_shift((q + w[:, None]) @ r.permute(1, 2, 0))
        logit = scale * ((q + u[:, None]) @ k.mT + place)
        visible = nvidia_mask(n_new, n_key - n_new, context.mem_len, context.same_length)
        return logit.masked_fill(~visible, -torch.inf).softmax(-1) @ v

    monkeypatch.setattr("txl.model.attention.rel_attention", attend)
    data = columns_of(batch_size)
    warmup = -(-context.mem_len // context.tgt_len) * context.tgt_len
    data = torch.cat([data.roll((warmup, 1), (0, 1))[:warmup], data])
    memory, weighted = None, []
    everything = dataclasses.replace(KEEP_ALL, clamp_len=context.clamp_len)
    for i, input_BT, target_BT in batches(data, context):
        mlen, qlen = (memory.layers[0].shape[1] if memory else 0), input_BT.shape[1]
        nll_BT, seen = model.nll(input_BT, target_BT, memory, everything)
        end = qlen + max(0, mlen - context.ext_len)
        memory = of_hidden([layer[:, max(0, end - context.mem_len) : end] for layer in seen.layers])
        if i >= warmup:
            weighted.append((target_BT.shape[1], nll_BT.mean().item()))
    assert ours.tokens == batch_size * (len(IDS) // batch_size - 1)
    assert ours.nats_per_token == pytest.approx(average(weighted), rel=1e-12)


@pytest.mark.parametrize(
    ("shape", "context"),
    [
        ("plain", Context(tgt_len=4, mem_len=6)),
        ("pre_lnorm", Context(tgt_len=3, mem_len=5, same_length=True)),
    ],
)
def test_huggingface(shape: str, context: Context) -> None:
    """Streams as the original's; the memory begins as mem_len states of zeros, none of them masked."""
    model = build(shape, n_layer=2)
    memory = of_hidden([torch.zeros(3, context.mem_len, 16, dtype=torch.float64)] * 2)
    weighted = []
    for _, input_BT, target_BT in batches(columns_of(3), context):
        assert memory.length == context.mem_len
        nll_BT, memory = model.nll(input_BT, target_BT, memory, context)
        weighted.append((target_BT.shape[1], nll_BT.mean().item()))
    ours = score("huggingface", model, context, 3)
    assert ours.nats_per_token == pytest.approx(average(weighted), rel=1e-12)
    assert ours.nats_per_token != pytest.approx(
        score("original", model, context, 3).nats_per_token, rel=1e-6
    )


def test_huggingface_gives_the_figures_of_its_code() -> None:
    golden = np.load(GOLDEN)
    state = {
        key.removeprefix("param/"): torch.from_numpy(golden[key]).double()
        for key in golden
        if key.startswith("param/")
    }
    model, context = from_kimiyoung(state, json.loads(str(golden["config"]))["model"])
    ours = score("huggingface", model, context, 2, golden["text"].ravel())
    assert ours.tokens == golden["nll"].size
    assert ours.nats == pytest.approx(golden["nll"].sum(), rel=1e-10)


def test_what_a_convention_cannot_do_is_refused() -> None:
    with pytest.raises(
        DataError,
        match=r"--batch_size 10: streams of 15 tokens are too short to warm up on 20 tokens",
    ):
        equal_streams(IDS, batch_size=10, tgt_len=4, n_warmup=5)
