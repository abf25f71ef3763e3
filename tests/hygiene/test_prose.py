"""Pages are short, their sentences too, and they use the field's words."""

import re
import tomllib

import pytest

from tests.forks import ROOT

LIMITS = {
    "README.md": 900,
    "CHANGELOG.md": 2500,
    "docs/README.md": 250,
    "docs/memory.md": 1200,
    "docs/agents.md": 1200,
    "docs/attention.md": 1280,
    "docs/encodings.md": 1030,
    "docs/extending.md": 800,
    "docs/evaluation.md": 900,
    "docs/generation.md": 1000,
    "docs/scaling.md": 1200,
    "docs/security.md": 800,
    "docs/faq.md": 600,
    "docs/importing.md": 1200,
    "docs/length-studies.md": 200,
    "docs/pretrained.md": 1200,
    "docs/report.md": 700,
    "docs/speed.md": 1400,
    "docs/test-time-adaptation.md": 350,
    "CONTRIBUTING.md": 1000,
    "examples/classification/README.md": 250,
    "examples/recall/README.md": 150,
    "examples/seq2seq/README.md": 400,
}
"""Words a page may have, code blocks left out."""
MEAN_SENTENCE = 20
HOUSE_WORDS = re.compile(
    r"\b(anew|borders aside|in place of|mend(s|ed)?|with figures in sight|without a word"
    r"|passed over|not shown|beside|stands|of its own)\b",
    re.IGNORECASE,
)
"""Words of this project alone, for which the field has others."""


def prose(text: str) -> str:
    """A page without code blocks, comments, targets of links and code spans, which count as a word each."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]+`", "code", text)


def words(text: str) -> int:
    return sum(1 for word in text.split() if re.search(r"\w", word))


def sentences(text: str) -> list[str]:
    """Those of paragraphs and lists: not of headings and tables."""
    lines = [line for line in text.splitlines() if not line.startswith(("|", "#", "    "))]
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:- |\d+\. ))", "\n".join(lines))
    found = [one for block in blocks for one in re.split(r"(?<=[.!?])\s+", block)]
    return [one for one in found if words(one)]


@pytest.mark.parametrize("page", LIMITS)
def test_a_page_is_short_and_in_the_words_of_the_field(page: str) -> None:
    text = prose((ROOT / page).read_text(encoding="utf-8"))
    assert words(text) <= LIMITS[page]
    lengths = [words(one) for one in sentences(text)]
    assert sum(lengths) / len(lengths) < MEAN_SENTENCE
    assert [found[0] for found in HOUSE_WORDS.finditer(text)] == []


def test_sentences_are_those_of_paragraphs() -> None:
    page = (
        "# Head\n\nOne two. Three `a b` [link](there.md).\n- item\n\n| cell |\n\n```\ncode\n```\n"
    )
    assert [words(one) for one in sentences(prose(page))] == [2, 3, 1]


def test_a_clone_comes_from_the_address_of_the_project() -> None:
    """Which pyproject.toml alone decides."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project["urls"]["Repository"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"git clone (\S+)", readme) == [address]
