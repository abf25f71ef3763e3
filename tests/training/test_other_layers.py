"""Attention rules that hold something at random, and reversible layers, in training."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import txl.model.body
from tests.checkpoints import as_of_0_2
from tests.laws.test_blocks import stored
from tests.training.runs import SHAPE, Run, config, on_ranks, same_weights
from txl import Context
from txl.checkpoint import last_checkpoint, load_model
from txl.positions import POSITION_ENCODINGS, PositionEncoding
from txl.runtime.distributed import Ranks

RULES = {"n_feature": 6, "lsh_round": 2, "lsh_bucket": 4, "lsh_reach": 3, "position": "toy_none"}
REVERSIBLE = SHAPE | {"pre_lnorm": True, "reversible": True}


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POSITION_ENCODINGS, "toy_none", PositionEncoding)


def shape_of(rule: str) -> dict[str, Any]:
    return SHAPE | RULES | {"attention": rule}


def drawn(run: Run) -> list[Tensor]:
    return [b.clone() for name, b in run.state.model.named_buffers() if "rule" in name]


@pytest.mark.parametrize("rule", ["performer", "lsh"])
def test_what_is_held_at_random_is_drawn_anew_every_so_many_updates(rule: str) -> None:
    run = Run(config(redraw_interval=2, max_step=5), shape=shape_of(rule)).begin()
    seen, step = [], run.state.step

    def noted(*batch: Tensor) -> Tensor:
        nll_BT = step(*batch)
        seen.append(drawn(run))
        return nll_BT

    run.state.step = noted  # type: ignore[method-assign]
    run.train()
    same = [all(torch.equal(a, b) for a, b in zip(x, y, strict=True)) for x, y in pairwise(seen)]
    assert same == [True, False, True, False]


def test_without_an_interval_it_is_drawn_once() -> None:
    run = Run(config(redraw_interval=0), shape=shape_of("performer")).begin()
    before = drawn(run)
    run.train()
    assert all(torch.equal(a, b) for a, b in zip(before, drawn(run), strict=True))


@pytest.mark.parametrize("rule", ["performer", "lsh"])
@pytest.mark.parametrize(("stop_at", "interval"), [(3, 2), (4, 2), (3, 0)])
def test_a_run_goes_on_with_what_was_drawn(tmp_path: Path, rule: str, stop_at: int, interval: int) -> None:
    shape, settings = shape_of(rule), {"redraw_interval": interval, "dropout": 0.2}
    whole = Run(config(**settings), shape=shape).begin()
    whole.train()
    first = Run(config(**settings | {"max_step": stop_at}), shape=shape, folder=tmp_path).begin()
    first.train()
    torch.manual_seed(999)
    second = Run(config(**settings), shape=shape, folder=tmp_path).resume()
    assert all(torch.equal(a, b) for a, b in zip(drawn(first), drawn(second), strict=True))
    second.train()
    assert same_weights(whole, second)
    assert all(torch.equal(a, b) for a, b in zip(drawn(whole), drawn(second), strict=True))


@pytest.mark.parametrize("rule", ["performer", "lsh"])
def test_a_checkpoint_computes_what_the_model_computed(tmp_path: Path, rule: str) -> None:
    run = Run(config(redraw_interval=2), shape=shape_of(rule), folder=tmp_path).begin()
    run.train()
    model = load_model(last_checkpoint(tmp_path))
    ids = torch.randint(0, 40, (2, 9))
    hidden = [m.eval()(ids, None, Context()).hidden_BTD for m in (run.state.model, model)]
    assert torch.equal(*hidden)


def test_a_checkpoint_of_version_0_1_is_read(tmp_path: Path) -> None:
    """It has other names for what a rule draws at random, and no checksums."""
    Run(config(max_step=2), shape=shape_of("performer"), folder=tmp_path).begin().train()
    checkpoint = last_checkpoint(tmp_path)
    weights = checkpoint.folder / "model.safetensors"
    model = load_model(checkpoint)
    save_file({k.replace(".rule.", ".kernel."): v for k, v in load_file(weights).items()}, weights)
    as_of_0_2(checkpoint.folder, digests=False)
    again = load_model(last_checkpoint(tmp_path)).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("settings", [{}, {"dropout": 0.3}, {"batch_chunk": 2}, {"recompute": True}], ids=str)
def test_reversible_layers_train_as_if_activations_were_kept(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reversible = Run(config(**settings), dtype=torch.float64, shape=REVERSIBLE).begin()
    reversible.train()

    def kept(layers: Any, x1: Tensor, x2: Tensor, memory: Any, feats: Tensor, span: Any, keep: Any) -> Any:
        for layer, mem_BMD in zip(layers, memory, strict=True):
            before, (x1, x2) = x2, stored([layer], x1, x2, [mem_BMD], feats, span)
            keep(before, x2)
        return x1, x2

    monkeypatch.setattr(txl.model.body, "reversible_layers", kept)
    plain = Run(config(**settings), dtype=torch.float64, shape=REVERSIBLE).begin()
    plain.train()
    torch.testing.assert_close(reversible.weights(), plain.weights(), rtol=0, atol=1e-9)


def test_reversible_layers_compute_again_in_the_precision_of_the_forward_pass() -> None:
    full, half = (Run(config(max_step=30, dtype=d), shape=REVERSIBLE).begin() for d in ("float32", "bfloat16"))
    seen = []
    half.state.model.layers[0].ff[0].register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    full.train()
    half.train()
    assert len(seen) == 60
    assert set(seen) == {torch.bfloat16}
    assert half.losses[-1].float().mean() == pytest.approx(float(full.losses[-1].mean()), rel=0.01)


def test_reversible_layers_go_on_as_if_never_stopped(tmp_path: Path) -> None:
    whole = Run(config(dropout=0.3), shape=REVERSIBLE).begin()
    whole.train()
    Run(config(dropout=0.3, max_step=3), shape=REVERSIBLE, folder=tmp_path).begin().train()
    second = Run(config(dropout=0.3), shape=REVERSIBLE, folder=tmp_path).resume()
    second.train()
    assert same_weights(whole, second)


SHARED = [REVERSIBLE, shape_of("performer"), shape_of("lsh"), SHAPE | {"recurrence": "same", "activation": "geglu"}]


def test_smoothing_changes_what_is_learnt_and_not_what_is_told() -> None:
    plain, smoothed = (Run(config(label_smoothing=s), dtype=torch.float64).begin() for s in (0.0, 0.2))
    plain.train()
    smoothed.train()
    torch.testing.assert_close(plain.losses[0], smoothed.losses[0])
    assert not torch.allclose(plain.losses[-1], smoothed.losses[-1])
    model, ids = smoothed.state.model.eval(), torch.randint(0, 40, (2, 9))
    nll_BT, _ = model.nll(ids[:, :-1], ids[:, 1:], None, Context())
    likely = model.log_prob(model(ids[:, :-1], None, Context()).hidden_BTD)
    torch.testing.assert_close(nll_BT, -likely.gather(-1, ids[:, 1:, None]).squeeze(-1))


@pytest.mark.parametrize("settings", [{"batch_chunk": 2}, {"recompute": True}], ids=str)
def test_a_smoothed_step_is_the_gradient_of_the_smoothed_loss(settings: dict[str, Any]) -> None:
    run = Run(config(label_smoothing=0.2, max_step=1, optim="sgd", clip=1e9, **settings), dtype=torch.float64).begin()
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
    loss = (model.softmax.nll(hidden_BTD, batch[1]) + 0.2 * model.softmax.smoothing(hidden_BTD, batch[1])).mean()
    model.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(after[name], before[name] - run.state.lr * parameter.grad)


def weights_of_all(ranks: Ranks | None) -> list[dict[str, Tensor]]:
    POSITION_ENCODINGS["toy_none"] = PositionEncoding  # a process of its own does not know the toy
    found = []
    for shape in SHARED:
        alone = {} if ranks is None else {"ranks": ranks}
        run = Run(
            config(redraw_interval=2, ff_chunk=3, label_smoothing=0.1), dtype=torch.float64, shape=shape, **alone
        ).begin()
        run.train()
        found.append(run.weights())
    return found


@pytest.mark.slow
def test_two_ranks_train_these_layers_as_one_process_does() -> None:
    alone = weights_of_all(None)
    for together in on_ranks(2, weights_of_all):
        for one, two in zip(alone, together, strict=True):
            for name, weight in one.items():
                torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-12)
