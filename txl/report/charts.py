"""The charts of the page, drawn by matplotlib and written as SVG that stands in the page: in the
colours of its style sheet, light and dark, and without styles of its own, which its policy refuses.
"""

import io
import re
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from txl.evaluation.plots import number_plainly
from txl.report.claims import Measure, numbers, when_said
from txl.report.record import Distances, Report
from txl.runtime.log import perplexity

COLOURS = {"000001": "ink", "000002": "soft", "000003": "grid", "000004": "likelier1"}
COLOURS |= {f"00001{k}": f"run{k}" for k in range(6)}
"""What the colours of page.mplstyle are called in page.css."""
_UNDATED = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_MOST_LABELS = 8
_LEVEL = "{x:,.6g}"


def as_svg(axes: Axes, label: str) -> Markup:
    """A chart as part of a page; `label` says what it shows to those who do not see it.

    Of the names of its parts `value` becomes a class, and after `title:` what is shown at a part.
    """
    figure = axes.figure
    assert isinstance(figure, Figure)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata=_UNDATED)
    width, height = 72 * figure.get_size_inches()
    svg = re.sub(r"^.*?<svg.*?</style>\s*</defs>", "", out.getvalue(), flags=re.DOTALL)
    svg = re.sub(r' style="([^"]*)"', _as_attributes, svg)
    svg = re.sub(r'<g id="title:([^"]*)">', r"<g><title>\1</title>", svg)
    svg = svg.replace('<g id="value">', '<g class="value">')
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    for colour, name in COLOURS.items():
        svg = svg.replace(f"#{colour}", f"var(--{name})")
    svg = re.sub(r"\s*\n\s*", " ", svg)
    box = f'viewBox="0 0 {width:g} {height:g}"'
    return Markup(f'<svg {box} role="img" aria-label="{escape(label)}">{svg}')


def _as_attributes(style: re.Match[str]) -> str:
    """The declarations of a style as attributes, but for the font, which is that of the page."""
    attributes = re.sub(r"font-family: [^;]*;", "", style[1])
    return re.sub(r"\s*([\w-]+): ([^;]*);?", r' \1="\2"', attributes)


def _axes(height: float = 240) -> Axes:
    """Axes of a new figure of this height in pixels."""
    return Figure(figsize=(380 / 72, height / 72), layout="constrained").subplots()


def _write(axes: Axes, text: str, at: tuple[float, float], offset: tuple[int, int]) -> None:
    """Write a value beside its point."""
    axes.annotate(text, at, offset, textcoords="offset points", va="center", gid="value")


