"""One step: chunks, precision, recomputation, what is not finite."""

import functools
import re
from typing import Any

import pytest
import torch

from tests.conftest import long_test
from tests.training.runs import ADAPTIVE, SHAPE, Run, config, same_weights
from txl.memory import Memory
from txl.model.autocast import _say_that_it_is_slow
from txl.model.memory import State
from txl.ops import linear_cross_entropy
from txl.training.finite import BadStep, GradientWatch, without_bad_rows
from txl.training.step import NonFiniteError, autocast_dtype


def trained(shape: dict[str, Any] = SHAPE | ADAPTIVE, **settings: Any) -> Run:
    return Run(config(**settings), dtype=torch.float64, shape=shape).begin().trained()


@pytest.mark.parametrize(
    "settings",
    [{"batch_chunk": 2}, {"batch_chunk": 4, "swap_mem": True}, {"recompute": True, "ff_chunk": 4}],
    ids=str,
)
def test_ways_of_saving_memory_change_no_number(settings: dict[str, Any]) -> None:
    torch.testing.assert_close(
        trained(**settings).weights(), trained().weights(), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("settings", [{"label_smoothing": 0.1}, {"batch_chunk": 2}], ids=str)
@pytest.mark.parametrize("shape", [SHAPE, SHAPE | ADAPTIVE], ids=["plain", "adaptive"])
def test_a_head_in_chunks(
    settings: dict[str, Any], shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their gradients are made with the loss, whose mean is what is trained."""
    whole, made = trained(shape, max_step=3, **settings), []
    right = linear_cross_entropy._NatsAndGradients.apply
    monkeypatch.setattr(
        linear_cross_entropy._NatsAndGradients,
        "apply",
        lambda *args: made.append(1) or right(*args),
    )
    monkeypatch.setattr(linear_cross_entropy, "BUDGET", {"cpu": 50})
    in_chunks = trained(shape, max_step=3, **settings)
    assert made
    torch.testing.assert_close(in_chunks.weights(), whole.weights(), rtol=0, atol=1e-10)


def test_the_memory_is_as_long_as_drawn_and_drawn_anew_as_often_as_asked() -> None:
    """All lengths from 0 to mem_len come up, each for `draw_mem_len` updates, and bound what is kept."""
    run, kept = Run(config(draw_mem_len=2, max_step=80)).begin(), []

    def note_length() -> None:
        (memory,) = run.state.memories
        kept.append(0 if memory is None else memory.length)

    run.after_step = note_length
    drawn = []
    for step in range(80):
        run.state.progress.step = step
        drawn.append(run.state.context_now().mem_len)
    run.state.progress.step = 0
    run.train()
    assert set(drawn) == set(range(run.context.mem_len + 1))
    assert drawn[::2] == drawn[1::2]
    assert all(length <= longest for length, longest in zip(kept, drawn, strict=True))
    assert max(kept) > run.context.tgt_len


def test_recomputation_computes_each_layer_twice_with_the_same_dropout() -> None:
    settings = {"dropout": 0.3, "dropatt": 0.2}
    run, calls = Run(config(recompute=True, **settings), dtype=torch.float64).begin(), []
    run.state.model.layers[0].ff.register_forward_hook(lambda *_: calls.append(None))
    run.train()
    assert len(calls) == 2 * 6
    assert same_weights(run, trained(**settings))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of torch itself, while it compiles
@pytest.mark.parametrize(
    ("changes", "backend"),
    [
        ({}, "aot_eager"),
        pytest.param({"pre_lnorm": True, "reversible": True}, "aot_eager", marks=long_test),
        pytest.param({}, "inductor", marks=long_test),
        pytest.param({"memory": "infini"}, "inductor", marks=long_test),
    ],
    ids=str,
)
def test_compiled_layers_train_alike(
    changes: dict[str, Any], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of two parts as far as they are captured, forward and backward; memories in parts of a segment, of which
    the first leaves nothing to be written."""
    compiled_by = functools.partialmethod(torch.nn.Module.compile, backend=backend)
    monkeypatch.setattr(torch.nn.Module, "compile", compiled_by)
    shape = SHAPE | {"n_layer": 1} | changes
    n_part = 2 if "memory" in changes else 1
    plain, compiled = (
        Run(config(max_step=1, compile=c, memory_parts=n_part), shape=shape).begin().trained()
        for c in (False, True)
    )
    for one, two in zip(plain.losses, compiled.losses, strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_float32(dtype: str) -> None:
    full, half = (Run(config(dtype=one)).begin().trained() for one in ("float32", dtype))
    assert half.losses[-1].float().mean() == pytest.approx(float(full.losses[-1].mean()), rel=0.01)
    assert all(weight.dtype == torch.float32 for weight in half.weights().values())


def poison(run: Run, *at: int) -> None:
    """Let the loss of some steps not be finite."""
    forward, calls = run.state.nats.forward, []

    def poisoned(*args: Any) -> Any:
        loss_BT, nll_BT, *others = forward(*args)
        calls.append(None)
        factor = float("nan") if len(calls) in at else 1.0
        return loss_BT * factor, nll_BT * factor, *others

    run.state.nats.forward = poisoned  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("optim", "checks_later"),
    [
        ("adam", True),
        ("adamw", True),
        ("sgd", True),
        ("lamb", True),
        ("muon", True),
        ("adam", False),
    ],
)
def test_a_loss_that_is_not_finite_stops_before_the_update(optim: str, checks_later: bool) -> None:
    before, run = (Run(config(optim=optim, mom=0.9, max_step=n)).begin() for n in (3, 6))
    before.state.checks_later = run.state.checks_later = checks_later
    before.train()
    poison(run, 4)
    said = r"step 4, epoch 1, segment 4: the loss is not finite on rank 0 \(streams 0 to 3\)"
    with pytest.raises(NonFiniteError, match=said):
        run.train()
    assert same_weights(before, run)


def test_the_first_bad_step_since_the_last_reading_is_told() -> None:
    watch, good, bad = (
        GradientWatch(torch.device("cpu")),
        torch.tensor(1.0),
        torch.tensor(torch.inf),
    )
    for step, norm, nats in ((5, good, good), (6, bad, good), (7, bad, bad)):
        watch.begin(step, 2, step - 4)
        watch.note(norm, nats)
    assert watch.read() == BadStep(6, 2, 2, has_bad_loss=False)
    assert watch.read() is None
    watch.begin(8, 3, 1)
    watch.note(bad, bad)
    assert watch.read() == BadStep(8, 3, 1, has_bad_loss=True)


def test_a_bad_step_can_be_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(config(on_nonfinite="skip")).begin()
    poison(run, 3)
    run.train()
    assert run.state.progress.n_skipped == 1
    assert all(weight.isfinite().all() for weight in run.weights().values())
    assert all(loss.isfinite().all() for i, loss in enumerate(run.losses) if i != 2)
    assert "skipped: step 3" in capsys.readouterr().out


def test_a_skipped_step_is_not_in_the_loss_that_is_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = Run(config(on_nonfinite="skip", log_interval=2)).begin()
    poison(run, 2, 3, 4)
    run.train()
    logged = re.findall(r"\| loss +(\S+) \|", capsys.readouterr().out)
    own = [f"{float(some.mean()):.2f}" for some in (run.losses[0], torch.cat(run.losses[4:]))]
    assert logged == [own[0], "nan", own[1]]


def test_skipping_a_step_leaves_nothing_that_is_not_finite_in_memory() -> None:
    """The memory is that of before the step. A stream whose memory was bad, as older versions saved it, begins anew."""
    run = Run(config(on_nonfinite="skip", max_step=1)).begin().trained()
    (before,) = run.state.memories
    ids = torch.zeros(4, 6, dtype=torch.int64)
    table = run.state.model.word_emb.tables[0]
    word = table.data[0].clone()
    table.data[0] = torch.nan
    run.state.step(ids, ids)
    table.data[0] = word
    (after,) = run.state.memories
    assert all(
        torch.equal(one, other) for one, other in zip(before.layers, after.layers, strict=True)
    )
    for layer in after.layers:
        layer[1, 0, 0] = torch.inf
    run.state.step(ids, ids)
    (cleaned,) = run.state.memories
    for kept, layer in zip(before.layers, cleaned.layers, strict=True):
        assert torch.equal(layer[1], torch.zeros_like(layer[1]))
        assert torch.equal(layer[[0, 2, 3]], kept[[0, 2, 3]])
    assert run.state.step(ids, ids).isfinite().all()
    assert run.state.progress.n_skipped == 2


def test_a_memory_with_one_number_a_stream_is_cleaned_too() -> None:
    memory = Memory((State(torch.ones(2, 3, 4), {"n_own": torch.tensor([5, 6])}),))
    memory.layers[0][1, 0, 0] = torch.nan
    cleaned = without_bad_rows(memory)
    assert cleaned.states[0].extra["n_own"].tolist() == [5, 0]
    assert cleaned.layers[0].sum((1, 2)).tolist() == [12, 0]


def test_skipping_has_a_bound_and_so_has_the_scale_of_float16() -> None:
    run = Run(config(on_nonfinite="skip", max_nonfinite=2)).begin()
    poison(run, 2, 3, 4)
    with pytest.raises(NonFiniteError, match="more than --max_nonfinite 2 in a row"):
        run.train()
    # so that stops and resumes do not hide it
    assert run.state.snapshot().progress["n_skipped_in_a_row"] == 3
    run = Run(config(dtype="float16", log_interval=1)).begin()
    run.state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-12)
    with pytest.raises(NonFiniteError, match="not finite at any scale"):
        run.train()


def test_each_epoch_begins_with_an_empty_memory() -> None:
    run, seen = Run(config(max_step=9, batch_chunk=2)).begin(), []
    step = run.state.step

    def noted(*batch: torch.Tensor) -> torch.Tensor:
        seen.append((run.state.progress.batch, [memory is None for memory in run.state.memories]))
        return step(*batch)

    run.state.step = noted  # type: ignore[method-assign]
    run.train()
    assert seen == [(i % 4, [i % 4 == 0] * 2) for i in range(9)]


def test_products_are_in_bfloat16_where_the_processor_is_made_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In TF32 by its flag only."""
    for tf32 in (True, False):
        Run(config(tf32=tf32)).begin()
        assert torch.backends.cuda.matmul.allow_tf32 is tf32
    device = torch.device("cpu")
    monkeypatch.setattr("txl.model.autocast.HAS_FAST_BFLOAT16", False)
    assert autocast_dtype(config(dtype="auto"), device) == torch.float32
    monkeypatch.setattr("txl.model.autocast.HAS_FAST_BFLOAT16", True)
    assert autocast_dtype(config(dtype="auto"), device) == torch.bfloat16
    assert autocast_dtype(config(dtype="float32"), device) == torch.float32


def test_a_dtype_that_the_processor_is_not_made_for_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for is_fast, dtypes, n_said in (
        (True, ("bfloat16",), 0),
        (False, ("auto", "float32", "bfloat16", "bfloat16"), 1),
    ):
        monkeypatch.setattr("txl.model.autocast.HAS_FAST_BFLOAT16", is_fast)
        _say_that_it_is_slow.cache_clear()
        caplog.clear()
        for dtype in dtypes:
            autocast_dtype(config(dtype=dtype), torch.device("cpu"))
        assert ["--dtype bfloat16: this processor" in said for said in caplog.messages] == [
            True
        ] * n_said
