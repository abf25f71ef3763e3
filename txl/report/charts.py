"""Where things stand in the charts of the page, in pixels; the template draws them as SVG."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from txl.report.claims import Measure, numbers, when_said
from txl.report.record import Distances, Report
from txl.runtime.log import perplexity

WIDTH = 380
HEIGHT = 240
LEFT = 44
BOTTOM = 40
TOP = 26


class Scale:
    """Values to places on an axis.

    Args:
        values: all that must have a place.
        begin, end: the ends of the axis in pixels.
        bend: makes the axis logarithmic or otherwise bent; rising.
        room: left free at both ends, as a share of the axis.
    """

    def __init__(
        self,
        values: Sequence[float],
        begin: float,
        end: float,
        bend: Callable[[float], float] = float,
        room: float = 0.06,
    ) -> None:
        self._bend = bend
        self._begin = begin
        self._end = end
        lowest = bend(min(values))
        highest = bend(max(values))
        spare = (highest - lowest or 1.0) * room
        self._low = lowest - spare
        self._high = highest + spare

    def __call__(self, value: float) -> float:
        share = (self._bend(value) - self._low) / (self._high - self._low)
        return round(self._begin + share * (self._end - self._begin), 1)


def round_steps(low: float, high: float, n_step: int) -> list[float]:
    """Round numbers between two, about so many."""
    raw = (high - low or abs(high) or 1.0) / n_step
    power = 10 ** math.floor(math.log10(raw))
    step = min((power * factor for factor in (1, 2, 5, 10)), key=lambda step: abs(step - raw))
    return [round(k * step, 9) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def powers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two positive numbers."""
    found = []
    for exponent in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for factor in (1, 2, 5):
            value = factor * 10.0**exponent
            if low <= value <= high:
                found.append(value)
    return found


class Mark(NamedTuple):
    """A label of an axis."""

    at: float
    label: str


class Whisker(NamedTuple):
    """An interval."""

    x: float
    low: float
    high: float


class Dot(NamedTuple):
    """A point with its value written beside it."""

    x: float
    y: float
    label: str
    label_y: float


class Line(NamedTuple):
    """One run in a chart.

    Attributes:
        colour: its number.
        path: places, as SVG has them.
        is_thin: drawn behind, without dots.
    """

    colour: int
    path: str
    dots: list[Dot]
    whiskers: list[Whisker]
    is_thin: bool


class Chart(NamedTuple):
    """Lines with their axes."""

    lines: list[Line]
    x_marks: list[Mark]
    y_marks: list[Mark]
    x_label: str
    y_label: str


def _labels(values: Sequence[float], place: Scale) -> list[Mark]:
    """Labels with as many decimals as one of them needs."""
    n_decimal = 0
    for value in values:
        n_decimal = max(n_decimal, len(f"{value:g}".partition(".")[2]))
    return [Mark(place(value), f"{value:,.{min(n_decimal, 4)}f}") for value in values]


def level_chart(reports: Sequence[Report], borders: str, measure: Measure) -> Chart:
    """Level by length of memory, a line for each run; intervals are those of the difference from
    the first point.
    """
    lengths = sorted({row.mem_len for report in reports for row in report.rows_of(borders)})
    values = []
    intervals: list[list[tuple[int, float, float]]] = []
    for report in reports:
        rows = report.rows_of(borders)
        values += [measure.of(row) for row in rows]
        of_run = []
        for row in rows:
            gain = report.gain(row.mem_len)
            if gain is None:
                continue
            share = gain.in_all
            if borders == "aside":
                share = gain.by_seeing_further
            if share is not None:
                low = measure.changed(rows[0], share.high, gain.unit)
                high = measure.changed(rows[0], share.low, gain.unit)
                of_run.append((row.mem_len, low, high))
                values += [low, high]
        intervals.append(of_run)
    place_x = Scale(
        [float(length) for length in lengths], LEFT + 12, WIDTH - 40, lambda m: math.log2(m + 8)
    )
    place_y = Scale(values, HEIGHT - BOTTOM, TOP, room=0.08)
    lines = []
    for k, report in enumerate(reports):
        points = [(float(row.mem_len), measure.of(row)) for row in report.rows_of(borders)]
        whiskers = []
        for mem_len, low, high in intervals[k]:
            whiskers.append(Whisker(place_x(mem_len), place_y(low), place_y(high)))
        lines.append(_line(k, points, place_x, place_y, whiskers))
    marks = _apart([Mark(place_x(length), f"{length:,}") for length in lengths])
    steps = round_steps(min(values), max(values), 5)
    return Chart(lines, marks, _labels(steps, place_y), "memory (tokens)", measure.name)


def _line(
    colour: int,
    points: Sequence[tuple[float, float]],
    place_x: Scale,
    place_y: Scale,
    whiskers: list[Whisker],
    *,
    is_thin: bool = False,
) -> Line:
    dots = []
    labels = numbers([y for _, y in points])
    for k, (x, y) in enumerate(points):
        falls = k + 1 == len(points) or points[k + 1][1] <= y
        below = 18
        above = -9
        dots.append(
            Dot(place_x(x), place_y(y), labels[k], place_y(y) + (above if falls else below))
        )
    path = " ".join(f"{place_x(x)},{place_y(y)}" for x, y in points)
    return Line(colour, path, dots, whiskers, is_thin)


