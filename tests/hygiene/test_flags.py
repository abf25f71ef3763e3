"""Every flag of the three programs is used by a test that has it do something."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.cli.test_flags import CLASSES

TESTS = Path(__file__).parents[1]
LISTS = {"test_flags.py", "test_bad_input.py"}
"""Tests that only read or refuse flags."""


def uses(name: str, text: str) -> bool:
    """True if a test types the flag or sets the field of a configuration."""
    return bool(re.search(rf'--(no_)?{name}\b|"{name}":|\b{name}=(?!=)', text))


@pytest.fixture(scope="module")
def text() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py") if path.name not in LISTS)


@pytest.mark.parametrize("entry", CLASSES)
def test_every_flag_is_used_by_a_test(entry: str, text: str) -> None:
    flags = [f.name for cls in CLASSES[entry] for f in fields(cls) if f.metadata.get("flag", True)]
    assert [name for name in flags if not uses(name, text)] == []


def test_another_flag_or_a_comparison_is_no_use() -> None:
    assert uses("lr", "--lr 3")
    assert uses("lr", "dict(lr=3)")
    assert not uses("lr", "--lr_min 3 lr == 3 old_lr=4")
