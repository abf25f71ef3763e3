"""The benchmark of whole tasks of lm-evaluation-harness: its tasks, and its rows, without the harness."""

import io
import json
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.benchmarks import harness
from tests.convert.test_llama_journey import folder

__all__ = ["folder"]
SENTENCE = "the first of the tokens is not the last of them and the end of the text comes "
TEXT = (
    "\n = One = \n\n A line . \n\n"
    f" = Two = \n\n {SENTENCE * 3}late . \n\n = = Part = = \n\n The end . \n"
)
QUESTIONS = [
    {"input": "Which is last?", "target_scores": {"the first": 0, "the end": 1}},
    {"input": "Which is a word?", "target_scores": {"the": 1, "end": 1}},
]


def package(path: Path) -> None:
    """A file like that of bigbench."""
    content = json.dumps({"examples": QUESTIONS}).encode()
    with tarfile.open(path, "w:gz") as file:
        for name in harness.BIGBENCH:
            member = tarfile.TarInfo(f"bigbench-1.0.0/bigbench/benchmark_tasks/{name}/task.json")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))


def test_tasks_of_a_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "PAGE", 30)
    Path("text.txt").write_text(TEXT)
    found = harness.of_text(Path("text.txt"), folder)
    assert [page["page"] for page in found["pages"][1]] == [" = One = \n\n A line . \n\n"]
    (long,) = found["long"][1]
    assert long["page"].startswith(" = Two = ")
    assert long["page"].endswith(" The end . \n")
    (last,) = found["last_word"][1]
    assert (last["before"], last["word"]) == ((SENTENCE * 3).strip(), "late")


def test_questions_with_one_right_answer(tmp_path: Path) -> None:
    package(tmp_path / "file.tar.gz")
    found = harness.of_bigbench(tmp_path / "file.tar.gz")
    assert tuple(found) == harness.BIGBENCH
    for _, questions in found.values():
        assert questions == [
            {"question": "Which is last?", "right": 1, "choices": ["the first", "the end"]}
        ]


def test_a_row_for_each_task(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []

    def run(model: str, settings: str, flags: Sequence[str], out: Path) -> None:
        """What the harness writes."""
        runs.append((model, settings, *flags))
        (out / "a model").mkdir(parents=True)
        results: dict[str, Any] = {"n-samples": {}, "results": {}}
        for task in flags[1].split(","):
            assert json.loads((out.parent / f"{task}.yaml").read_text())["task"] == task
            results["n-samples"][task] = {"effective": 2}
            results["results"][task] = {"acc,none": len(model), "acc_stderr,none": 0.5}
            answers = [[[[-1.0, True]]], [[[-2.0 * len(model), False]]]]
            lines = [{"doc_id": i, "resps": answers[i]} for i in (1, 0)]
            file = out / "a model" / f"samples_{task}_now.jsonl"
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (out / "a model" / "results_now.json").write_text(json.dumps(results))

    monkeypatch.setattr(harness, "run", run)
    monkeypatch.setattr(harness, "version", lambda _: "1")
    Path("text.txt").write_text(TEXT)
    package(Path("file.tar.gz"))
    flags = "--text text.txt --bigbench file.tar.gz --json found.json --only plain window --limit 2"
    monkeypatch.setattr(sys, "argv", ["harness.py", str(folder), *flags.split()])
    harness.main()
    found = json.loads(Path("found.json").read_text())
    assert found["transformers"] == "1"
    tasks = [*harness.READINGS["plain"].tasks, "pages"]
    assert [row["task"] for row in found["rows"]] == tasks
    assert found["rows"][0]["metrics"] == {"acc": [2, 3]}
    assert (found["rows"][0]["nats"], found["rows"][0]["relative"]) == (2.0, 0.5)
    assert (found["rows"][0]["documents"], found["rows"][0]["requests"]) == (2, 2)
    assert found["rows"][-1]["settings"]["hf"] == "max_length=512"
    assert [(model, flags[1]) for model, _, *flags in runs[2:]] == [
        ("hf", "pages"),
        ("txl", "pages"),
    ]
    assert str(folder.resolve()) not in Path("found.json").read_text()
    assert "| window | pages | 2 | acc | 2.000000 | 3.000000 | 2 |" in capsys.readouterr().out
