"""The model computes what the original computes: losses, memories, log-probabilities, gradients, to 1e-9 in float64."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from txl import Context, Memory, TransformerXL
from txl.convert import from_kimiyoung, to_kimiyoung

FOLDER = Path(__file__).parent / "model"
NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))
RIGHT_IN_THE_ORIGINAL = [name for name in NAMES if name != "ext"]


class Golden:
    """One file of golden numbers, batch first."""

    def __init__(self, name: str) -> None:
        self.file = np.load(FOLDER / f"{name}.npz")
        self.config = json.loads(str(self.file["config"]))
        self.n_segment = self.config["n_seg"]

    def model(self) -> tuple[TransformerXL, Context]:
        state = {k.removeprefix("param/"): self.read(k).double() for k in self.file.files if k.startswith("param/")}
        model, context = from_kimiyoung(state, self.config["model"])
        return model.eval(), dataclasses.replace(context, **(self.config["reset"] or {}))

    def read(self, key: str) -> Tensor:
        return torch.from_numpy(self.file[key])

    def segment(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        data, target, loss = (self.read(f"seg{i}/{key}").T for key in ("data", "target", "loss"))
        return data.long(), target.long(), loss

    def memory(self, i: int) -> list[Tensor]:
        n_layer = self.config["model"]["n_layer"]
        keys = [f"seg{i}/mem{layer}" for layer in range(n_layer)]
        return [self.read(key).transpose(0, 1) for key in keys if key in self.file.files]

    def gradients(self) -> dict[str, Tensor]:
        return {k.removeprefix("grad/"): self.read(k) for k in self.file.files if k.startswith("grad/")}


def assert_same(ours: Tensor, golden: Tensor) -> None:
    torch.testing.assert_close(ours, golden, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", RIGHT_IN_THE_ORIGINAL)
def test_losses_and_memory_over_all_segments(name: str) -> None:
    golden = Golden(name)
    model, context = golden.model()
    memory = None
    for i in range(golden.n_segment):
        data_BT, target_BT, loss_BT = golden.segment(i)
        nll_BT, memory = model.nll(data_BT, target_BT, memory, context)
        assert_same(nll_BT, loss_BT)
    theirs = golden.memory(golden.n_segment - 1)
    assert len(theirs) == (len(memory.layers) if context.mem_len else 0)
    for ours, their in zip(memory.layers, theirs, strict=False):
        assert_same(ours, their)


@pytest.mark.parametrize("name", NAMES)
def test_log_probabilities_of_all_words(name: str) -> None:
    golden = Golden(name)
    model, _ = golden.model()
    last = f"seg{golden.n_segment - 1}"
    assert_same(model.log_prob(golden.read(f"{last}/hidden_last")), golden.read(f"{last}/logprob_last"))


@pytest.mark.parametrize("name", [name for name in RIGHT_IN_THE_ORIGINAL if Golden(name).gradients()])
def test_gradient_of_every_parameter(name: str) -> None:
    golden = Golden(name)
    model, context = golden.model()
    memory = None
    for i in range(golden.config["grad_segment"] + 1):
        data_BT, target_BT, _ = golden.segment(i)
        nll_BT, memory = model.nll(data_BT, target_BT, memory, context)
    nll_BT.mean().backward()
    ours = to_kimiyoung(model, {name: p.grad for name, p in model.named_parameters()})
    theirs = golden.gradients()
    assert ours.keys() == theirs.keys()
    for key, gradient in theirs.items():
        assert_same(ours[key], gradient)


def test_ext_len_where_the_original_is_right() -> None:
    """Given a memory that is long enough, re-read tokens, losses and the next memory are the original's."""
    golden = Golden("ext")
    model, context = golden.model()
    for i in range(2, golden.n_segment):
        data_BT, target_BT, loss_BT = golden.segment(i)
        nll_BT, memory = model.nll(data_BT, target_BT, Memory(tuple(golden.memory(i - 1))), context)
        assert_same(nll_BT, loss_BT)
        for ours, theirs in zip(memory.layers, golden.memory(i), strict=True):
            assert_same(ours, theirs)


def test_ext_len_where_the_original_remembers_tokens_it_reads_again() -> None:
    """The original exchanges two lengths when it cuts its memory (its _update_mems is called with (mlen, qlen)).

    After a first segment of 8 tokens with ext_len 4 it remembers tokens 0 to 7, though the second segment reads tokens
    4 to 15: tokens 4 to 7 are seen twice. We remember tokens 0 to 3.
    """
    golden = Golden("ext")
    model, context = golden.model()
    data_BT, target_BT, loss_BT = golden.segment(0)
    nll_BT, memory = model.nll(data_BT, target_BT, None, context)
    assert_same(nll_BT, loss_BT)
    for ours, theirs in zip(memory.layers, golden.memory(0), strict=True):
        assert theirs.shape[1] == 8
        assert_same(ours, theirs[:, :4])


@pytest.mark.parametrize("name", NAMES)
def test_export_is_the_inverse_of_import(name: str) -> None:
    golden = Golden(name)
    exported = to_kimiyoung(golden.model()[0])
    theirs = {k.removeprefix("param/"): golden.read(k).double() for k in golden.file.files if k.startswith("param/")}
    assert exported.keys() == theirs.keys()
    assert all(torch.equal(exported[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("name", ["xl", "adaptive_div2"])
def test_float32_weights_make_a_float32_model(name: str) -> None:
    golden = Golden(name)
    state = {k.removeprefix("param/"): golden.read(k).float() for k in golden.file.files if k.startswith("param/")}
    model, context = from_kimiyoung(state, golden.config["model"])
    data_BT, target_BT, loss_BT = golden.segment(0)
    nll_BT, _ = model.eval().nll(data_BT, target_BT, None, context)
    assert nll_BT.dtype == torch.float32
    torch.testing.assert_close(nll_BT.double(), loss_BT, rtol=0, atol=5e-6)
