"""The conventions of others, each against a loop written out from what their code does."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.golden.test_model import Golden
from tests.laws.conftest import build
from txl import Context, Memory, TransformerXL
from txl.convert import from_kimiyoung
from txl.data_utils.raw_text import DataError
from txl.data_utils.scoring_stream import equal_streams
from txl.evaluation.conventions import reading_of
from txl.evaluation.score import Score, evaluate
from txl.positions.base import rel_shift

IDS = np.random.default_rng(0).integers(0, 50, 157)
GOLDEN = Path(__file__).parents[1] / "golden" / "huggingface.npz"
KEEP_ALL = Context(mem_len=10**6)


def score(convention: str, model: TransformerXL, context: Context, batch_size: int, ids: np.ndarray = IDS) -> Score:
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
        yield i, data[max(0, i - context.ext_len) : i + seq_len].t(), data[i + 1 : i + 1 + seq_len].t()


def average(weighted: list[tuple[int, float]]) -> float:
    """Their total_loss / total_len: each segment's mean loss weighs its length."""
    return sum(seq_len * loss for seq_len, loss in weighted) / sum(seq_len for seq_len, _ in weighted)


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
        memory = Memory(tuple(layer[:, max(0, end - context.mem_len) : end] for layer in seen.layers))
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
]


@pytest.mark.parametrize(("context", "batch_size"), NVIDIA, ids=str)
def test_nvidia(context: Context, batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ceil(mem_len / tgt_len) segments of the stream before, the last one's before the first, warm the memory up."""
    model = build("pre_lnorm_adaptive", n_layer=2)
    ours = score("nvidia", model, context, batch_size)

    def attend(
        q: Tensor, k: Tensor, v: Tensor, r: Tensor, u: Tensor, w: Tensor, *, scale: float, **_: object
    ) -> Tensor:
        n_new, n_key = q.shape[2], k.shape[2]
        place = rel_shift((q + w[:, None]) @ r.permute(1, 2, 0))
        logit = scale * ((q + u[:, None]) @ k.mT + place)
        visible = nvidia_mask(n_new, n_key - n_new, context.mem_len, context.same_length)
        return logit.masked_fill(~visible, -torch.inf).softmax(-1) @ v

    monkeypatch.setattr("txl.attention_rules.softmax.rel_attention", attend)
    data = columns_of(batch_size)
    warmup = -(-context.mem_len // context.tgt_len) * context.tgt_len
    data = torch.cat([data.roll((warmup, 1), (0, 1))[:warmup], data])
    memory, weighted = None, []
    plain = dataclasses.replace(context, same_length=False)
    for i, input_BT, target_BT in batches(data, context):
        nll_BT, memory = model.nll(input_BT, target_BT, memory, plain)
        if i >= warmup:
            weighted.append((target_BT.shape[1], nll_BT.mean().item()))
    assert ours.tokens == batch_size * (len(IDS) // batch_size - 1)
    assert ours.nats_per_token == pytest.approx(average(weighted), rel=1e-12)


@pytest.mark.parametrize(
    ("shape", "context"),
    [("plain", Context(tgt_len=4, mem_len=6)), ("pre_lnorm", Context(tgt_len=3, mem_len=5, same_length=True))],
)
def test_huggingface(shape: str, context: Context) -> None:
    """Streams as the original's; the memory begins as mem_len states of zeros, none of them masked."""
    model = build(shape, n_layer=2)
    memory = Memory((torch.zeros(3, context.mem_len, 16, dtype=torch.float64),) * 2)
    weighted = []
    for _, input_BT, target_BT in batches(columns_of(3), context):
        assert memory.length == context.mem_len
        nll_BT, memory = model.nll(input_BT, target_BT, memory, context)
        weighted.append((target_BT.shape[1], nll_BT.mean().item()))
    ours = score("huggingface", model, context, 3)
    assert ours.nats_per_token == pytest.approx(average(weighted), rel=1e-12)
    assert ours.nats_per_token != pytest.approx(score("original", model, context, 3).nats_per_token, rel=1e-6)


def test_huggingface_gives_the_figures_of_its_code() -> None:
    golden = np.load(GOLDEN)
    state = {
        key.removeprefix("param/"): torch.from_numpy(golden[key]).double() for key in golden if key.startswith("param/")
    }
    model, context = from_kimiyoung(state, json.loads(str(golden["config"]))["model"])
    ours = score("huggingface", model, context, 2, golden["text"].ravel())
    assert ours.tokens == golden["nll"].size
    assert ours.nats == pytest.approx(golden["nll"].sum(), rel=1e-10)


def test_what_a_convention_cannot_do_is_refused() -> None:
    with pytest.raises(DataError, match=r"--batch_size 10: streams of 15 tokens are too short to warm up on 20 tokens"):
        equal_streams(IDS, batch_size=10, tgt_len=4, n_warmup=5)
