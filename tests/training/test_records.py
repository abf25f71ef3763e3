"""JSON records as they are read and written."""

import math
from pathlib import Path

import pytest

from txl.runtime.records import json_text, parse_json, read_json_lines


def test_a_line_that_a_kill_has_left_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = json_text({"a": math.inf, "b": [1, math.nan]}, indent=None)
    path.write_text(whole + json_text("\u2028", indent=None))
    assert read_json_lines(path) == [{"a": None, "b": [1, None]}, "\u2028"]
    path.write_text(whole + whole[:7])
    assert read_json_lines(path) == [{"a": None, "b": [1, None]}]
    path.write_text(whole[:7] + "\n" + whole)
    with pytest.raises(ValueError, match=r"Unterminated|Expecting|Invalid"):
        read_json_lines(path)


@pytest.mark.parametrize(
    "content", [b"[" * 10**5, b"\xff{}", b"{", b""], ids=["deep", "no text", "cut", "empty"]
)
def test_what_is_no_json_is_one_kind_of_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(content)
