"""A disturbed memory against what it says it is: states in another order, or of another stream."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.laws.conftest import build
from tests.training.runs import ALONE
from txl import Context, TransformerXL
from txl.config import UsageError
from txl.data_utils.segments import RowStream
from txl.evaluation.config import CacheConfig
from txl.evaluation.test_time import Additions, prepared
from txl.evaluation.test_time.disturbed import DisturbConfig, DisturbedMemory
from txl.model.streams import Memory

CONTEXT = Context(tgt_len=4, mem_len=9)
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sinusoid_input": {},
    "rotary": {"pre_lnorm": True},
    "same": {},
    "alibi": {"memory": "sinks", "n_sink": 2},
}
"""Remembered as keys and values, as hidden states, as keys that are turned, as outputs, and behind sinks."""


def text(n_stream: int = 4) -> Tensor:
    return torch.randint(0, 50, (n_stream, 27), generator=torch.Generator().manual_seed(5))


def nats(model: TransformerXL, settings: dict[str, Any], text_BL: Tensor) -> Tensor:
    """Nats of every token but the first, (B, L - 1)."""
    predictor = DisturbedMemory(model, DisturbConfig(**settings))
    memory, parts = predictor.fresh_memory(len(text_BL)), []
    for begin in range(0, text_BL.shape[1] - 1, CONTEXT.tgt_len):
        piece_BT = text_BL[:, begin : begin + CONTEXT.tgt_len + 1]
        nll_BT, memory = predictor.nll(piece_BT[:, :-1], piece_BT[:, 1:], memory, CONTEXT)
        parts.append(nll_BT)
    return torch.cat(parts, dim=1)


@torch.no_grad()
def by_hand(model: TransformerXL, settings: dict[str, Any], text_BL: Tensor) -> Tensor:
    """The same, of hidden states and one at a time."""
    draw = torch.Generator().manual_seed(0)
    memory, parts = model.empty_memory(len(text_BL)), []
    for begin in range(0, text_BL.shape[1] - 1, CONTEXT.tgt_len):
        piece_BT = text_BL[:, begin : begin + CONTEXT.tgt_len + 1]
        n_sink = 2 if model.config.memory == "sinks" else 0
        n_old = max(0, memory.length - n_sink - settings["disturb_beyond"])
        order = torch.randperm(n_old, generator=draw).tolist() if n_old else []
        states = []
        for state in memory.states:
            x_BMD = state.hidden_BMD.clone()
            for b in range(len(x_BMD)):
                for i in range(n_old):
                    if settings["disturb"] == "shuffle":
                        x_BMD[b, n_sink + i] = state.hidden_BMD[b, n_sink + order[i]]
                    else:
                        x_BMD[b, n_sink + i] = state.hidden_BMD[b - len(x_BMD) // 2, n_sink + i]
            states.append(state._replace(hidden_BMD=x_BMD))
        read = (piece_BT[:, :-1], piece_BT[:, 1:])
        nll_BT, _ = model.nll(*read, Memory(tuple(states)), CONTEXT)
        _, memory = model.nll(*read, memory, CONTEXT)
        parts.append(nll_BT)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("disturb", ["shuffle", "exchange"])
@pytest.mark.parametrize("beyond", [0, 5])
def test_a_disturbed_memory_is_as_by_hand(name: str, disturb: str, beyond: int) -> None:
    model = build(name, **MODELS[name]).eval()
    settings = {"disturb": disturb, "disturb_beyond": beyond}
    found = nats(model, settings, text())
    torch.testing.assert_close(found, by_hand(model, settings, text()), rtol=0, atol=1e-12)
    plain = nats(model, {"disturb": disturb, "disturb_beyond": CONTEXT.mem_len}, text())
    assert not torch.allclose(found, plain, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_beyond_the_memory_nothing_is_disturbed(name: str) -> None:
    model, text_BL = build(name, **MODELS[name]).eval(), text()
    memory, parts = None, []
    for begin in range(0, 26, 4):
        piece_BT = text_BL[:, begin : begin + 5]
        nll_BT, memory = model.nll(piece_BT[:, :-1], piece_BT[:, 1:], memory, CONTEXT)
        parts.append(nll_BT)
    found = nats(model, {"disturb": "shuffle", "disturb_beyond": CONTEXT.mem_len}, text_BL)
    torch.testing.assert_close(found, torch.cat(parts, dim=1), rtol=0, atol=1e-12)


def test_a_text_is_disturbed_alike_each_time() -> None:
    model, settings = build("plain").eval(), {"disturb": "shuffle"}
    assert torch.equal(nats(model, settings, text()), nats(model, settings, text()))


@pytest.mark.parametrize("memory", ["infini", "none"])
def test_a_memory_that_cannot_be_disturbed_is_refused(memory: str) -> None:
    additions = Additions(disturb=DisturbConfig(disturb="shuffle"))
    model = build("plain", memory=memory)
    refusal = f"^--disturb shuffle: changes the states of --memory fifo or sinks, .* is {memory}"
    with pytest.raises(UsageError, match=refusal):
        prepared(additions, model, None, CONTEXT, batch_size=3, ranks=ALONE)


@pytest.mark.parametrize("first", [[0, 24, 48], [0, 23]])
def test_streams_stand_further_apart_than_a_segment_sees(first: list[int]) -> None:
    exchanged = DisturbConfig(disturb="exchange")
    nearest = min(abs(a - b) for a in first for b in first if a != b)
    seen = nearest - CONTEXT.tgt_len - 1
    row_B = np.array(first)
    streams = [RowStream(np.zeros(99), row_B, row_B + 20, 0 * row_B, CONTEXT.tgt_len, 0)]
    exchanged.require_apart(streams, dataclasses.replace(CONTEXT, mem_len=seen))
    with pytest.raises(UsageError, match=f"streams {nearest} tokens apart"):
        exchanged.require_apart(streams, dataclasses.replace(CONTEXT, mem_len=seen + 1))


def test_it_is_asked_of_the_model_alone() -> None:
    shuffled = DisturbConfig(disturb="shuffle", disturb_beyond=7)
    assert Additions(disturb=shuffled).name == "memory shuffled beyond 7"
    with pytest.raises(UsageError, match="memory alone; drop it, or cache"):
        Additions(cache=CacheConfig(cache_size=3), disturb=shuffled).check("float32", 1)
    exchanged = dataclasses.replace(shuffled, disturb="exchange")
    Additions(disturb=exchanged).check("float32", 1)
    with pytest.raises(UsageError, match="exchange: for one process, and there are 2"):
        Additions(disturb=exchanged).check("float32", 2)
