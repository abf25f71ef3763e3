"""eval.py and generate.py in half precision."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import Outcome, Trained, change_weights
from txl.ops.few_rows import Linear

Call = Callable[..., Outcome]
Refused = Callable[..., str]


@pytest.fixture
def splits(run_folder: Path, text: Path) -> list[str]:
    """Flags of an evaluation of a split."""
    return ["--work_dir", str(run_folder), "--data", str(text), "--split", "valid"]


@pytest.fixture
def product_kinds(monkeypatch: pytest.MonkeyPatch) -> set[torch.dtype]:
    """The numbers that linear maps have given."""
    seen, forward = set(), Linear.forward

    def watched(self: Linear, x: torch.Tensor) -> torch.Tensor:
        out = forward(self, x)
        seen.add(out.dtype)
        return out

    monkeypatch.setattr(Linear, "forward", watched)
    return seen


def result(call: Call, folder: Path, *flags: object) -> dict[str, Any]:
    outcome = call("eval", *flags, "--json", folder / "result.json")
    assert outcome.status == 0, outcome
    return json.loads((folder / "result.json").read_text())


def recl_of(splits: list[str]) -> list[str]:
    """Flags of the comparison of contexts on the same split."""
    return ["--recl", *splits[1:], "--recl_step", "5", "--recl_longest", "20", "--recl_every", "5"]


ADDED = ["--cache_size", "30", "--knn_k", "5", "--knn_store"]


@pytest.mark.slow
def test_the_perplexity_of_a_split_is_nearly_that_of_float32(call: Call, splits: list[str], tmp_path: Path) -> None:
    dtype = "bfloat16"
    flags = [*splits, "--loss_by_position", "--attention_by_distance", *ADDED, tmp_path / "store"]
    full, half = result(call, tmp_path, *flags), result(call, tmp_path, *flags, "--dtype", dtype)
    assert (full["dtype"], half["dtype"]) == ("float32", dtype)
    for one, other in zip(full["rows"], half["rows"], strict=True):
        assert other["nats"] == pytest.approx(one["nats"], rel=2e-3)
        assert other["nats"] != pytest.approx(one["nats"], rel=1e-7)
    shares = torch.tensor(half["rows"][0]["attention_by_distance"]["share"])
    torch.testing.assert_close(shares.sum(-1), torch.ones(shares.shape[:-1]))


def test_so_is_that_of_a_text(call: Call, trained: Trained, tmp_path: Path) -> None:
    flags = ["--work_dir", trained.run, "--text", trained.text / "test.txt"]
    full, half = result(call, tmp_path, *flags), result(call, tmp_path, *flags, "--dtype", "bfloat16")
    assert half["rows"][0]["nats"] == pytest.approx(full["rows"][0]["nats"], rel=2e-3)
    assert half["rows"][0]["nats"] != pytest.approx(full["rows"][0]["nats"], rel=1e-7)


def test_so_are_the_losses_of_growing_contexts(call: Call, splits: list[str], tmp_path: Path) -> None:
    flags = recl_of(splits)
    full, half = result(call, tmp_path, *flags), result(call, tmp_path, *flags, "--dtype", "bfloat16")
    assert half["dtype"] == "bfloat16"
    (one,), (other,) = full["recl"]["models"], half["recl"]["models"]
    assert other["perplexity"] == pytest.approx(one["perplexity"], rel=2e-2)
    assert other["perplexity"] != pytest.approx(one["perplexity"], rel=1e-7)


@pytest.mark.parametrize("entry", ["eval", "generate"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products_are_made_in_the_numbers_asked_for(
    call: Call, splits: list[str], product_kinds: set[torch.dtype], entry: str, dtype: str
) -> None:
    flags = splits if entry == "eval" else [*splits[:2], "--length", "20", "--prompt", "bab ded", "--top_p", "0.9"]
    outcome = call(entry, *flags, "--dtype", dtype)
    assert outcome.status == 0, outcome
    assert product_kinds == {getattr(torch, dtype)}


@pytest.mark.parametrize("rule", ["sgd", "rms"])
def test_weights_that_follow_the_text_are_not_narrowed(refused: Refused, splits: list[str], rule: str) -> None:
    message = refused("eval", *splits, "--dynamic", rule, "--dtype", "bfloat16")
    assert message.startswith(f"eval.py: --dtype bfloat16 and --dynamic {rule}: ")
    assert message.endswith("drop one of the two")


@pytest.mark.parametrize("entry", ["eval", "generate"])
def test_weights_that_would_not_be_narrowed_are_refused(
    refused: Refused, splits: list[str], run_folder: Path, entry: str
) -> None:
    change_weights(run_folder, lambda weight: weight.double())
    message = refused(entry, *(splits if entry == "eval" else splits[:2]), "--dtype", "bfloat16")
    assert message.startswith(f"{entry}.py: --dtype bfloat16: the weights are in float64")


@pytest.mark.parametrize("entry", ["eval", "generate"])
def test_a_model_that_leaves_the_range_of_float16_is_refused(
    call: Call, refused: Refused, splits: list[str], run_folder: Path, entry: str
) -> None:
    change_weights(run_folder, lambda weight: weight * 1e6)
    flags = splits if entry == "eval" else splits[:2]
    assert "--dtype float16: " in refused(entry, *flags, "--dtype", "float16")
    assert call(entry, *flags, "--dtype", "bfloat16").status == 0


def test_so_is_one_that_leaves_it_on_a_text(refused: Refused, splits: list[str], text: Path, run_folder: Path) -> None:
    change_weights(run_folder, lambda weight: weight * 1e6)
    assert "--dtype float16: " in refused("eval", *splits[:2], "--text", text / "test.txt", "--dtype", "float16")


def test_losses_that_leave_it_are_not_taken_for_tokens_that_nobody_read(
    refused: Refused, splits: list[str], run_folder: Path
) -> None:
    change_weights(run_folder, lambda weight: weight * 1e6)
    assert "--dtype float16: " in refused("eval", *recl_of(splits), "--dtype", "float16")
    assert not (run_folder / "recl.png").exists()
