"""Settings of train.py that change what a run reads, keeps or reports."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from txl import TransformerXL
from txl.commands import settings
from txl.runtime.distributed import Ranks
from txl.training import loop

Call = Callable[..., Any]


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in lines if record["kind"] == kind]


@pytest.mark.parametrize(
    ("flags", "missed"),
    [
        ("--target_perplexity 1.5", "is above --target_perplexity 1.5"),
        ("--target_throughput 1e12", "tokens/s are below --target_throughput 1000000000000.0"),
        ("--target_perplexity 1e9 --target_throughput 1e-9", None),
    ],
)
def test_a_missed_target_is_named_and_ends_with_status_1(
    call: Call, training: list[str], tmp_path: Path, flags: str, missed: str | None
) -> None:
    outcome = call("train", *training, "--max_step", 2, *flags.split())
    said = re.findall(r"^\| missed: (.*)$", outcome.out, flags=re.MULTILINE)
    assert (outcome.status, len(said)) == ((1, 1) if missed else (0, 0))
    assert missed is None or said[0].endswith(missed)
    assert (tmp_path / "new_run" / "latest").read_text().strip() == "step_00000002"  # it is saved all the same


def test_as_many_checkpoints_are_kept_as_asked_for(call: Call, training: list[str], tmp_path: Path) -> None:
    """The last two, and the best one, which is the first here."""
    flags = ["--max_step", 4, "--keep_last", 2, "--lr", 3, "--scheduler", "constant"]
    assert call("train", *training, *flags).status == 0
    run = tmp_path / "new_run"
    losses = [record["valid/nll_nats"] for record in records(run, "valid")]
    assert losses[0] == min(losses)
    assert sorted(path.name for path in run.glob("step_*")) == ["step_00000001", "step_00000003", "step_00000004"]


def test_evaluations_read_as_many_segments_as_asked_for(
    call: Call, training: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[int, int]] = []
    evaluate = loop.evaluate

    def noted(model: Any, segments: Any, context: Any) -> Any:
        read: list[Any] = []
        score = evaluate(model, (read.append(segment) or segment for segment in segments), context)
        counted.append((len(read), len(read[0].input_BT)))
        return score

    monkeypatch.setattr(loop, "evaluate", noted)
    flags = ["--max_step", 1, "--overwrite", "--eval_batch_size"]
    for batch_size, limit in ((2, -1), (3, -1), (2, 3), (2, 0)):
        assert call("train", *training, *flags, batch_size, "--max_eval_steps", limit).status == 0
    (whole, _), (fewer, _), *_ = counted
    assert whole > fewer > 3
    assert counted == [(whole, 2), (fewer, 3), (3, 2), (whole, 2)]


def test_the_batch_is_that_of_a_process_times_the_processes(call: Call, training: list[str], tmp_path: Path) -> None:
    at = training.index("--batch_size")
    flags = [*training[:at], *training[at + 2 :], "--local_batch_size", 3, "--max_step", 1, "--log_interval", 1]
    assert call("train", *flags).status == 0
    assert records(tmp_path / "new_run", "start")[0]["train"]["batch_size"] == 3
    assert records(tmp_path / "new_run", "train")[0]["tokens"] == 3 * 8
    typed, second = {"local_batch_size": 3}, Ranks(1, 2, torch.device("cpu"))
    assert settings.with_batch_size(typed, second)["batch_size"] == 6
    assert second.columns(6) == slice(3, 6)


def test_settings_that_are_typed_are_those_of_the_run(
    call: Call, training: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (
        "--varlen --roll --optim adamw --beta1 0.8 --beta2 0.9 --epsilon 1e-6 --weight_decay 0.1 --scheduler dev_perf "
        "--warmup_step 1 --warmup_convention original --decay_rate 0.3 --patience 1 --lr_min 1e-5 --init uniform "
        "--init_range 0.2 --proj_init_std 0.3 --tf32 --recompute --div_val 2 --cutoffs 10 30 --min_freq 1 "
        "--max_size 50 --attn_keep_mib 8"
    ).split()
    budgets, use = [], TransformerXL.use_attention
    spy = lambda model, impl, *, keep_mib=32: budgets.append(keep_mib) or use(model, impl, keep_mib=keep_mib)  # noqa: E731
    monkeypatch.setattr(TransformerXL, "use_attention", spy)
    unread = ["--init_std", 0.02]  # its default: it is not read with --init uniform
    assert call("train", *training, *unread, *flags, "--max_step", 2).status == 0
    assert budgets == [8]
    (start,) = records(tmp_path / "new_run", "start")
    has = {**start["train"], **start["model"], **start["data"]}
    words = " ".join(flags).removeprefix("--").split(" --")
    typed = {name: value.split() for name, _, value in (word.partition(" ") for word in words)}
    asked = {name: [*map(str, one)] if isinstance(one := has[name], list) else [str(one)] for name in typed}
    same = {name: value or ["True"] for name, value in typed.items()}
    assert asked == same | {"epsilon": ["1e-06"], "lr_min": ["1e-05"]}


def test_one_process_shards_nothing_and_says_so(call: Call, training: list[str], tmp_path: Path) -> None:
    outcome = call("train", *training, "--shard", "--async_save")
    assert outcome.status == 0
    assert "| --shard: one process has nothing to share out" in outcome.out
    assert len(list((tmp_path / "new_run").glob("step_*/model.safetensors"))) > 0
