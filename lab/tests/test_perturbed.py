"""A perturbed memory against what it says it is: states in another order, or of another stream."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lab.perturbed import PerturbConfig, PerturbedMemory, require_perturbs
from tests.cli.conftest import Here
from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.config import UsageError
from txl.data_utils.segments import RowStream
from txl.evaluation.config import EvalConfig
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
    predictor = PerturbedMemory(model, PerturbConfig(**settings))
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
def test_a_perturbed_memory_is_as_by_hand(name: str, disturb: str, beyond: int) -> None:
    model = build(name, **MODELS[name]).eval()
    settings = {"disturb": disturb, "disturb_beyond": beyond}
    found = nats(model, settings, text())
    torch.testing.assert_close(found, by_hand(model, settings, text()), rtol=0, atol=1e-12)
    plain = nats(model, {"disturb": disturb, "disturb_beyond": CONTEXT.mem_len}, text())
    assert not torch.allclose(found, plain, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_beyond_the_memory_nothing_is_perturbed(name: str) -> None:
    model, text_BL = build(name, **MODELS[name]).eval(), text()
    memory, parts = None, []
    for begin in range(0, 26, 4):
        piece_BT = text_BL[:, begin : begin + 5]
        nll_BT, memory = model.nll(piece_BT[:, :-1], piece_BT[:, 1:], memory, CONTEXT)
        parts.append(nll_BT)
    found = nats(model, {"disturb": "shuffle", "disturb_beyond": CONTEXT.mem_len}, text_BL)
    torch.testing.assert_close(found, torch.cat(parts, dim=1), rtol=0, atol=1e-12)


def test_a_text_is_perturbed_alike_each_time() -> None:
    model, settings = build("plain").eval(), {"disturb": "shuffle"}
    assert torch.equal(nats(model, settings, text()), nats(model, settings, text()))


@pytest.mark.parametrize("memory", ["infini", "none"])
def test_a_memory_that_cannot_be_perturbed_is_refused(memory: str) -> None:
    model = build("plain", memory=memory)
    refusal = f"^--disturb shuffle: changes the states of --memory fifo or sinks, .* is {memory}"
    with pytest.raises(UsageError, match=refusal):
        require_perturbs(model, PerturbConfig())


@pytest.mark.parametrize("first", [[0, 24, 48], [0, 23]])
def test_streams_stand_further_apart_than_a_segment_sees(first: list[int]) -> None:
    exchanged = PerturbConfig(disturb="exchange")
    nearest = min(abs(a - b) for a in first for b in first if a != b)
    seen = nearest - CONTEXT.tgt_len - 1
    row_B = np.array(first)
    streams = [RowStream(np.zeros(99), row_B, row_B + 20, 0 * row_B, CONTEXT.tgt_len, 0)]
    exchanged.require_apart(streams, dataclasses.replace(CONTEXT, mem_len=seen))
    with pytest.raises(UsageError, match=f"streams {nearest} tokens apart"):
        exchanged.require_apart(streams, dataclasses.replace(CONTEXT, mem_len=seen + 1))


def test_memories_are_exchanged_in_one_process() -> None:
    config, contexts = EvalConfig(), [Context(mem_len=9)]
    PerturbConfig(disturb_beyond=7).require_reading(contexts, config, 2)
    PerturbConfig(disturb="exchange").require_reading(contexts, config, 1)
    with pytest.raises(UsageError, match="exchange: for one process, and there are 2"):
        PerturbConfig(disturb="exchange").require_reading(contexts, config, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("--disturb shuffle --disturb_beyond 4", "memory shuffled beyond 4"),
        ("--disturb exchange", "memory exchanged beyond 0"),
    ],
)
def test_the_plain_result_stands_beside_the_one_with_the_perturbation(
    here: Here, flags: str, name: str
) -> None:
    (alone,), result = (
        here.rows("eval --split valid"),
        here.result(f"perturbed --split valid {flags}"),
    )
    plain, perturbed = result["rows"]
    assert (plain["added"], perturbed["added"]) == ("", name)
    assert plain["nats"] == pytest.approx(alone["nats"], rel=1e-5)
    assert perturbed["tokens"] == alone["tokens"]
    assert perturbed["nats"] != pytest.approx(alone["nats"], rel=1e-4)
    lines = result["out"].splitlines()
    assert any(line.endswith(f"  {name}") for line in lines)


def test_what_a_perturbed_memory_costs_is_said(here: Here) -> None:
    """Nats a token more than over the memory as it is, of both ways to cut the text."""
    valid = Path("text/valid.txt")
    valid.write_text(valid.read_text() * 40)
    flags = "--disturb shuffle --disturb_beyond 2 --mem_len 4 12 --borders both"
    result = here.result(f"perturbed --split valid {flags}")
    rows = {(row["added"] != "", row["mem_len"], row["borders"]): row for row in result["rows"]}
    assert len(result["costs"]) == 4
    for cost, (mem_len, borders) in zip(
        result["costs"], [(4, "cut"), (12, "cut"), (4, "aside"), (12, "aside")], strict=True
    ):
        perturbed = rows[True, mem_len, borders]["nats_per_token"]
        lost = perturbed - rows[False, mem_len, borders]["nats_per_token"]
        assert f"mem_len {mem_len}, memory shuffled beyond 2" in cost["reading"]
        assert cost["nats"]["mean"] == pytest.approx(lost, abs=1e-5)
        assert cost["nats"]["low"] <= cost["nats"]["mean"] <= cost["nats"]["high"]
        assert cost["sentence"] in result["out"]


def test_a_text_too_short_to_tell_what_a_perturbed_memory_costs(here: Here) -> None:
    (cost,) = here.result("perturbed --split valid --mem_len 40")["costs"]
    assert cost["nats"] is None
    assert "too short to tell" in cost["sentence"]


@pytest.mark.parametrize(
    ("flags", "refusal"),
    [
        ("exchange --batch_size 1", "in one stream, and there is no other; give --batch_size 2"),
        (
            "exchange --mem_len 40 --batch_size 2",
            "streams 32 tokens apart, of which a segment sees",
        ),
        ("exchange --reset document", "exchanges streams of one text; give --reset never"),
        ("shuffle --mem_len 6 5 --disturb_beyond 4", "a memory of 5 has nothing older to shuffle"),
        ("exchange --mem_len 4 --disturb_beyond 4", "has nothing older to exchange; give less, or"),
        ("shuffle --convention nvidia", "reproduces figures of plain models; drop it"),
    ],
)
def test_what_would_perturb_nothing_or_give_a_stream_its_own_text_is_refused(
    here: Here, flags: str, refusal: str
) -> None:
    assert refusal in here.refused(f"perturbed --split valid --disturb {flags}")
