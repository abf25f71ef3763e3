"""The task of examples/recall, and a whole run of it, tiny."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.recall import __main__ as example
from txl.config import UsageError
from txl.memory import MEMORIES

pytestmark = pytest.mark.slow

TINY = "--memories fifo expire_span --seeds 1 2 --n_step 3 --n_row 2 --longest 40 --gaps 2 70 --n_question 64"


def test_every_memory_is_tried() -> None:
    tried = {settings.get("memory", name) for name, settings in example.MODELS.items()}
    assert tried == set(MEMORIES)


def test_the_answer_is_the_fact_whose_key_is_asked_for() -> None:
    token_BT, answer_BF = example.episode(50, 7, torch.Generator().manual_seed(1))
    n, asked = example.N_FACT, example.N_KEY * example.N_VALUE
    assert token_BT.shape == (50, 7 + 2 * n)
    for row, answers in zip(token_BT.tolist(), answer_BF.tolist(), strict=True):
        by_key = {fact // example.N_VALUE: fact for fact in row[:n]}
        assert len(by_key) == n
        assert all(asked + example.N_KEY <= noise < example.N_TOKEN for noise in row[n:-n])
        assert [by_key[question - asked] for question in row[-n:]] == answers


def test_a_run_is_gone_on_with_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*TINY.split(), "--d_model", "8", "--out", str(tmp_path)]
    example.main(flags)
    record: dict[str, Any] = json.loads((tmp_path / "recall.json").read_text())
    assert [(row["memory"], row["seed"]) for row in record["rows"]] == [
        (name, seed) for seed in (1, 2) for name in ("fifo", "expire_span")
    ]
    for row in record["rows"]:
        assert row["recall"].keys() == {"2", "70"}
        assert row["kib"]["70"] >= row["kib"]["2"]
    assert (tmp_path / "recall.png").read_bytes()[1:4] == b"PNG"
    lost = record["rows"].pop()
    (tmp_path / "recall.json").write_text(json.dumps(record))
    capsys.readouterr()
    example.main(flags)
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in said if "seed" in line] == [
        ["| expire_span", "seed 2"]
    ]
    assert said[-1].startswith("| `expire_span` | ")
    again = json.loads((tmp_path / "recall.json").read_text())["rows"][-1]
    assert {**again, "seconds": 0} == {**lost, "seconds": 0}
    for change, message in {
        "--n_step 4": "holds trainings with other settings",
        "--memories fido": "no such memory; there are none, fifo",
    }.items():
        with pytest.raises(UsageError, match=message):
            example.main([*flags, *change.split()])
    for content in ('{"settings"', '{"settings": {}}'):
        (tmp_path / "recall.json").write_text(content)
        with pytest.raises(UsageError, match=r"recall.json: damaged \(.*; remove it"):
            example.main(flags)


def test_a_spread_is_told_of_several_seeds_only() -> None:
    rows = [
        {"memory": memory, "seed": seed, "recall": {"8": share}, "kib": {"8": 1.0}}
        for memory, seed, share in (("none", 1, 0.25), ("fifo", 1, 0.5), ("fifo", 2, 0.7))
    ]
    assert example.table(rows, [8])[2:] == ["| `none` | 25 | 1 |", "| `fifo` | 60 ± 14 | 1 |"]


def test_what_is_in_the_segment_is_learnt(tmp_path: Path) -> None:
    """Without a memory, where the gap is short."""
    torch.manual_seed(0)
    config = example.RecallConfig(n_step=150, longest=10, n_row=16, lr=0.01)
    model, context = example.trained("none", config, 1)
    near, far = (example.recalled(model, context, gap, 64)[0] for gap in (10, 60))
    assert near > 0.9
    assert far < 0.5
