"""Every position encoding and attention rule has its laws, its equation and its rows on the pages about them."""

import re
from pathlib import Path

import pytest

from tests.equations.test_encodings import EQUATIONS
from txl.attention_rules import ATTENTION_RULES
from txl.positions import POSITION_ENCODINGS

ROOT = Path(__file__).parents[2]
TABLES = ["what_they_compute", "what_they_work_with", "what_they_cost", "beyond_the_trained_length"]


def named_in_first_column(page: str, heading: str) -> list[list[str]]:
    """For each table of a page whose first column has this heading, the names there."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    tables = re.findall(rf"^\| `{heading}` \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in rows.splitlines())) for rows in tables]


@pytest.mark.parametrize("table", range(len(TABLES)), ids=TABLES)
def test_every_encoding_has_a_row_in_each_table(table: int) -> None:
    assert sorted(named_in_first_column("encodings.md", "--position")[table]) == sorted(POSITION_ENCODINGS)


def test_there_is_no_other_table_of_encodings() -> None:
    assert len(named_in_first_column("encodings.md", "--position")) == len(TABLES)


def test_every_rule_has_a_row_and_a_column_of_laws() -> None:
    assert named_in_first_column("attention.md", "--attention") == [list(ATTENTION_RULES)]
    page = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| law \| (.*) \|$", page, re.MULTILINE) == [" | ".join(ATTENTION_RULES)]


def test_every_one_has_an_equation() -> None:
    """An encoding in the table, a rule in a file of its own, where loops are held against what is computed."""
    assert {position for position, _ in EQUATIONS} == set(POSITION_ENCODINGS)  # with softmax
    for name in set(ATTENTION_RULES) - {"softmax"}:
        text = (ROOT / "tests" / "equations" / f"test_{name}.py").read_text(encoding="utf-8")
        assert "def test_the_rule_is_the_formula(" in text
