"""The page in a browser: what it shows is what report.json holds, by mouse, by keyboard, on paper and without a script.

Needs Chromium and playwright: scripts/test_in_browser.sh brings both.
"""

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.made import HOSTILE, LENGTHS, hostile_everywhere, maps_of, report_of, words_of
from txl.report.page import page_of
from txl.report.record import Report, read_report, write_report

playwright = pytest.importorskip(
    "playwright.sync_api", reason="no playwright; run scripts/test_in_browser.sh"
)

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
WATCH = """
addEventListener('securitypolicyviolation', event => console.error('policy: ' + event.violatedDirective));
"""
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip(
            "no chromium; run scripts/test_in_browser.sh, or name one with CHROMIUM=/path/to/chromium"
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("chromium")))  # of the driver too
        with playwright.sync_playwright() as started:
            args = ["--disable-dev-shm-usage", "--disable-gpu"]
            browser = started.chromium.launch(executable_path=CHROMIUM, args=args)
            yield browser
            browser.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens reports as a page. At the end nothing was complained of, refused, asked of the network, or run."""
    faults: list[str] = []
    asked: list[str] = []
    contexts: list[Any] = []

    def open_(*reports: Report, **how: Any) -> Any:
        file = tmp_path / "report.html"
        file.write_text(page_of(reports), encoding="utf-8")
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **how})
        contexts.append(context)
        page = context.new_page()
        if how.get("java_script_enabled", True):
            page.add_init_script(WATCH)
        page.on(
            "console",
            lambda message: (
                faults.append(message.text) if message.type in ("error", "warning") else 0
            ),
        )
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        if how.get("java_script_enabled", True):
            page.wait_for_selector("body[data-ready]")
            assert page.evaluate("document.readyState") == "complete"
        return page

    yield open_
    for context in contexts:
        for page in context.pages:
            if page.evaluate("typeof window.ran") != "undefined":
                faults.append("a text was run")
        context.close()
    assert faults == []
    assert asked == [(tmp_path / "report.html").as_uri()] * len(contexts)


def losses_shown(page: Any) -> list[float]:
    """Of the token that the panel is about, by length of memory."""
    rows = page.locator("#bars .row > span:last-child").all_inner_texts()
    return [float(row.split("·")[0]) for row in rows]


def losses(report: Report, i: int) -> list[float]:
    assert report.shown is not None
    return [nats_N[i] for nats_N in report.shown.nats_MN]


def saved(report: Report) -> np.ndarray:
    """Nats that memory 128 saves over none."""
    assert report.shown is not None
    nats_MN = np.array(report.shown.nats_MN)
    return nats_MN[0] - nats_MN[3]


def keys_of(report: Report, map_: int, i: int) -> list[int]:
    """The tokens that a token looked at, as far as they are shown."""
    assert report.shown is not None
    looked = report.shown.looked
    assert looked is not None
    counts = np.array(looked.count_PN).ravel()
    at = map_ * looked.n_token + i
    begin = int(counts[:at].sum())
    backs = looked.back_K[begin : begin + int(counts[at])]
    return sorted({i - back for back in backs if i - back >= 0})


def marked(page: Any, name: str) -> list[int]:
    """The tokens with a class."""
    return page.evaluate(
        f"nodes.flatMap((node, i) => /\\b{name}\\d/.test(node.className) ? [i] : [])"
    )


# figures


def test_what_is_shown_is_what_report_json_holds(opened: Open, tmp_path: Path) -> None:
    write_report(tmp_path / "report.json", report_of(400))
    written = json.loads((tmp_path / "report.json").read_text())
    page = opened(read_report(tmp_path / "report.json"))
    text = page.locator("header").inner_text()
    assert "Memory 128 in place of none: 15.4 % lower perplexity a word (14.4 to 16.4)" in text
    assert "2.5 % (1.5 to 3.5) by seeing further" in text
    for summary in page.locator("summary").all():
        summary.click()
    for borders in ("cut", "aside"):
        cells = page.locator(f"table.{borders} tbody tr").all()
        rows = [row for row in written["rows"] if row["borders"] == borders]
        assert len(cells) == len(rows) == len(LENGTHS)
        for cell, row in zip(cells, rows, strict=True):
            values = cell.locator("td").all_inner_texts()
            assert values[0] == str(row["mem_len"])
            assert float(values[1]) == pytest.approx(row["perplexity"], abs=5e-4)
            assert float(values[3]) == pytest.approx(row["bits_per_character"], abs=5e-5)
            assert float(values[4]) == pytest.approx(row["nats_per_token"], abs=5e-5)
    for i in range(0, 400, 41):
        page.evaluate(f"show({i})")
        assert losses_shown(page) == [nats_N[i] for nats_N in written["shown"]["nats_MN"]]


def test_colours_are_those_of_what_is_saved(opened: Open) -> None:
    report = report_of(1000)
    page = opened(report)
    saved_N = saved(report)
    for k, times in enumerate((1.5, 2.5, 5.0), 1):
        upper = math.inf if k == 3 else math.log((2.5, 5.0)[k - 1])
        for name, sign in (("likelier", 1), ("rarer", -1)):
            strong_N = (sign * saved_N >= math.log(times)) & (sign * saved_N < upper)
            found = page.evaluate(
                f"nodes.flatMap((node, i) => node.classList.contains('{name}{k}') ? [i] : [])"
            )
            assert found == np.flatnonzero(strong_N).tolist()
    dotted = page.evaluate(
        "getComputedStyle(nodes.find(n => /rarer/.test(n.className))).textDecorationStyle"
    )
    assert dotted == "dotted"
    title = page.locator("h2.where").inner_text()
    n_likelier = int((saved_N >= math.log(1.5)).sum())
    n_rarer = int((saved_N <= -math.log(1.5)).sum())
    assert f"memory makes {n_likelier} at least 1.5 times likelier, {n_rarer} less likely" in title


def test_other_lengths_can_be_compared(opened: Open) -> None:
    report = report_of(300)
    page = opened(report)
    page.select_option("#far", "256")
    page.select_option("#near", "8")
    assert report.shown is not None
    nats_MN = np.array(report.shown.nats_MN)
    likelier_N = nats_MN[1] - nats_MN[4] >= math.log(1.5)
    assert marked(page, "likelier") == np.flatnonzero(likelier_N).tolist()
    assert "memory 256 in place of 8" in page.locator("#which").inner_text()


def test_places_that_gain_most_lead_there(opened: Open) -> None:
    report = report_of(1500)
    page = opened(report)
    assert report.shown is not None
    saved_N = saved(report)
    words = [
        i for i in np.argsort(-saved_N, kind="stable").tolist() if report.shown.pieces[i].strip()
    ]
    best = [
        i
        for i in words
        if len(report.shown.pieces[i].strip()) > 2 and report.shown.pieces[i].strip().isalpha()
    ]
    first = (best or words)[0]
    button = page.locator("#places button").first
    assert f"\u00d7 {math.exp(saved_N[first]):.1f}" in button.inner_text()
    button.click()
    assert page.evaluate("here") == first
    page.locator("#strip i").nth(30).click()
    assert page.evaluate("here") == 30 * 1500 // 60
    box = page.locator("#text").bounding_box()
    place = page.locator("#text .here").bounding_box()
    assert box["y"] <= place["y"] <= box["y"] + box["height"]


# mouse and keys


def test_hover_shows_the_losses_and_what_was_looked_at(opened: Open) -> None:
    report = report_of(600)
    page = opened(report)
    for i in (0, 3, 40, 41, 299, 300, 599):
        page.locator("#text .t").nth(i).hover()
        assert page.evaluate("here") == i
        assert losses_shown(page) == losses(report, i)
        if i < 300:
            assert marked(page, "looked") == keys_of(report, page.evaluate("map"), i)
        else:
            assert marked(page, "looked") == []
            assert "kept for the first 300" in page.locator("#keys").inner_text()


def test_every_head_can_be_chosen_and_the_furthest_is_first(opened: Open) -> None:
    report = report_of(200)
    page = opened(report)
    assert report.shown is not None
    assert report.shown.looked is not None
    beyond_P = report.shown.looked.beyond_P
    assert page.evaluate("map") == max(range(3, 7), key=beyond_P.__getitem__)
    page.locator("#text .t").nth(150).click()
    names = ["all heads together", "layer 1", "layer 2"]
    names += [f"layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2)]
    for k, name in enumerate(names):
        button = page.get_by_role("button", name=f"attention: {name}", exact=True)
        button.click()
        assert page.evaluate("map") == k
        assert button.get_attribute("aria-pressed") == "true"
        assert page.locator("#heads [aria-pressed=true]").count() == 1
        assert page.locator("#whose").inner_text() == name
        assert marked(page, "looked") == keys_of(report, k, 150)


def test_a_model_of_hundreds_of_heads_keeps_few(opened: Open) -> None:
    heads = maps_of(18, 16)
    kept = [*heads[:19], *heads[25:33]]
    page = opened(report_of(200, maps=kept))
    assert page.locator("#heads button").count() == 1 + 18 + 8


def test_all_can_be_reached_by_keys(opened: Open) -> None:
    report = report_of(2000)
    page = opened(report)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('t')"):
            break
    at = page.evaluate("here")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("here") == at + 1
    assert page.evaluate("document.activeElement.index") == at + 1
    assert losses_shown(page) == losses(report, at + 1)
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("here") == at
    page.keyboard.press("ArrowDown")
    below = page.evaluate("here")
    assert below > at
    page.keyboard.press("ArrowUp")
    assert page.evaluate("here") < below
    page.keyboard.press("Home")
    assert page.evaluate("here") == 0
    large = np.flatnonzero(np.abs(saved(report)) >= math.log(5)).tolist()
    assert len(large) > 2
    for expected in large[1:3] if large[0] == 0 else large[:2]:
        page.keyboard.press("n")
        assert page.evaluate("here") == expected
    page.keyboard.press("End")
    assert page.evaluate("here") == 1999
    page.keyboard.press("p")
    assert page.evaluate("here") == [i for i in large if i < 1999][-1]


# any text


def test_hostile_text_is_text(opened: Open) -> None:
    report = hostile_everywhere()
    assert report.shown is not None
    page = opened(report)
    assert page.evaluate("document.scripts.length") == 2
    assert (
        page.evaluate("document.querySelectorAll('img, #text b, #text script, iframe').length") == 0
    )
    assert page.evaluate("run.pieces") == report.shown.pieces
    for i in range(len(HOSTILE)):
        page.evaluate(f"go({i})")
        assert losses_shown(page) == losses(report, i)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_each_token_is_written_as_it_is(opened: Open) -> None:
    report = report_of([" the", " caf", "é", "\n", "", "\n\n", "  ", " ", "שלום", "a\nb"] * 2)
    page = opened(report)
    expected = ["the", "caf", "é", "⏎", "·", "⏎⏎", " ", " ", "שלום", "a⏎b"]
    assert page.evaluate("nodes.map(node => node.textContent)") == expected * 2
    assert page.locator("#text p").count() == 6


def test_the_policy_stops_what_is_not_of_the_page(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of([report_of(60)]), encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-ready]")
    page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = 'window.ran = 1';
        document.body.append(script);
        const box = document.createElement('div');
        box.innerHTML = '<img src=x onerror="window.ran = 2"><p id=styled style="color: rgb(1, 2, 3)">x</p>';
        document.body.append(box);
        fetch('https://example.org/').catch(() => { window.refused = true; });
    }""")
    page.wait_for_function("window.refused === true")
    assert page.evaluate("typeof window.ran") == "undefined"
    assert (
        page.evaluate("getComputedStyle(document.getElementById('styled')).color") != "rgb(1, 2, 3)"
    )
    page.close()


# size, colours, paper


def test_twenty_thousand_tokens_scroll(opened: Open) -> None:
    page = opened(report_of(20_000, attended=1000, maps=maps_of(4, 4)))
    found = page.evaluate("""async () => {
        const box = document.getElementById('text');
        const gaps = [];
        let last = performance.now();
        for (let k = 0; k <= 120; k++) {
            box.scrollTop = k * box.scrollHeight / 120;
            await new Promise(requestAnimationFrame);
            gaps.push(performance.now() - last);
            last = performance.now();
        }
        gaps.sort((a, b) => a - b);
        const begin = performance.now();
        document.getElementById('far').value = '256';
        document.getElementById('far').onchange();
        const again = performance.now() - begin;
        return {median: gaps[60], most: gaps[120], again, tokens: nodes.length,
                elements: document.querySelectorAll('*').length};
    }""")
    print(json.dumps(found))
    assert found["tokens"] == 20_000
    assert found["elements"] < 23_000
    assert found["median"] < 50


def contrast(page: Any) -> dict[str, float]:
    """Of each colour of a token with what is written on it, as WCAG counts it."""
    return page.evaluate("""() => {
        const light = colour => {
            const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255);
            const [r, g, b] = parts.map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const card = getComputedStyle(document.querySelector('section')).backgroundColor;
        const found = {};
        for (const name of ['', 'likelier1', 'likelier2', 'likelier3', 'rarer1', 'rarer2', 'rarer3']) {
            nodes[5].className = `t ${name}`;
            const style = getComputedStyle(nodes[5]);
            const behind = style.backgroundColor === 'rgba(0, 0, 0, 0)' ? card : style.backgroundColor;
            const [low, high] = [light(style.color), light(behind)].sort((a, b) => a - b);
            found[name] = (high + 0.05) / (low + 0.05);
        }
        return found;
    }""")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(opened: Open, scheme: str) -> None:
    page = opened(report_of(100), color_scheme=scheme)
    ratios = contrast(page)
    assert len(ratios) == 7
    assert min(ratios.values()) >= 4.5, ratios
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(17, 20, 24)") == (scheme == "dark")