def _apart(marks: Sequence[Mark]) -> list[Mark]:
    """The marks whose labels do not stand in each other."""
    kept: list[Mark] = []
    for mark in marks:
        if not kept or mark.at - kept[-1].at >= 12 + 3.5 * (len(mark.label) + len(kept[-1].label)):
            kept.append(mark)
    return kept


def curve_chart(reports: Sequence[Report]) -> Chart | None:
    """Perplexity over the tokens read in training; None: no run knows it."""
    drawn: list[tuple[int, list[tuple[float, float]], bool]] = []
    for k, report in enumerate(reports):
        if report.curve is not None:
            for points, is_thin in ((report.curve.train, True), (report.curve.valid, False)):
                seen = []
                for tokens, nats in points:
                    seen.append((tokens, perplexity(nats)))
                seen = [point for point in seen if point[0] > 0 and 1 <= point[1] < 1e12]
                if seen:
                    drawn.append((k, seen, is_thin))
    if not drawn:
        return None
    xs = []
    ys = []
    for _, points, _ in drawn:
        for x, y in points:
            xs.append(x)
            ys.append(y)
    place_x = Scale([0.0, *xs], LEFT, WIDTH - 40, room=0)
    place_y = Scale(ys, HEIGHT - BOTTOM, TOP, math.log, room=0.08)
    lines = []
    for k, points, is_thin in drawn:
        lines.append(_line(k, points, place_x, place_y, [], is_thin=is_thin))
    marks = _apart([Mark(place_x(value), short(value)) for value in round_steps(0, max(xs), 3)])
    steps = powers(min(ys), max(ys))
    if len(steps) < 2:
        steps = round_steps(min(ys), max(ys), 4)
    return Chart(lines, marks, _labels(steps, place_y), "tokens read", "perplexity a token")


def short(value: float) -> str:
    """A count in few characters."""
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {name}"
    return f"{value:g}"


class Bar(NamedTuple):
    """One kind of word."""

    name: str
    share: str
    y: int
    x: float
    width: float
    whisker: Whisker | None
    label: str
    label_x: float


class Bars(NamedTuple):
    """What is saved at each kind of word."""

    rows: list[Bar]
    zero: float
    height: int


def words_chart(report: Report) -> Bars | None:
    """Nats saved by how long ago a word was said; None: nothing is known."""
    known = [one for one in report.said if one.saved is not None]
    if not known:
        return None
    ends = [0.0]
    for one in known:
        assert one.saved is not None
        ends += [one.saved.mean, one.saved.low, one.saved.high]
    place = Scale(ends, 176, WIDTH - 58, room=0.03)
    rows = []
    for k, one in enumerate(known):
        assert one.saved is not None
        y = 20 + 44 * k
        ends_x = sorted((place(0), place(one.saved.mean)))
        whisker = Whisker(y, place(one.saved.low), place(one.saved.high))
        width = round(ends_x[1] - ends_x[0], 1)
        label_x = max(whisker.high, place(0)) + 6
        share = f"{100 * one.share:.0f} % of the text"
        rows.append(
            Bar(
                when_said(one),
                share,
                y,
                ends_x[0],
                width,
                whisker,
                f"{one.saved.mean:+.3f}",
                label_x,
            )
        )
    return Bars(rows, place(0), 14 + 44 * len(rows))


class Head(NamedTuple):
    """The distances of a head.

    Attributes:
        low, middle, high: within which a quarter, half and three quarters of its attention lie, in
        pixels.
        what: the same in words.
    """

    y: float
    low: float
    middle: float
    high: float
    what: str


class Layer(NamedTuple):
    """The heads of a layer."""

    name: str
    y: float
    heads: list[Head]


class Heads(NamedTuple):
    """How far all heads look."""

    layers: list[Layer]
    marks: list[Mark]
    border: float
    right: float
    bottom: float
    height: float


def heads_chart(distances: Distances, tgt_len: int) -> Heads:
    """Of each head, the distances within which a quarter, half and three quarters of its attention
    lie.
    """
    edges = [*distances.first_K, distances.last_K[-1] + 1]
    place = Scale(
        [0.0, float(edges[-1])], 58, WIDTH - 14, lambda distance: math.log2(distance + 1), room=0
    )
    n_head = sum(map(len, distances.share_LNK))
    apart = max(4.0, min(11.0, 190 / n_head))
    y = 26.0
    layers = []
    for k, of_layer in enumerate(distances.share_LNK):
        top = y
        heads = []
        for n, share_K in enumerate(of_layer):
            sum_K = np.concatenate([[0.0], np.cumsum(share_K) / np.sum(share_K)])
            low, middle, high = np.interp([0.25, 0.5, 0.75], sum_K, edges).tolist()
            name = (
                f"layer {k + 1}, head {n + 1}: a quarter within {low:.0f} tokens, half within"
                f" {middle:.0f}, "
            )
            name += f"three quarters within {high:.0f}"
            heads.append(Head(round(y, 1), place(low), place(middle), place(high), name))
            y += apart
        layers.append(Layer(f"layer {k + 1}", round((top + y - apart) / 2, 1), heads))
        y += max(2.0, apart / 2)
    marks = [Mark(place(0), "0")]
    for power in range(1, 20, 2):
        if 2**power <= edges[-1]:
            marks.append(Mark(place(2**power), f"{2**power:,}"))
    border = place(min(tgt_len, edges[-1]))
    return Heads(layers, _apart(marks), border, place(edges[-1]), round(y, 1), round(y, 1) + 38)
