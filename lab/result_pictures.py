"""Draw the pictures of lab/docs/results.md from the files of results that the page quotes.

    python -m lab.result_pictures [--folder lab/docs/pictures]

Points are single trainings, bars means over the seeds; points with an interval are contrasts of a study.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lab.studies.figures import Figures
from lab.studies.occurrences import Group
from txl.files import written_whole

RESULTS = Path(__file__).with_name("results")
PICTURES = Path(__file__).parent / "docs" / "pictures"
BUDGETS = (2, 6, 20)
"""Tokens of a training, in millions."""
READINGS = {
    "equal time": "best memory, equal time",
    "equal tokens": "best memory",
    "borders aside": "as trained, borders aside",
    "as trained": "as trained",
}
"""Ends of the names of contrasts, and how the picture calls them."""
ROWS = {
    "muon with r_net, pre-norm": "Muon with r_net",
    "muon with r_net, pre-norm, memory drawn": "Muon with r_net, memory drawn",
    "muon, pre-norm": "Muon",
    "muon, pre-norm, memory drawn": "Muon, memory drawn",
    "adamw, pre-norm": "AdamW",
    "adam, pre-norm": "Adam",
    "muon with r_net, post-norm": "Muon with r_net, post-norm",
    "muon, post-norm": "Muon, post-norm",
    "adamw, post-norm": "AdamW, post-norm",
    "adam, post-norm": "Adam, post-norm",
}
"""Of reading_beyond_small.json, and how the picture calls them."""
PLACES = {
    "segment": "in its segment",
    "memory": "in the memory",
    "beyond": "further back",
    "never": "nowhere",
}
"""Where a token stood last, and how the picture calls it."""
USES = {
    "memory_use_aside.csv": "after 6 million tokens",
    "memory_use_aside-20M.csv": "after 20 million",
}
"""Tables of occurrences, and how the picture calls them."""
BAR = 0.38


def reading_beyond(axes: Any) -> None:
    """What a memory of 960 costs beside 192, by row, with distances clamped and without."""
    figures = Figures(RESULTS / "reading_beyond_small.json")
    for y, row in enumerate(ROWS):
        read = figures.each(row, "test, mem_len 192", "nats")
        for column, marker, shift in (("test, mem_len 960", "o", -0.12), ("clamped", "x", 0.12)):
            longer = figures.each(row, column, "nats")
            cost = [after - before for after, before in zip(longer, read, strict=True)]
            label = "960 clamped" if marker == "x" else "960"
            colour = "C1" if marker == "x" else "C0"
            named = {"label": label} if y == 0 else {}
            axes.plot(cost, [y + shift] * len(cost), marker, color=colour, **named)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(ROWS)), list(ROWS.values()))
    axes.invert_yaxis()
    axes.set_xlabel("nats a token beside memory 192")
    axes.set_title("A memory of 960 after a training with 192", fontsize=10)
    axes.legend(fontsize=8)


def recurrence_pays(axes: Any) -> None:
    """What recurrence changes in the test loss, by the tokens of the training, with 95 % intervals:
    at the rates of a search, and at half of that which was found with recurrence.
    """
    searched = Figures(RESULTS / "recurrence_pays.json")
    halved = Figures(RESULTS / "recurrence_rates.json")
    for at, (kind, said) in enumerate(READINGS.items()):
        beside = 1.04 ** (at - 1.5)  # so that intervals do not hide each other
        found = {n * beside: f"recurrence at {n}M, {kind}" for n in BUDGETS}
        looks = {"fmt": "o-", "color": f"C{at}"}
        _with_intervals(axes, searched, found, label=said, **looks)
        found = {n * beside: f"recurrence at {n}M and half the rate, {kind}" for n in BUDGETS}
        looks |= {"fmt": "s", "markerfacecolor": "white"}
        label = "at half the rate" if at == len(READINGS) - 1 else None
        _with_intervals(axes, halved, found, label=label, **looks)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks(BUDGETS, [f"{n} million" for n in BUDGETS])
    axes.minorticks_off()
    axes.set_xlabel("tokens of the training")
    axes.set_ylabel("nats a token, below 0: recurrence ahead")
    axes.set_title("With recurrence beside without", fontsize=10)
    axes.legend(fontsize=7)


def _with_intervals(axes: Any, figures: Figures, asked: Mapping[float, str], **looks: Any) -> None:
    """Draw the contrasts that have figures, by where they stand on the x axis, with their
    intervals.
    """
    places = {}
    for x, name in asked.items():
        if figures.comparisons.get((name, ""), {}).get("difference") is not None:
            places[x] = name
    found = [figures.comparison(name) for name in places.values()]
    means = [one["difference"] for one in found]
    reach = [
        [one["difference"] - one["low"] for one in found],
        [one["high"] - one["difference"] for one in found],
    ]
    axes.errorbar(list(places), means, yerr=reach, markersize=4, capsize=3, **looks)


def memory_use(axes: Any) -> None:
    """What a memory of 192 gains a token, by where the token stood last, after each training."""
    tables = {said: _by_place(name) for name, said in USES.items()}
    for at, (said, groups) in enumerate(tables.items()):
        for x, place in enumerate(PLACES):
            gains = [-difference for difference in groups[place].differences]
            beside = x + (at - 0.5) * BAR
            label = said if x == 0 else None
            axes.bar(beside, sum(gains) / len(gains), BAR, color=f"C{at}", alpha=0.6, label=label)
            axes.plot([beside] * len(gains), gains, "o", color="black", markersize=3)
    axes.axhline(0, color="grey", linewidth=0.8)
    labels = []
    some = next(iter(tables.values()))  # their text, and so the shares, are the same
    for place, name in PLACES.items():
        share = some[place].tokens / some["all"].tokens
        labels.append(f"{name}\n{share:.0%} of tokens")
    axes.set_xticks(range(len(PLACES)), labels, fontsize=8)
    axes.set_xlabel("where the token stood last")
    axes.set_ylabel("nats a token gained")
    axes.set_title("Memory 192 beside none, borders aside", fontsize=10)
    axes.legend(fontsize=8)


def _by_place(name: str) -> dict[str, Group]:
    """The groups of a table of occurrences, of words of any frequency, by where they stood last."""
    groups = {}
    for group in Figures(RESULTS / name).groups:
        if group.frequency == "all":
            groups[group.place] = group
    return groups


DRAWN: Mapping[str, Callable[[Any], None]] = {
    "reading-beyond": reading_beyond,
    "recurrence-pays": recurrence_pays,
    "memory-use": memory_use,
}
"""By the name of the picture."""


def draw(folder: Path) -> list[Path]:
    """Write all pictures into a folder; returns their paths."""
    from matplotlib.figure import Figure

    paths = []
    for name, fill in DRAWN.items():
        figure = Figure(figsize=(6, 3.4), layout="constrained")
        fill(figure.subplots())
        paths.append(folder / f"{name}.png")
        with written_whole(paths[-1]) as temporary:
            figure.savefig(temporary, dpi=120, format="png")
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=PICTURES, help="(default: lab/docs/pictures)"
    )
    for path in draw(parser.parse_args().folder):
        print(f"written: {path}")


if __name__ == "__main__":
    main()
