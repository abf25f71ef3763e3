"""The paper's model in one file is the package's."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples.minimal import TransformerXL as Minimal
from tests.forks import ROOT
from txl import Context, ModelConfig, TransformerXL

FILE = ROOT / "examples" / "minimal.py"
SHAPE = {"n_token": 23, "n_layer": 3, "d_model": 12, "n_head": 3, "d_inner": 20}
CONTEXT = Context(tgt_len=5, mem_len=7)
SHARED = {
    "u_NH": "layers.0.attn.pos.u_NH",
    "v_NH": "layers.0.attn.pos.v_NH",
    "embedding.weight": "word_emb.tables.0",
    "bias_V": "softmax.biases.0",
}


def as_in_the_package(name: str) -> str:
    """The package's name of a parameter of the file."""
    if name in SHARED:
        return SHARED[name]
    for net in ("q_net", "k_net", "v_net", "o_net"):
        name = name.replace(net, f"attn.{net}")
    return name.replace("r_net", "attn.pos.r_net")


def test_losses_memories_and_gradients_are_those_of_the_package() -> None:
    torch.manual_seed(0)
    theirs = TransformerXL(ModelConfig(**SHAPE, d_head=4)).double()
    ours = Minimal(**SHAPE, mem_len=7, dropout=0.0).double()
    named = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, p in ours.named_parameters():
            named[as_in_the_package(name)].copy_(p.normal_(0, 0.3))
    assert len(named) == len(dict(ours.named_parameters()))
    memory, our_memory = None, None
    for _ in range(3):
        input_BT, target_BT = torch.randint(0, 23, (2, 2, 5))
        nll_BT, memory = theirs.nll(input_BT, target_BT, memory, CONTEXT)
        logit_BTV, our_memory = ours(input_BT, our_memory)
        own_BT = -logit_BTV.log_softmax(-1).gather(2, target_BT[..., None])[..., 0]
        nll_BT.sum().backward()
        own_BT.sum().backward()
        close(own_BT, nll_BT)
        for one, state in zip(our_memory, memory.states, strict=True):
            close(one, state.hidden_BMD)
    for name, p in ours.named_parameters():
        close(p.grad, named[as_in_the_package(name)].grad)


def close(one: Tensor | None, other: Tensor | None) -> None:
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_it_trains_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abcd " * 2000)
    monkeypatch.setattr(sys, "argv", ["minimal.py", str(text), "0.01"])
    runpy.run_path(str(FILE), run_name="__main__")
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("update 1:")
    assert len(last) == 500
    assert set(last) <= set("abcd ")


def test_it_stays_a_page_to_read() -> None:
    assert len(FILE.read_text().splitlines()) <= 200
