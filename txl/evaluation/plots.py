"""Plots of evaluations, written atomically. Importing this does not import matplotlib."""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from txl.evaluation.config import EvalConfig
from txl.evaluation.measures.bins import spans
from txl.evaluation.rows import Row
from txl.files import require_writable, written_whole
from txl.runtime.log import perplexity, print_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Plot = Callable[[Path, Sequence[Row]], None]
"""Draws rows into a file."""
_SIZE = (6.0, 4.0)
_MOST_PIXELS = 2400
_LEAST_SPAN = 0.02
"""Of an axis of perplexity, relative to its level."""
_LOG = logging.getLogger(__name__)


class Pictured(Protocol):
    """Settings that say where pictures go."""

    @property
    def pictures(self) -> str | None: ...

    @property
    def json(self) -> str | None: ...


def pictures_of(config: EvalConfig, run: Path | None, more: Collection[str]) -> list[Path]:
    """The plots of an evaluation of splits: those requested, `context.png` if there are several
    lengths, and more by name; none where they have no place, see `picture_folder`.
    """
    several = len(config.mem_len) > 1 or len(config.tgt_len) > 1
    wanted = {
        "context.png": several,
        "attention.png": config.attention_by_distance,
        **dict.fromkeys(more, True),
    }
    folder = picture_folder(config, run)
    if folder is None:
        return []
    return [unused(folder / name) for name, is_wanted in wanted.items() if is_wanted]


def unused(path: Path) -> Path:
    """The path, or with a number behind its name if something is there: the pictures of an earlier
    evaluation stay.
    """
    place = path
    number = 1
    while os.path.lexists(place):
        number += 1
        place = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return place


def picture_folder(config: Pictured, run: Path | None) -> Path | None:
    """The folder of plots: --pictures, else that of --json, else the run's. None: there is no run,
    and nobody has asked for plots.
    """
    if config.pictures is not None:
        return Path(config.pictures)
    if run is None:
        return None
    # /dev/stdout
    if config.json is None or (Path(config.json).exists() and not Path(config.json).is_file()):
        return run
    return Path(config.json).parent


def drawable(paths: Sequence[Path], config: Pictured) -> list[Path]:
    """The plots that can be written; none, with a warning, if the default folder is read-only.
    Raises `OSError` if a folder given by a flag cannot be written to.
    """
    for path in paths:
        try:
            require_writable(path)
        except OSError as error:
            if config.pictures is not None or config.json is not None:
                raise
            _LOG.warning(
                "%s: %s; no picture is drawn, name a folder with --pictures", path, error.strerror
            )
            return []
    return list(paths)


def write_pictures(rows: Sequence[Row], paths: Iterable[Path], more: Mapping[str, Plot]) -> None:
    """Draw the plots named by `pictures_of`; `more`: by file name."""
    plots = {"context.png": plot_context, "attention.png": plot_attention, **more}
    for path in paths:
        plots[path.stem.partition("-")[0] + path.suffix](path, rows)
        print_line(f"| picture: {path}")


def plot_context(path: Path, rows: Sequence[Row]) -> None:
    """Perplexity by memory length, one curve per split and segment length; by segment length if
    there is only one memory length.
    """
    if len({row.context.mem_len for row in rows}) > 1:
        against = "mem_len"
        other = "tgt_len"
        what = "memory"
    else:
        against = "tgt_len"
        other = "mem_len"
        what = "segment"
    figure, (axes,) = new_figure(1)
    curves = dict.fromkeys((row.split, getattr(row.context, other), row.manner) for row in rows)
    several = len({length for _, length, _ in curves}) > 1
    lengths = sorted({getattr(row.context, against) for row in rows})
    axes.set_xscale("symlog", linthresh=min([m for m in lengths if m], default=1))
    drawn = []
    for split, length, manner in curves:
        mine = (split, length, manner)
        chosen = []
        for row in rows:
            if (row.split, getattr(row.context, other), row.manner) == mine:
                chosen.append(row)
        points = sorted((getattr(row.context, against), row.score.perplexity) for row in chosen)
        label = ", ".join(
            [split, *([f"{other} {length}"] if several else []), *([manner] if manner else [])]
        )
        axes.plot(*zip(*points, strict=True), marker="o", label=label)
        drawn += points
    axes.margins(y=0.15)
    widen(axes, [y for _, y in drawn])
    shown = _apart(axes, lengths)
    axes.set_xticks(shown, [str(m) for m in shown], minor=False)
    axes.set_xticks([], minor=True)
    bottom, top = axes.get_ylim()
    for x, y in [point for point in drawn if point[0] in shown]:
        if not any(
            other == x and 0 < abs(level - y) < 0.08 * (top - bottom) for other, level in drawn
        ):
            axes.annotate(
                f"{y:.1f}",
                (x, y),
                textcoords="offset points",
                xytext=(0, 7),
                ha="center",
                fontsize=8,
            )
    finish(axes, f"{what} (tokens)", "perplexity", _gain_claim(rows, against, what))
    save(figure, path, legend_of=axes)


def _gain_claim(rows: Sequence[Row], against: str, what: str) -> str:
    """What the longest memory or segment is worth beside the shortest, in the first curve."""
    by_length = {}
    for row in rows:
        same_curve = (row.split, row.manner) == (rows[0].split, rows[0].manner)
        if same_curve:
            by_length.setdefault(getattr(row.context, against), row.score.perplexity)
    shortest, longest = min(by_length), max(by_length)
    saved = 100 * (1 - by_length[longest] / by_length[shortest])
    word = "lower" if saved >= 0 else "higher"
    return f"{what} {longest} in place of {shortest}: {abs(saved):.1f} % {word} perplexity"