def levels(reports: Sequence[Report], borders: str, measure: Measure) -> Axes:
    """Level by length of memory, a line for each run; intervals are those of the difference from
    the first point.
    """
    axes = _axes()
    for k, report in enumerate(reports):
        points = [(float(row.mem_len), measure.of(row)) for row in report.rows_of(borders)]
        axes.plot(*zip(*points, strict=True), f"C{k}o-")
        for mem_len, low, high in _intervals(report, borders, measure):
            axes.plot([mem_len, mem_len], [low, high], f"C{k}_-", linewidth=1.6)
        texts = numbers([level for _, level in points])
        if len(reports) > 1:
            points, texts = points[-1:], texts[-1:]
        for point, text in zip(points, texts, strict=True):
            _write(axes, text, point, (6, 8))
    lengths = sorted({row.mem_len for report in reports for row in report.rows})
    lengths = lengths[:: -(-len(lengths) // _MOST_LABELS)]
    axes.set_xscale("symlog", base=2, linthresh=8)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.yaxis.set_major_formatter(_LEVEL)
    axes.margins(x=0.12)
    axes.set(xlabel="memory (tokens)", ylabel=measure.name)
    return axes


def _intervals(
    report: Report, borders: str, measure: Measure
) -> Iterator[tuple[int, float, float]]:
    """Of each longer memory its length, and the ends of the interval of its level."""
    first, *others = report.rows_of(borders)
    for row in others:
        gain = report.gain(row.mem_len)
        if gain is None:
            continue
        share = gain.in_all
        if borders == "aside":
            share = gain.by_seeing_further
        if share is not None:
            low = measure.changed(first, share.high, gain.unit)
            high = measure.changed(first, share.low, gain.unit)
            yield row.mem_len, low, high


def curves(reports: Sequence[Report]) -> Axes | None:
    """Perplexity over the tokens read in training; None: no run knows it."""
    axes = _axes()
    for k, report in enumerate(reports):
        if report.curve is None:
            continue
        for curve, width in ((report.curve.train, 1.2), (report.curve.valid, 2.2)):
            points = [(tokens, perplexity(nats)) for tokens, nats in curve]
            points = [point for point in points if point[0] > 0 and 1 <= point[1] < 1e12]
            if points:
                axes.plot(*zip(*points, strict=True), f"C{k}", linewidth=width)
                (text,) = numbers([points[-1][1]])
                _write(axes, text, points[-1], (-16, 8))
    if not axes.lines:
        return None
    axes.set_yscale("log")
    number_plainly(axes)
    axes.yaxis.set_major_formatter(_LEVEL)
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.set_xlim(left=0)
    axes.set(xlabel="tokens read", ylabel="perplexity a token")
    return axes


def words(report: Report, number: int) -> Axes | None:
    """Nats saved by how long ago a word was said; None: nothing is known.

    Args:
        number: of the run on the page, for its colour.
    """
    known = [(one, one.saved) for one in report.said if one.saved is not None]
    if not known:
        return None
    axes = _axes(44 * len(known) + 46)
    names = []
    for y, (one, saved) in enumerate(known):
        names.append(f"{when_said(one)}\n{100 * one.share:.0f} % of the text")
        axes.barh(y, saved.mean, 0.45, color=f"C{number}", alpha=0.75)
        axes.plot([saved.low, saved.high], [y, y], "#000001", linewidth=1.6)
        _write(axes, f"{saved.mean:+.3f}", (max(saved.high, 0.0), y), (5, 0))
    axes.axvline(0, color="#000002", linewidth=0.8)
    axes.set_yticks(range(len(known)), names)
    axes.invert_yaxis()
    axes.grid(False)
    axes.locator_params(axis="x", nbins=3)
    axes.margins(x=0.4)
    axes.set(xlabel="nats saved a token")
    return axes


def heads(distances: Distances, tgt_len: int, number: int) -> Axes:
    """Of each head, the distances within which a quarter, half and three quarters of its attention
    lie.
    """
    edges = [*distances.first_K, distances.last_K[-1] + 1]
    n_head = len(distances.share_LNK[0])
    n_line = len(distances.share_LNK) * (n_head + 1)
    axes = _axes(max(4.0, min(11.0, 190 / n_line)) * n_line + 70)
    axes.axvspan(min(tgt_len, edges[-1]), edges[-1], color="#000004", alpha=0.6)
    for layer, share_NK in enumerate(distances.share_LNK):
        for head, share_K in enumerate(share_NK):
            y = layer * (n_head + 1) + head
            sum_K = np.concatenate([[0.0], np.cumsum(share_K) / np.sum(share_K)])
            low, middle, high = np.interp([0.25, 0.5, 0.75], sum_K, edges).tolist()
            what = (
                f"title:layer {layer + 1}, head {head + 1}: a quarter within {low:.0f} tokens,"
                f" half within {middle:.0f}, three quarters within {high:.0f}"
            )
            axes.plot([low, high], [y, y], f"C{number}", alpha=0.55)
            axes.plot([middle], [y], f"C{number}o", gid=what)
    axes.set_xscale("symlog", base=2, linthresh=1)
    powers = [0, *(2**power for power in range(1, 20, 2) if 2**power <= edges[-1])]
    axes.set_xticks(powers, [f"{power:,}" for power in powers])
    axes.set_xlim(0, edges[-1])
    axes.set_yticks(
        [layer * (n_head + 1) + (n_head - 1) / 2 for layer in range(len(distances.share_LNK))],
        [f"layer {layer}" for layer in range(1, len(distances.share_LNK) + 1)],
    )
    axes.set_ylim(n_line, -1)
    axes.grid(False)
    axes.set(xlabel="distance (tokens)", title="further than a segment")
    return axes
