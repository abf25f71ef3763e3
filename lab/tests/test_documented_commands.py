"""Every program that the laboratory's pages start is there and has the flags that they give it."""

import re

import pytest

from tests.cli.test_documented_commands import commands
from tests.cli.test_documented_commands import test_a_module_has_its_flags as has_its_flags
from tests.forks import ROOT

PAGES = [*ROOT.glob("README.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("lab/**/*.md")]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
LINES = sorted({line for line in commands(TEXT) if line.startswith("python -m lab.")})


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_a_program_has_the_flags_of_the_pages(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    has_its_flags(re.sub(r" \.\.\.$", "", line) + " --help all", capsys, monkeypatch)


def test_files_that_the_pages_name_are_there() -> None:
    named = set(re.findall(r"(?<![\w/])lab/[\w/-]+\.\w+", TEXT.replace("NAME.json", "")))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []
