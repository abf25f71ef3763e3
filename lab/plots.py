"""Plots of losses by position and of the relative effective context length."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lab.measures.loss_by_position import centre
from lab.measures.recl import THRESHOLD, Recl
from txl.evaluation.plots import finish, new_figure, save, widen
from txl.evaluation.rows import Row
from txl.runtime.log import perplexity

PLACES = {
    "loss_by_position": "position in the segment, from 0",
    "loss_by_distance": "tokens since the document began, from 0",
}
"""What losses are measured by: names in a row, and titles."""
_GAINS = (0.5, 1, 2, 5, 10, 20, 50, 100)
"""Percent, beside the axis of gains."""


def plot_losses(path: Path, rows: Sequence[Row]) -> None:
    """Nats per token by position in the segment and by distance from the document start, one curve
    per row, of the shortest memory and the longest one of each split. The area of a point grows
    with the tokens of its bin: those of small ones are noise.
    """
    names = []
    for name in PLACES:
        if any(name in row.measured for row in rows):
            names.append(name)
    figure, panels = new_figure(len(names))
    for name, axes in zip(names, panels, strict=True):
        measured = _ends([row for row in rows if name in row.measured])
        for row in measured:
            bins = row.measured[name]
            middle = []
            for one in bins:
                middle.append(centre(one["from"], one["to"]) - 1)
            nats = [one["nats_per_token"] for one in bins]
            (line,) = axes.plot(middle, nats, lw=1, label=row.label)
            axes.scatter(
                middle, nats, s=_areas([one["tokens"] for one in bins]), color=line.get_color()
            )
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(left=-0.1)
        finish(axes, PLACES[name], "nats per token", _claim_of(measured, name))
    save(figure, path, legend_of=panels[0])


def _ends(rows: Sequence[Row]) -> list[Row]:
    """Of each split and segment length the rows of the shortest memory and of the longest one:
    those between lie on one another.
    """
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.split, row.context.tgt_len, row.manner), []).append(row)
    ends: list[Row] = []
    for group in groups.values():
        by_memory = sorted(group, key=lambda row: row.context.mem_len)
        ends.append(by_memory[0])
        if len(by_memory) > 1:
            ends.append(by_memory[-1])
    return ends


def _claim_of(rows: Sequence[Row], name: str) -> str:
    """What the curves of one split show: the loss at both ends of the axis, with the longest memory
    in place of the shortest.
    """
    where = {
        "loss_by_position": ("the first token", "the last"),
        "loss_by_distance": ("the start", "the end"),
    }
    shortest = rows[0]
    longest = rows[-1]
    if len(rows) != 2 or shortest.split != longest.split:
        return name.replace("_", " ").capitalize()
    before = shortest.measured[name]
    after = longest.measured[name]
    first = after[0]["nats_per_token"] - before[0]["nats_per_token"]
    last = after[-1]["nats_per_token"] - before[-1]["nats_per_token"]
    begin, end = where[name]
    return (
        f"Memory {longest.context.mem_len} in place of {shortest.context.mem_len}:"
        f" {first:+.2f} nats at {begin}, {last:+.2f} at {end}"
    )


def _areas(tokens: Sequence[int]) -> np.ndarray:
    """Of the markers of bins, in points squared: at most that of a usual one."""
    count_K = np.asarray(tokens, dtype=np.float64)
    return np.maximum(1.0, 36 * count_K / count_K.max())


def plot_recl(path: Path, result: Recl, names: Sequence[str]) -> None:
    """Gain from longer contexts at the smallest share r, in percent, and perplexity by context
    length, one curve per model: after figures 3 and 4 of Dai et al. 2019. The RECL is where a gain
    falls below the line of 1 %.
    """
    figure, (gain, level) = new_figure(2)
    share = min(range(len(result.shares)), key=lambda k: result.shares[k])
    for i, name in enumerate(run_names(names)):
        gain.plot(result.lengths[:-1], 100 * result.gains[i, share], marker=".", label=name)
        level.plot(
            result.lengths,
            [perplexity(n) for n in result.nats_per_token[i].tolist()],
            marker=".",
            label=name,
        )
    title = (
        f"What {result.lengths[1] - result.lengths[0]} more tokens bring, r ="
        f" {result.shares[share]}"
    )
    gain.axhline(100 * THRESHOLD, color="black", lw=0.8, ls="--")
    gain.set_yscale("symlog", linthresh=100 * THRESHOLD)
    largest = 100 * float(result.gains[:, share].max())
    gain.set_yticks([0, *(tick for tick in _GAINS if tick <= 2 * largest)], minor=False)
    gain.yaxis.set_major_formatter("{x:g}")
    gain.set_yticks([], minor=True)
    finish(gain, "context before (tokens)", "relative gain (%)", title)
    widen(level, [perplexity(n) for n in result.nats_per_token.flatten().tolist()])
    finish(level, "context (tokens)", "perplexity", "Perplexity as the context grows")
    save(figure, path, legend_of=gain)


def run_names(paths: Sequence[str]) -> list[str]:
    """The shortest path suffixes that are distinct."""
    names = list(paths)
    parts = [Path(path).resolve().parts for path in paths]
    for n in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-n:]) for one in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names
