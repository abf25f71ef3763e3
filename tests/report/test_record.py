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
    "n_token": (at("n_token"), 0),
    "a row less": (at("rows"), []),
    "a row of text": (at("rows", 0), "x"),
    "infinite": (at("rows", 0, "perplexity"), 1e999),
    "row twice": (at("rows", 1, "mem_len"), 0),
    "compared": (at("compared"), [0, 64]),
    "compared none": (at("compared"), []),
    "no gains": (at("gains"), []),
    "gain": (at("gains", 0, "in_all"), {"mean": 1.0}),
    "said": (at("said", 0, "first"), None),
    "edges": (at("distances", "last_K"), [1, 2]),
    "bins": (at("distances", "last_K", 0), -1),
    "shares": (at("distances", "share_LNK", 0, 0), [0.0] * 6),
    "heads": (at("distances", "share_LNK", 0), [[0.5] * 6]),
    "curve": (at("curve", "valid", 0), [1.0]),
    "no tokens": (at("shown", "pieces"), []),
    "piece": (at("shown", "pieces", 0), 1),
    "losses": (at("shown", "nats_MN", 0), [1.0]),
    "length": (at("shown", "nats_MN"), []),
    "negative": (at("shown", "nats_MN", 0, 0), -1.0),
    "huge": (at("shown", "nats_MN", 0, 0), 66.0),
    "lengths": (at("shown", "mem_len_M"), [0, 8, 32, 64, 256]),
    "attended": (at("shown", "looked", "n_token"), 10_000),
    "counts": (at("shown", "looked", "count_PN", 0, 0), 99),
    "negative count": (at("shown", "looked", "count_PN", 0, 0), -1),
    "keys": (at("shown", "looked", "back_K"), [1]),
    "back": (at("shown", "looked", "back_K", 0), 0),
    "far": (at("shown", "looked", "back_K", 0), 70_000),
    "share": (at("shown", "looked", "share_K", 0), 256),
    "maps": (at("shown", "looked", "maps"), []),
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


def test_every_field_is_needed(tmp_path: Path) -> None:
    whole = dataclasses.asdict(report_of(60))
    for field in set(whole) - {"format"}:
        record = {name: value for name, value in whole.items() if name != field}
        assert f"report has no {field}" in refusal(tmp_path, json.dumps(record))
