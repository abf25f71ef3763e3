"""Places in the charts are those of the figures."""

import dataclasses
import math

import pytest

from tests.report.made import LENGTHS, report_of
from txl.report import charts, claims
from txl.report.record import Curve


def test_a_scale_keeps_order_and_proportions() -> None:
    place = charts.Scale([0.0, 10.0], 100, 200, room=0)
    assert [place(value) for value in (0, 5, 10)] == [100, 150, 200]
    bent = charts.Scale([1.0, 100.0], 200, 0, math.log, room=0)
    assert bent(10) == 100
    assert charts.Scale([3.0], 0, 10)(3.0) >= 0


@pytest.mark.parametrize(
    ("low", "high"), [(50.1, 59.7), (0.0, 1.28e6), (1.2139, 1.2658), (3.0, 3.0), (-0.3, 0.2)]
)
def test_marks_are_few_and_round_and_between_the_ends(low: float, high: float) -> None:
    steps = charts.round_steps(low, high, 5)
    assert 1 <= len(steps) <= 10
    assert all(low - 1e-9 <= step <= high + 1e-9 for step in steps)
    assert charts.powers(40, 1100) == [50, 100, 200, 500, 1000]


def test_lower_levels_stand_lower_and_intervals_around_their_points() -> None:
    report = report_of()
    chart = charts.level_chart([report], "cut", claims.measure_of([report]))
    (line,) = chart.lines
    values = [row.perplexity for row in report.rows_of("cut")]
    ys = [dot.y for dot in line.dots]
    assert [dot.label for dot in line.dots] == [claims.number(value) for value in values]
    order = sorted(range(len(values)), key=lambda k: -values[k])
    assert [ys[k] for k in order] == sorted(ys)
    assert [mark.label for mark in chart.x_marks] == [str(length) for length in LENGTHS]
    assert len(line.whiskers) == len(LENGTHS) - 1
    for whisker in line.whiskers:
        assert whisker.low > whisker.high  # y grows downwards
    pixels = [(float(value), mark.at) for mark in chart.y_marks for value in [mark.label]]
    slope = (pixels[1][1] - pixels[0][1]) / (pixels[1][0] - pixels[0][0])
    whisker = line.whiskers[2]
    gain = report.gain(128)
    assert gain is not None
    assert gain.in_all is not None
    height = values[0] * (gain.in_all.high - gain.in_all.low)
    assert whisker.low - whisker.high == pytest.approx(-slope * height, abs=0.3)


def test_labels_stand_inside() -> None:
    for reports in ([report_of()], [report_of(), report_of(name="other")]):
        for chart in (
            charts.level_chart(reports, "aside", claims.measure_of(reports)),
            charts.curve_chart(reports),
        ):
            assert chart is not None
            for line in chart.lines:
                for dot in line.dots:
                    assert 10 <= dot.label_y <= charts.HEIGHT - charts.BOTTOM + 20
                    assert charts.LEFT <= dot.x <= charts.WIDTH - 24


def test_without_a_curve_there_is_no_chart() -> None:
    assert charts.curve_chart([report_of(curve=None)]) is None
    assert charts.curve_chart([report_of(curve=Curve(train=[], valid=[]))]) is None
    chart = charts.curve_chart([report_of(curve=Curve(train=[[5.0, 900.0], [9.0, 2.0]], valid=[]))])
    assert chart is not None  # a loss beyond all figures is left out
    assert [len(line.dots) for line in chart.lines] == [1]


def test_bars_are_as_long_as_what_is_saved() -> None:
    chart = charts.words_chart(report_of())
    assert chart is not None
    assert [row.label for row in chart.rows] == ["-0.010", "+0.110", "+0.010"]
    assert chart.rows[1].width == pytest.approx(11 * chart.rows[0].width, rel=0.1)
    assert chart.rows[0].x < chart.zero == pytest.approx(chart.rows[1].x, abs=0.1)
    nothing = [dataclasses.replace(one, saved=None) for one in report_of().said]
    assert charts.words_chart(report_of(said=nothing)) is None


def test_a_head_stands_where_its_attention_does() -> None:
    report = report_of()
    assert report.distances is not None
    chart = charts.heads_chart(report.distances, 32)
    head = chart.layers[0].heads[0]
    assert head.what.endswith("a quarter within 2 tokens, half within 10, three quarters within 52")
    assert head.low < head.middle < head.high < chart.right
    assert [mark.label for mark in chart.marks] == ["0", "2", "8", "32", "128"]
    border = next(mark.at for mark in chart.marks if mark.label == "32")
    assert chart.border == border
