"""Which files of the package one training step, one segment of an evaluation and one generated token enter."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import txl
from txl import Context, ModelConfig, TransformerXL
from txl.inference.cuda_graph import frozen
from txl.inference.reader import Reader
from txl.training.nats import Nats

PACKAGE = Path(txl.__file__).parent
SHAPE = {
    "n_token": 60,
    "n_layer": 2,
    "n_head": 2,
    "d_head": 8,
    "d_model": 16,
    "d_inner": 20,
    "cutoffs": (20,),
    "div_val": 2,
}
CONTEXT = Context(tgt_len=5, mem_len=7)
IDS = torch.randint(0, 60, (2, 5), generator=torch.Generator().manual_seed(0))
CORE = {
    f"model/{name}.py"
    for name in "adaptive attention feed_forward layer memory span transformer".split()
}
CORE |= {"positions/rel_sinusoid.py"}
"""The paper's model."""
OUTSIDE = ("ops", "config.py", "errors.py", "training", "inference")
"""Operators, settings and what is said of wrong ones, and those who call the model."""


def entered(work: Callable[[], object]) -> set[str]:
    """The files whose functions are called, relative to the package."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files.add(path.relative_to(PACKAGE).as_posix())

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return files


def of_the_model(files: set[str]) -> set[str]:
    return {name for name in files if name.split("/")[0] not in OUTSIDE}


def step(**settings: Any) -> set[str]:
    """The model's files that a training step enters, after one that makes what is made once."""
    loss = Nats(
        TransformerXL(ModelConfig(**SHAPE, **settings), dropout=0.1, dropatt=0.1).train(), 0.0
    )
    _, _, memory, _ = loss(IDS, IDS, None, CONTEXT)

    def once() -> None:
        loss_BT, *_ = loss(IDS, IDS, memory, CONTEXT)
        loss_BT.mean().backward()

    return of_the_model(entered(once))


def test_a_training_step_enters_the_core_and_no_more() -> None:
    files = step()
    assert files <= CORE
    assert len(CORE) <= 8
    assert sum(len((PACKAGE / name).read_text().splitlines()) for name in files) <= 840


@pytest.mark.parametrize("memory", ["compressive", "knn"])
def test_another_memory_enters_its_own_files_besides(memory: str) -> None:
    own = {f"memory/{memory}.py"} | ({"memory/beside.py"} if memory == "knn" else set())
    assert step(memory=memory, compress_rate=2) <= CORE | own


def test_a_segment_of_an_evaluation_and_a_token_enter_the_core_and_the_reader() -> None:
    model = TransformerXL(ModelConfig(**SHAPE)).eval()
    reader, segments = Reader(model, CONTEXT, 1), frozen(model)
    _, memory = segments(IDS, segments.fresh_memory(2), CONTEXT)
    reader.read(IDS[:1])
    for work in (lambda: segments.nll(IDS, IDS, memory, CONTEXT), lambda: reader.read(IDS[:1, :1])):
        files = entered(work)
        assert any(name.startswith("inference/") for name in files)
        assert of_the_model(files) - {"positions/base.py"} <= CORE


def test_a_file_that_is_entered_is_seen() -> None:
    assert "model/span.py" in entered(
        lambda: Context(tgt_len=3) and txl.Span(0, 2).mask(torch.device("cpu"))
    )
