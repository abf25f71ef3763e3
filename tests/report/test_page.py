"""The page as a file: its policy, its size, and that it is drawn from what report.json holds. Looked at by a browser in
tests/browser."""

import base64
import hashlib
import json
import re
import zlib
from html import unescape
from typing import Any

import numpy as np
import pytest

from tests.report.made import LENGTHS, hostile_everywhere, maps_of, report_of
from txl.report.page import page_of, told_apart
from txl.report.record import Report


def blocks(page: str, tag: str) -> list[str]:
    return re.findall(rf"<{tag}(?:\s[^>]*)?>(.*?)</{tag}>", page, re.DOTALL)


def unpacked(page: str, number: int = 0) -> tuple[dict[str, Any], bytes]:
    """What the script gets."""
    (packed,) = re.findall(rf'id="data{number}">([^<]*)<', page)
    content = zlib.decompress(base64.b64decode(packed))
    size = int.from_bytes(content[:4], "little")
    return json.loads(content[4 : 4 + size]), content[4 + size :]


def test_only_its_own_style_and_script_may_run() -> None:
    page = page_of([report_of()])
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.split(" ", 1) for rule in unescape(policy).split("; "))
    assert rules.keys() == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
    assert {rules[name] for name in ("default-src", "base-uri", "form-action")} == {"'none'"}
    for name, text in (
        ("style-src", blocks(page, "style")[0]),
        ("script-src", blocks(page, "script")[-1]),
    ):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert page.index("Content-Security-Policy") < page.index("<style>")
    assert re.findall(r'\bstyle="|\son\w+="|https?:|\bsrc=|\bhref="[^#]', page) == []


def test_what_the_script_gets_is_what_the_report_holds() -> None:
    report = report_of(500)
    head, arrays = unpacked(page_of([report]))
    shown = report.shown
    assert shown is not None
    looked = shown.looked
    assert looked is not None
    assert head["pieces"] == shown.pieces
    assert head["before"] == shown.before
    assert (head["lengths"], head["compared"], head["segment"]) == (LENGTHS, [0, 128], 32)
    assert head["maps"][0] == [None, None]
    assert head["maps"][-1] == [1, 1]
    n_loss = len(LENGTHS) * 500
    losses = np.frombuffer(arrays, "<u2", n_loss).reshape(len(LENGTHS), 500)
    assert (losses / 1000).tolist() == shown.nats_MN
    n_key = head["keys"]
    assert np.frombuffer(arrays, "<u2", n_key, 2 * n_loss).tolist() == looked.back_K
    counts = np.frombuffer(arrays, np.uint8, 7 * 300, 2 * (n_loss + n_key))
    assert counts.reshape(7, 300).tolist() == looked.count_PN
    assert (
        np.frombuffer(arrays, np.uint8, n_key, 2 * (n_loss + n_key) + 7 * 300).tolist()
        == looked.share_K
    )


def cells(page: str, name: str) -> list[list[str]]:
    (table,) = re.findall(rf'<table class="{name}">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    return [[cell.strip() for cell in row.split("<td>")[1:]] for row in rows]


@pytest.mark.parametrize("borders", ["cut", "aside"])
def test_tables_have_the_figures(borders: str) -> None:
    report = report_of()
    found = cells(page_of([report]), borders)
    for row, cell in zip(report.rows_of(borders), found, strict=True):
        assert cell[:5] == [
            str(row.mem_len),
            f"{row.perplexity:.3f}",
            f"{row.word_perplexity:.3f}",
            f"{row.bits_per_character:.4f}",
            f"{row.nats_per_token:.4f}",
        ]
        gain = report.gain(row.mem_len)
        if gain is None:
            assert cell[5:] == ["-", "-"]
            continue
        share = gain.in_all if borders == "cut" else gain.by_seeing_further
        assert share is not None
        assert cell[5] == f"{100 * share.mean:.1f} %"
        assert cell[6].startswith(f"{100 * share.low:.1f} to {100 * share.high:.1f} %")
        assert cell[6].endswith("not shown") == (not share.is_shown)


def test_text_in_any_field_stays_text() -> None:
    page = page_of([hostile_everywhere()])
    plain = page_of([report_of()])
    for tag in ("script", "style", "section", "table"):
        assert page.count(f"<{tag}") == plain.count(f"<{tag}"), tag
    assert "<img" not in page
    assert "<!--" not in page
    assert page.count("{{ 7*7 }}") > 10
    assert "&lt;script&gt;window.ran=1" in page
    head, _ = unpacked(page)
    assert head["pieces"][0].startswith("<script>")


def real_sized(n_token: int) -> Report:
    """As large as a real one: what the demo has in 21 maps for 1,000 tokens."""
    return report_of(n_token, attended=1000, maps=maps_of(4, 4))


@pytest.mark.parametrize(("n_token", "most"), [(4000, 400_000), (20_000, 600_000)])
def test_the_page_stays_small(n_token: int, most: int) -> None:
    page = page_of([real_sized(n_token)])
    assert len(page.encode()) < most
    if n_token == 4000:
        assert len(page.encode()) - len(blocks(page, "script")[0]) < 80_000


def test_several_runs_share_a_page() -> None:
    reports = [report_of(name=f"run{k}", seed=k) for k in range(6)]
    page = page_of(reports)
    assert len(re.findall(r'<script type="application/octet-stream"', page)) == 6
    assert page.count('<div class="headline') == 6
    assert "different texts" not in page
    assert "different texts" in page_of([report_of(), report_of(text="c" * 64)])


def test_runs_that_are_called_alike_are_told_apart() -> None:
    reports = told_apart([report_of(), report_of(name="other"), report_of()])
    assert [report.name for report in reports] == ["demo (1)", "other", "demo (2)"]
    assert "demo (2)" in page_of([report_of(), report_of()])


def test_what_was_not_measured_is_left_out() -> None:
    page = page_of([report_of(distances=None, curve=None, shown=None, sample="", said=[])])
    assert 'id="reader"' not in page
    assert "attention of each head" not in page
    assert page.count("<section") == 4
    one = [row for row in report_of().rows if row.mem_len == 0]
    assert "nothing to compare" in page_of([report_of(rows=one, compared=[0], gains=[], said=[])])
