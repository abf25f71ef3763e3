"""What a GPU is asked finds faults, and no fault where there is none; on a CPU, by Triton's interpreter."""

import dataclasses
import json
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.benchmarks.checks import attention, models
from lab.benchmarks.checks.errors import LIMITS, Check
from lab.benchmarks.gpu_check import checked, model_checks, operator_checks
from lab.benchmarks.peers import write_as_found
from txl.ops import dropout, linear_cross_entropy
from txl.training.repeated import RepeatedUpdate

pytestmark = pytest.mark.slow

CASE = (1, 1, 16, 9, 15)


@pytest.fixture
def fused() -> Any:
    pytest.importorskip("triton", reason="Triton is published for Linux only", exc_type=ImportError)
    return pytest.importorskip("txl.ops.rel_attention.fused")


@pytest.mark.usefixtures("fused")
def test_gradients_that_are_0_are_compared_with_what_cancels() -> None:
    """A query that sees one key attends to it whatever the scores are."""
    errors = attention.fused_errors((*CASE, 1), torch.float32, "cpu")
    assert max(errors.values()) <= LIMITS["float32"]


@pytest.mark.parametrize("window", [1, -1])
def test_a_gradient_that_is_slightly_off_is_seen(
    window: int, fused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = fused.backward_places
    monkeypatch.setattr(fused, "backward_places", lambda *args: right(*args) + 1e-3)
    errors = attention.fused_errors((*CASE, window), torch.float32, "cpu", keep_mib=0)
    assert [name for name, e in errors.items() if e > LIMITS["float32"]] == ["dr"]


def test_memory_that_a_kernel_forgets_is_seen(fused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = fused.backward_places
    monkeypatch.setattr(fused, "backward_places", lambda *args: torch.empty_like(right(*args)))
    assert isnan(attention.fused_errors((*CASE, -1), torch.float32, "cpu", keep_mib=0)["dr"])


@pytest.mark.usefixtures("fused")
def test_dropout_is_the_same_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        max(attention.dropout_errors((*CASE, 7), torch.float32, "cpu").values())
        <= LIMITS["float32"]
    )
    monkeypatch.setattr(torch, "manual_seed", lambda seed: None)  # another mask each time
    assert min(attention.dropout_errors((*CASE, 7), torch.float32, "cpu").values()) > 0.1


def test_reversible_layers_are_compared_with_kept_activations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = dataclasses.replace(models.TINY, dropout=0.2, dropatt=0.2)
    assert max(models.reversible_errors(shape).values()) <= 1e-4
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)  # the backward pass draws anew
    assert models.reversible_errors(shape)["gradients"] > 0.05


def test_a_slope_is_seen_by_its_difference_quotient(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = dataclasses.replace(models.TINY, dropout=0.3, dropatt=0.3, attn_impl="dense")
    monkeypatch.setattr(models, "_compiled", lambda model: model)
    assert models.compiled_dropout_errors(shape)["slope"] <= 5e-3
    right = dropout._Dropout.backward
    monkeypatch.setattr(dropout._Dropout, "backward", lambda ctx, grad: right(ctx, grad.flip(0)))
    assert models.compiled_dropout_errors(shape)["slope"] > 0.02


@pytest.mark.parametrize("word", ["rotary hidden", "step default", "repeated", "decoding"])
def test_models_on_a_cpu_are_right(word: str) -> None:
    rows = list(checked([check for check in model_checks("cpu") if word in check.name]))
    assert rows
    assert all(row["right"] for row in rows)


def test_masks_that_are_dropped_again_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = dataclasses.replace(models.TINY, dropout=0.2)
    assert models.repeated_dropout_errors(shape) == {"alike": 0}
    right = RepeatedUpdate.__call__

    def from_one_seed(self: RepeatedUpdate, *given: Any) -> Any:
        torch.manual_seed(3)
        return right(self, *given)

    monkeypatch.setattr(RepeatedUpdate, "__call__", from_one_seed)
    assert models.repeated_dropout_errors(shape) == {"alike": 1}


def test_the_head_on_a_cpu_is_right_and_a_wrong_gradient_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = list(operator_checks("cpu"))
    assert len(checks) == 4
    assert all(row["right"] for row in checked(checks))
    right = linear_cross_entropy._NatsAndGradients.backward
    monkeypatch.setattr(
        linear_cross_entropy._NatsAndGradients, "backward", lambda ctx, grad: right(ctx, 1.1 * grad)
    )
    assert [row["right"] for row in checked(checks)] == [True, False, True, False]


def test_what_raises_or_is_no_number_is_wrong_and_the_next_is_checked() -> None:
    def broken() -> dict[str, float]:
        raise RuntimeError("out of registers")

    finds = [
        broken,
        lambda: {"out": 0.0, "dq": float("nan")},
        lambda: {"out": 0.1},
        lambda: {"out": 0.01},
    ]
    rows = list(checked([Check("some", "float32", find, 0.05) for find in finds]))
    assert [row["right"] for row in rows] == [False, False, False, True]
    assert rows[0]["failed"] == "RuntimeError: out of registers"


def test_rows_are_on_the_disk_as_soon_as_they_are_found(tmp_path: Path) -> None:
    def stopped() -> Iterator[dict[str, Any]]:
        yield {"a": 1}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_as_found(tmp_path / "results.json", stopped(), dtype="float32")
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["rows"] == [{"a": 1}]
    assert written["dtype"] == "float32"
    assert {"gpu", "triton", "torch"} <= written["machine"].keys()