def widen(axes: "Axes", levels: Sequence[float]) -> None:
    """Let the axis span a fiftieth of what it shows at least: noise does not fill a picture."""
    middle = (min(levels) + max(levels)) / 2
    bottom, top = axes.get_ylim()
    least = middle * _LEAST_SPAN / 2
    axes.set_ylim(min(bottom, middle - least), max(top, middle + least))


def _apart(axes: "Axes", lengths: Sequence[int]) -> list[int]:
    """A subset of the lengths, including the last, whose axis labels do not overlap."""
    axes.autoscale_view()
    width = axes.bbox.width
    at = {}
    for length in lengths:
        at[length] = float(axes.transData.transform((length, 0))[0]) / width
    shown = [lengths[-1]]
    for length in reversed(lengths):
        if at[shown[-1]] - at[length] > 0.09:
            shown.append(length)
    return sorted(shown)


def plot_attention(path: Path, rows: Sequence[Row]) -> None:
    """Heat maps of attention by distance, heads of all layers, a pair for the longest memory of
    each split and segment length: the share of each bin, and the probability of a key in it. After
    figure 5 of Dai et al. 2019.
    """
    from matplotlib.colors import LogNorm

    longest: dict[tuple[str, int], Row] = {}
    for row in sorted(rows, key=lambda row: row.context.mem_len):
        if row.attention is not None:
            longest[row.split, row.context.tgt_len] = row
    measured = list(longest.values())
    n_pair = 1 if len(measured) < 4 else 2  # side by side
    figure, panels = new_figure(
        2 * n_pair, n_row=-(-len(measured) // n_pair), height=_height(measured)
    )
    for axes in panels[2 * len(measured) :]:
        axes.set_axis_off()
    for i, row in enumerate(measured):
        attention = row.attention
        assert attention is not None
        keep = attention.pairs_K.nonzero().squeeze(1)
        bins = [spans(attention.edges)[k] for k in keep.tolist()]
        n_layer, n_head, _ = attention.mass_LNK.shape
        for axes, values, title in (
            (panels[2 * i], attention.share_LNK, "share of the attention"),
            (panels[2 * i + 1], attention.per_key_LNK, "probability of a key"),
        ):
            # positive, for the logarithm
            map_RK = np.maximum(values[..., keep].flatten(0, 1).numpy(), 1e-9)
            if title.endswith("key"):
                scale = LogNorm(vmin=max(map_RK.min(), map_RK.max() / 1e4))
            else:
                scale = None
            image = axes.imshow(
                map_RK, aspect="auto", cmap="Blues", interpolation="nearest", norm=scale
            )
            figure.colorbar(image, ax=axes, label=title)
            labels = ["-".join(map(str, dict.fromkeys(one))) for one in bins]  # 3, or 4-5
            axes.set_xticks(range(len(bins)), labels, rotation=90, fontsize=7)
            middles = []
            for layer in range(n_layer):
                middles.append((layer + 0.5) * n_head - 0.5)
            axes.set_yticks(middles, [str(layer + 1) for layer in range(n_layer)])
            for layer in range(1, n_layer):
                axes.axhline(layer * n_head - 0.5, color="black", lw=0.5)
            axes.set(xlabel="distance (tokens)", ylabel="layer, its heads below each other")
            axes.set_title(f"{row.label}: {_far_share(row)}", fontsize=9)
    save(figure, path)


def _far_share(row: Row) -> str:
    """The share of attention to tokens at least as far back as a segment is long, in words."""
    attention = row.attention
    assert attention is not None
    bins = spans(attention.edges)
    far = [k for k, (first, _) in enumerate(bins) if first >= row.context.tgt_len]
    if not far:
        return "within a segment"
    share = float(attention.share_LNK[..., far].sum(-1).mean())
    return f"{share:.0%} of it goes {bins[far[0]][0]} tokens back or further"


def plot_curve(path: Path, curve: Sequence[tuple[int, float]]) -> None:
    """Perplexity of the valid split over the tokens read: pairs of tokens and nats per token."""
    figure, (axes,) = new_figure(1)
    axes.plot([tokens for tokens, _ in curve], [perplexity(nats) for _, nats in curve], marker=".")
    axes.set_yscale("log")
    number_plainly(axes)
    finish(axes, "tokens read", "perplexity", "Perplexity of the valid split in training")
    save(figure, path)


def number_plainly(axes: "Axes") -> None:
    """Numbers such as 60 and 150 beside a logarithmic axis, in place of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 6, 8)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def new_figure(
    n_column: int, *, n_row: int = 1, height: float = _SIZE[1]
) -> tuple["Figure", list["Axes"]]:
    """A figure with so many panels."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(_SIZE[0] * n_column, height * n_row), layout="constrained")
    return figure, list(figure.subplots(n_row, n_column, squeeze=False).flat)


def finish(axes: "Axes", x: str, y: str, title: str) -> None:
    """Names of the axes, a title and a grid."""
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)


def save(figure: "Figure", path: Path, *, legend_of: "Axes | None" = None) -> None:
    """Write a plot of at most _MOST_PIXELS in each direction, with the legend below the panels."""
    if legend_of is not None:
        handles, labels = legend_of.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=len(figure.axes) + 1, fontsize=8
        )
    dpi = min(120, _MOST_PIXELS / max(figure.get_size_inches()))
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=dpi)


def _height(rows: Sequence[Row]) -> float:
    """Height in inches of a heat map with one line per head."""
    n_line = max(
        (row.attention.mass_LNK[..., 0].numel() for row in rows if row.attention is not None),
        default=0,
    )
    return max(_SIZE[1], 2 + 0.05 * n_line)
