"""Charts show the figures: read off what matplotlib was asked to draw, and off the SVG of the page."""

import dataclasses
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tests.report.made import LENGTHS, report_of
from txl.report import charts, claims
from txl.report.page import page_of
from txl.report.record import Curve


@pytest.mark.parametrize("borders", ["cut", "aside"])
def test_levels_and_intervals_are_those_of_the_report(borders: str) -> None:
    report = report_of()
    axes = charts.levels([report], borders, claims.measure_of([report]))
    level, *intervals = axes.lines
    values = [row.perplexity for row in report.rows_of(borders)]
    np.testing.assert_array_equal(level.get_xydata(), list(zip(LENGTHS, values, strict=True)))
    assert [text.get_text() for text in axes.texts] == claims.numbers(values)
    assert [label.get_text() for label in axes.get_xticklabels()] == [str(n) for n in LENGTHS]
    assert len(intervals) == len(LENGTHS) - 1
    gain = report.gain(128)
    assert gain is not None
    share = gain.in_all if borders == "cut" else gain.by_seeing_further
    assert share is not None
    expected = [values[0] * (1 - share.high), values[0] * (1 - share.low)]
    np.testing.assert_allclose(intervals[2].get_ydata(), expected)


def test_of_several_runs_the_last_levels_are_written() -> None:
    reports = [report_of(), report_of(name="other")]
    axes = charts.levels(reports, "cut", claims.measure_of(reports))
    assert len(axes.texts) == 2


def test_what_cannot_be_drawn_is_left_out() -> None:
    assert charts.curves([report_of(curve=None)]) is None
    assert charts.curves([report_of(curve=Curve(train=[], valid=[]))]) is None
    axes = charts.curves([report_of(curve=Curve(train=[[5.0, 900.0], [9.0, 2.0]], valid=[]))])
    assert axes is not None  # a loss beyond all figures is left out
    assert [len(line.get_xdata()) for line in axes.lines] == [1]
    nothing = [dataclasses.replace(one, saved=None) for one in report_of().said]
    assert charts.words(report_of(said=nothing), 0) is None


def test_bars_are_as_long_as_what_is_saved() -> None:
    axes = charts.words(report_of(), 0)
    assert axes is not None
    assert [text.get_text() for text in axes.texts] == ["-0.010", "+0.110", "+0.010"]
    assert [bar.get_width() for bar in axes.patches] == [-0.01, 0.11, 0.01]


def test_a_head_stands_where_its_attention_does() -> None:
    report = report_of()
    assert report.distances is not None
    axes = charts.heads(report.distances, 32, 0)
    line, dot = axes.lines[:2]
    assert str(dot.get_gid()).endswith(
        "a quarter within 2 tokens, half within 10, three quarters within 52"
    )
    np.testing.assert_allclose([*line.get_xdata(), *dot.get_xdata()], [2.5, 52, 10], atol=1)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "2", "8", "32", "128"]


def test_a_chart_has_the_colours_of_the_page_and_no_style_of_its_own() -> None:
    page = page_of([report_of(), report_of(name="other")])
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawn) == 7
    for svg in drawn:
        ET.fromstring(svg.replace("<svg", '<svg xmlns:xlink="x"'))
        assert "style" not in svg
        assert not re.search(r"#[0-9a-f]{6}\"", svg)
        assert not re.search("text.*font-family", svg)
    assert "<title>layer 2, head 2: a quarter within" in page
    names = set(re.findall(r"var\((--[\w-]+)\)", "".join(drawn)))
    assert names == {"--ink", "--soft", "--grid", "--likelier1", "--run0", "--run1"}
    assert all(f"{name}: #" in page for name in names)
