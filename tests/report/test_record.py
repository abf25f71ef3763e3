"""report.json: what was written is read, and what is damaged is refused in one line that says what to do."""

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.report.made import report_of
from txl.config import UsageError
from txl.report.page import write_page
from txl.report.record import read_report, write_report


def test_what_was_written_is_read(tmp_path: Path) -> None:
    for report in (
        report_of(),
        report_of(shown=None, curve=None, distances=None, gains=[], compared=[0]),
    ):
        write_report(tmp_path / "report.json", report)
        assert read_report(tmp_path / "report.json") == report


def refusal(folder: Path, content: str | bytes) -> str:
    path = folder / "report.json"
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        read_report(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "txl report" in message
    return message


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "no report.json of txl"),
        ("{}", "no report.json of txl"),
        (b"\xff\xfe", "not text in UTF-8"),
        ('{"format": 0}', "is of format 0, and this txl reads 1"),
        ('{"format": 1}', "damaged (report has no name)"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, content: str | bytes, why: str) -> None:
    assert why in refusal(tmp_path, content)


def at(*keys: Any) -> Callable[[Any, Any], None]:
    """Sets a value deep in a record."""

    def put(record: Any, value: Any) -> None:
        for key in keys[:-1]:
            record = record[key]
        record[keys[-1]] = value

    return put


DAMAGES = {
    "name": (at("name"), 3),
    "a row of text": (at("rows", 0), "x"),
    "infinite": (at("rows", 0, "perplexity"), 1e999),
    "gain": (at("gains", 0, "in_all"), {"mean": 1.0}),
    "said": (at("said", 0, "first"), None),
    "piece": (at("shown", "pieces", 0), 1),
    "map": (at("shown", "looked", "maps", 0), [0, 0]),
    "settings": (at("origin", "settings"), {"a": 1}),
    "origin": (at("origin"), None),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_noticed(tmp_path: Path, name: str) -> None:
    record = copy.deepcopy(dataclasses.asdict(report_of(60)))
    put, value = DAMAGES[name]
    put(record, value)
    assert "damaged (" in refusal(tmp_path, json.dumps(record))


@pytest.mark.parametrize(
    ("put", "value"),
    [
        (at("rows"), []),
        (at("compared"), [0, 64]),
        (at("compared"), []),
        (at("curve", "valid", 0), [1.0]),
        (at("distances", "last_K"), []),
        (at("shown", "looked", "share_K", 0), 256),
    ],
)
def test_figures_that_contradict_each_other_are_one_line(
    tmp_path: Path, put: Callable[[Any, Any], None], value: Any
) -> None:
    record = copy.deepcopy(dataclasses.asdict(report_of(60)))
    put(record, value)
    (tmp_path / "report.json").write_text(json.dumps(record))
    report = read_report(tmp_path / "report.json")
    with pytest.raises(UsageError, match=r"demo: its figures contradict each other .* --measure$"):
        write_page(tmp_path / "report.html", [report])
    assert not (tmp_path / "report.html").exists()


def test_every_field_is_needed(tmp_path: Path) -> None:
    whole = dataclasses.asdict(report_of(60))
    for field in set(whole) - {"format"}:
        record = {name: value for name, value in whole.items() if name != field}
        assert f"report has no {field}" in refusal(tmp_path, json.dumps(record))
