"""What command lines, presets and settings files come to, and the flags that the help lists: as version 0.3 had them
before its settings became values in layers.

    TXL_WRITE_SETTINGS=1 python -m pytest tests/cli/test_recorded.py -p no:xdist

rewrites the values, after a flag is added or removed.
"""

import contextlib
import io
import json
import os
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_flags import read
from tests.forks import ROOT

FOLDER = Path(__file__).parent / "recorded"
PROGRAMS = ("train", "try", "eval", "score", "report", "read", "generate")


def lines() -> Iterator[tuple[str, str]]:
    for one in json.loads((FOLDER / "lines.json").read_text()):
        yield one["program"], one["line"]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def values_of(program: str, line: str) -> dict[str, Any]:
    return json.loads(json.dumps(read(program, *shlex.split(line)), sort_keys=True))


def test_each_line_comes_to_its_values() -> None:
    found = []
    for program, line in lines():
        found.append({"program": program, "line": line, "values": values_of(program, line)})
    write_or_compare("lines.json", found)


def test_the_help_lists_these_flags() -> None:
    found = {}
    for program in PROGRAMS:
        module = {"try": "try_text"}.get(program, program)
        main = import_module(f"txl.programs.{module}").main
        for words in (["--help"], ["--help", "all"]):
            said = io.StringIO()
            with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
                main(words)
            listed = re.findall(r"^  (--\w+)", said.getvalue(), flags=re.MULTILINE)
            found[" ".join([program, *words])] = " ".join(sorted(listed))
    write_or_compare("help.json", found)


def write_or_compare(name: str, found: Any) -> None:
    path = FOLDER / name
    if "TXL_WRITE_SETTINGS" in os.environ:
        path.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    assert json.loads(path.read_text()) == found
