"""Attention rules that hold something at random, reversible layers, label smoothing and memories, in training."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import txl.stacks.reversible
from tests.checkpoints import as_of_0_2
from tests.hygiene.toy_memory import ToyMemory
from tests.laws.conftest import context_of
from tests.laws.test_blocks import stored
from tests.training.runs import ADAPTIVE, SHAPE, Run, config
from tests.training.test_resume import RULES, drawn
from txl import Context
from txl.checkpoint import last_checkpoint, load_model
from txl.memory import MEMORIES
from txl.training.meter import Meter
from txl.training.nats import smoothing

REVERSIBLE = SHAPE | {"pre_lnorm": True, "reversible": True}


@pytest.mark.parametrize(("rule", "interval"), [("performer", 2), ("lsh", 2), ("performer", 0)])
def test_what_is_held_at_random_is_drawn_anew_every_so_many_updates(
    tmp_path: Path, rule: str, interval: int
) -> None:
    shape = SHAPE | RULES | {"attention": rule}
    run = Run(config(redraw_interval=interval, max_step=5), shape=shape, folder=tmp_path).begin()
    seen = [drawn(run)]
    run.after_step = lambda: seen.append(drawn(run))
    run.train()
    same = [all(torch.equal(a, y[name]) for name, a in x.items()) for x, y in pairwise(seen)]
    assert same == [True, *([True, False, True, False] if interval else [True] * 4)]
    model, ids = load_model(last_checkpoint(tmp_path)), torch.randint(0, 40, (2, 9))
    hidden = [m.eval()(ids, None, Context()).hidden_BTD for m in (run.state.model, model)]
    assert torch.equal(*hidden)


def test_a_checkpoint_of_version_0_1_is_read(tmp_path: Path) -> None:
    """It has other names for what a rule draws at random, and no checksums."""
    Run(
        config(max_step=2), shape=SHAPE | RULES | {"attention": "performer"}, folder=tmp_path
    ).begin().train()
    checkpoint = last_checkpoint(tmp_path)
    weights = checkpoint.folder / "model.safetensors"
    model = load_model(checkpoint)
    save_file({k.replace(".rule.", ".kernel."): v for k, v in load_file(weights).items()}, weights)
    as_of_0_2(checkpoint.folder, digests=False)
    torch.testing.assert_close(
        load_model(last_checkpoint(tmp_path)).state_dict(), model.state_dict(), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    "settings", [{"dropout": 0.3}, {"batch_chunk": 2, "recompute": True}], ids=str
)
def test_reversible_layers_train_as_kept_ones(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reversible = (
        Run(config(max_step=3, **settings), dtype=torch.float64, shape=REVERSIBLE).begin().trained()
    )

    def kept(
        layers: Any, x1: Tensor, x2: Tensor, memory: Any, feats: Tensor, span: Any, keep: Any
    ) -> Any:
        for layer, mem_BMD in zip(layers, memory, strict=True):
            before, (x1, x2) = x2, stored([layer], x1, x2, [mem_BMD], feats, span)
            keep(before, x2)
        return x1, x2

    monkeypatch.setattr(txl.stacks.reversible, "reversible_layers", kept)
    plain = (
        Run(config(max_step=3, **settings), dtype=torch.float64, shape=REVERSIBLE).begin().trained()
    )
    torch.testing.assert_close(reversible.weights(), plain.weights(), rtol=0, atol=1e-9)


def test_reversible_layers_compute_again_in_the_precision_of_the_forward_pass() -> None:
    full, half = (Run(config(dtype=d), shape=REVERSIBLE).begin() for d in ("float32", "bfloat16"))
    seen = []
    half.state.model.layers[0].ff[0].register_forward_hook(
        lambda _, __, out: seen.append(out.dtype)
    )
    full.train()
    half.train()
    assert seen == [torch.bfloat16] * 12
    assert half.losses[-1].float().mean() == pytest.approx(float(full.losses[-1].mean()), rel=0.01)


@pytest.mark.parametrize("settings", [{"batch_chunk": 2}, {"recompute": True}], ids=str)
def test_a_smoothed_step_is_the_gradient_of_the_smoothed_loss(settings: dict[str, Any]) -> None:
    run = Run(
        config(label_smoothing=0.2, max_step=1, optim="sgd", clip=1e9, **settings),
        dtype=torch.float64,
    ).begin()
    before, model = run.weights(), run.state.model
    batch: list[Tensor] = []
    step = run.state.step
    run.state.step = lambda *both: (batch.extend(both), step(*both))[1]  # type: ignore[method-assign]
    run.train()
    after = run.weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(before[name])
    hidden_BTD, _ = model(batch[0], None, Context(tgt_len=6, mem_len=9))
    nll_BT = model.softmax.nll(hidden_BTD, batch[1])
    torch.testing.assert_close(run.losses[0], nll_BT.detach())  # what is told is not smoothed
    loss = (nll_BT + 0.2 * smoothing(model.softmax, hidden_BTD, batch[1])).mean()
    model.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(after[name], before[name] - run.state.lr * parameter.grad)


def test_what_a_memory_adds_to_the_loss_is_measured_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEMORIES, "toy", ToyMemory)
    run = Run(
        config(memory_parts=2),
        shape=SHAPE | ADAPTIVE | {"memory": "toy"},
        context=context_of("toy"),
    ).begin()
    meter = Meter(run.state.model, run.context, run.ranks, run.dtype)
    nll_BT = run.state.step(*(torch.ones(4, 6, dtype=torch.int64),) * 2)
    meter.add(nll_BT, run.state.memory_loss)
    found = meter.read()
    assert run.state.memory_loss is not None
    assert found["train/memory_loss"] == pytest.approx(float(run.state.memory_loss))
    assert found["train/nll_nats"] == pytest.approx(float(nll_BT.mean()))
