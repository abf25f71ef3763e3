"""Which tokens a prediction looked at: the same attention as by distance, token by token."""

import dataclasses

import numpy as np
import pytest
import torch

from txl import Context, ModelConfig, TransformerXL
from txl.config import UsageError
from txl.data_utils.segments import document_streams, scoring_stream
from txl.evaluation.measures import attention as by_token
from txl.evaluation.measures.attention import Map, attention_by_distance, attention_by_token

IDS = np.random.default_rng(0).integers(0, 50, 160)
SMALL = Context(tgt_len=8, mem_len=12)


def model_of(**settings: object) -> TransformerXL:
    sizes = {"n_token": 50, "n_layer": 2, "n_head": 3, "d_head": 4, "d_model": 12, "d_inner": 16}
    model = TransformerXL(ModelConfig(**{**sizes, **settings})).double().eval()  # pyright: ignore[reportArgumentType]
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.7)
    return model


def dense(found: by_token.AttentionByToken, reach: int) -> np.ndarray:
    """Shares by map, token and distance, (P, N, reach + 1)."""
    shares_PNR = np.zeros((len(found.maps), found.n_token, reach + 1))
    at = 0
    for p, count_N in enumerate(found.count_PN):
        for n, count in enumerate(count_N):
            for k in range(at, at + int(count)):
                shares_PNR[p, n, found.back_K[k]] += found.share_K[k] / 255
            at += int(count)
    assert at == len(found.back_K) == len(found.share_K)
    return shares_PNR


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys are kept."""
    monkeypatch.setattr(by_token, "MOST_KEYS", 40)
    monkeypatch.setattr(by_token, "LEAST_SHARE", 1e-9)


CONTEXTS = [
    SMALL,
    dataclasses.replace(SMALL, same_length=True),
    dataclasses.replace(SMALL, mem_len=0),
    dataclasses.replace(SMALL, ext_len=3),
]


@pytest.mark.parametrize(
    "context", CONTEXTS, ids=lambda c: f"{c.mem_len} {c.same_length} {c.ext_len}"
)
@pytest.mark.usefixtures("everything")
def test_averaged_over_a_text_it_is_attention_by_distance(context: Context) -> None:
    model = model_of()
    found = attention_by_token(model, IDS, context, first=1, n_token=len(IDS))
    assert found.n_token == len(IDS) - 1
    shares_PNR = dense(found, 40)
    streams = [scoring_stream(IDS, batch_size=1, tgt_len=8, ext_len=context.ext_len)]
    expected = attention_by_distance(model, streams, context).as_dict()
    heads_PR = shares_PNR[3:].mean(1)
    for k, one in enumerate(expected["bins"]):
        mine_P = heads_PR[:, one["from"] + 1 : one["to"] + 2].sum(-1)
        theirs_LN = np.array(expected["share"])[..., k]
        np.testing.assert_allclose(mine_P, theirs_LN.ravel(), atol=0.02)  # shares are in 255ths


@pytest.mark.usefixtures("everything")
def test_layers_and_all_together_are_means_of_heads() -> None:
    found = attention_by_token(model_of(), IDS, SMALL, first=1, n_token=50)
    shares_PNR = dense(found, 40)
    np.testing.assert_allclose(shares_PNR[1], shares_PNR[3:6].mean(0), atol=0.004)
    np.testing.assert_allclose(shares_PNR[0], shares_PNR[3:].mean(0), atol=0.004)
    assert found.maps[:4] == [Map(None, None), Map(0, None), Map(1, None), Map(0, 0)]
    assert found.maps[-1] == Map(1, 2)
    np.testing.assert_allclose(found.beyond_P, shares_PNR[:, :, 9:].sum(-1).mean(-1), atol=0.01)


@pytest.mark.usefixtures("everything")
def test_a_part_of_a_text_is_read_with_all_that_the_model_sees_before_it() -> None:
    model = model_of()
    whole = dense(attention_by_token(model, IDS, SMALL, first=1, n_token=159), 40)
    part = dense(attention_by_token(model, IDS, SMALL, first=100, n_token=30), 40)
    np.testing.assert_array_equal(part, whole[:, 99:129])


@pytest.mark.usefixtures("everything")
def test_documents_are_read_with_an_empty_memory() -> None:
    model = model_of()
    starts = np.array([0, 41, 90])
    found = attention_by_token(model, IDS, SMALL, first=35, n_token=80, starts=starts)
    shares_PNR = dense(found, 40)
    alone = attention_by_token(model, IDS[40:90], SMALL, first=1, n_token=49)
    np.testing.assert_array_equal(shares_PNR[:, 6:55], dense(alone, 40))
    assert len(document_streams(IDS, starts, batch_size=1, tgt_len=8)) == 3


def test_the_largest_shares_are_kept_and_small_ones_are_not() -> None:
    found = attention_by_token(model_of(), IDS, SMALL, first=20, n_token=40)
    assert found.count_PN.max() <= 6
    assert found.share_K.min() >= round(0.03 * 255)
    assert found.back_K.min() >= 1
    at = 0
    for count in found.count_PN.ravel().tolist():
        shares_K = found.share_K[at : at + count].astype(int)
        assert (np.diff(shares_K) <= 0).all()
        at += count


def test_of_many_heads_those_that_look_furthest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    every = attention_by_token(model, IDS, SMALL, first=1, n_token=100)
    monkeypatch.setattr(by_token, "MOST_HEADS", 5)
    monkeypatch.setattr(by_token, "FURTHEST", 2)
    few = attention_by_token(model, IDS, SMALL, first=1, n_token=100)
    best = sorted(np.argsort(-every.beyond_P[3:])[:2] + 3)
    assert few.maps == [*every.maps[:3], *(every.maps[i] for i in best)]
    assert few.count_PN.shape == (5, 100)


def test_without_softmax_it_is_refused() -> None:
    with pytest.raises(UsageError, match="does not attend by softmax"):
        attention_by_token(
            model_of(attention="performer", position="rotary"), IDS, SMALL, first=1, n_token=5
        )