@pytest.mark.parametrize("width", [400, 900, 1280])
def test_nothing_stands_out_at_the_side(opened: Open, width: int) -> None:
    reports = [
        hostile_everywhere(),
        report_of(1000, name="a-name-of-a-run-that-is-long" * 3, seed=1),
    ]
    page = opened(*reports, viewport={"width": width, "height": 800})
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_several_runs_share_the_reader(opened: Open) -> None:
    first = report_of(200)
    second = report_of(words_of(150), name="other", seed=1)
    page = opened(first, second)
    assert page.locator("h2.where:visible").count() == 1
    page.select_option("#run", "1")
    page.wait_for_selector("body[data-ready='1']")
    assert page.evaluate("nodes.length") == 150
    page.locator("#text .t").nth(100).hover()
    assert losses_shown(page) == losses(second, 100)
    assert page.locator("h2.where:visible").inner_text().startswith("other: ")


def test_on_paper_it_is_black_on_white_without_what_is_clicked(opened: Open) -> None:
    page = opened(report_of(3000), color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(26, 29, 33)"
    for name in ("#places", "#panel", "#strip", "#pair"):
        assert not page.locator(name).is_visible()
    assert page.locator("svg").first.is_visible()
    n_printed = page.evaluate("nodes.filter(node => node.offsetParent !== null).length")
    assert 1400 <= n_printed <= 1600
    assert page.pdf()[:5] == b"%PDF-"


def test_figures_and_charts_need_no_script(opened: Open) -> None:
    page = opened(report_of(300), java_script_enabled=False)
    text = page.locator("body").inner_text()
    assert "15.4 % lower perplexity a word" in text
    assert "figures and charts need none" in text
    assert page.locator("svg:visible").count() == 5
    assert not page.locator("#reader").is_visible()


def test_a_report_of_one_length_and_without_attention_can_be_read(opened: Open) -> None:
    report = report_of(100, attended=0)
    assert report.shown is not None
    shown = dataclasses.replace(report.shown, mem_len_M=[0], nats_MN=report.shown.nats_MN[:1])
    rows = [row for row in report.rows if row.mem_len == 0]
    page = opened(
        dataclasses.replace(
            report, shown=shown, rows=rows, gains=[], compared=[0], said=[], distances=None
        )
    )
    page.locator("#text .t").nth(7).hover()
    assert losses_shown(page) == [report.shown.nats_MN[0][7]]
    assert not page.locator("#attention").is_visible()
    assert not page.locator("#pair").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("n_run", [1, 2])
def test_axe_finds_nothing(browser: Any, tmp_path: Path, scheme: str, n_run: int) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="run scripts/test_in_browser.sh"
    )
    file = tmp_path / "report.html"
    file.write_text(
        page_of([report_of(300, name=f"run{k}", seed=k) for k in range(n_run)]), encoding="utf-8"
    )
    # axe is a script of its own
    context = browser.new_context(bypass_csp=True, color_scheme=scheme)
    page = context.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-ready]")
    for summary in page.locator("summary").all():
        summary.click()
    found = [
        (one["id"], one["nodes"][0]["html"][:150])
        for one in axe.Axe().run(page).response["violations"]
    ]
    context.close()
    assert found == []
