"""Curves of trainings of `examples.agents.ppo`, and what their agents earn in the end.

    python -m examples.agents.curves runs/tmaze-* runs/cartpole-* [--picture FILE] [--json FILE]

A panel for each task: the mean return of the episodes that ended in 10 updates, one line for each training; dashed
where the agent had no memory. Prints a row for each training.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from txl.config import require
from txl.files import written_whole
from txl.programs.run import run

SMOOTH = 10
"""Updates whose returns are averaged."""


def row_of(folder: Path) -> dict[str, Any]:
    """What is known of a training: its settings, its curve, smoothed, and its returns in the end."""
    path = folder / "curve.json"
    require(path.is_file(), f"{path}: no curve; train with --work_dir {folder} first")
    found = json.loads(path.read_text())
    curve = [point for point in found["curve"] if point["return"] is not None]
    parts = [curve[i : i + SMOOTH] for i in range(0, len(curve) - SMOOTH + 1, SMOOTH)]
    return {
        "config": {
            name: value
            for name, value in found["config"].items()
            if name not in ("work_dir", "resume")
        },
        "seconds": round(found["curve"][-1]["seconds"], 1),
        "cpu_seconds": round(found["curve"][-1]["cpu_seconds"], 1),
        "returns": found["returns"],
        "curve": [
            [part[-1]["steps"], round(float(np.mean([p["return"] for p in part])), 3)]
            for part in parts
        ],
    }


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The panels, as a picture."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(row["config"]["env"] for row in rows))
    figure = Figure(figsize=(4.5 * len(tasks), 3.2), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for row in (row for row in rows if row["config"]["env"] == task):
            config = row["config"]
            sees_past = config["mem_len"] > 1
            name = f"memory of {config['mem_len']} steps" if sees_past else "no memory"
            color, style = ("C0", "-") if sees_past else ("0.6", "--")
            if not row["curve"]:
                continue  # fewer updates than are averaged
            places, returns = zip(*row["curve"], strict=True)
            axes.plot(np.array(places) / 1000, returns, style, color=color, lw=1, label=name)
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        if not handles:
            axes.text(
                0.5, 0.5, f"fewer than {SMOOTH} updates", ha="center", transform=axes.transAxes
            )
        axes.legend(handles.values(), handles.keys(), fontsize=8)
        axes.set(title=task, xlabel="thousand steps", ylabel="return")
        axes.grid(alpha=0.3)
    with written_whole(path) as part:
        figure.savefig(part, format=path.suffix[1:] or "png", dpi=100)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="a --work_dir of examples.agents.ppo",
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the curves there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and curves there")
    args = parser.parse_args(argv)
    rows = [row_of(folder) for folder in args.folders]
    for row in rows:
        config, returns = (
            row["config"],
            ", ".join(f"{name} {value:.2f}" for name, value in row["returns"].items()),
        )
        sizes = f"memory {config['mem_len']:3}, {config['n_update']} updates, {row['cpu_seconds']:.0f} s of CPU time"
        print(f"{config['env']:9} seed {config['seed']}, {sizes}: {returns}")
    if args.picture is not None:
        draw(rows, args.picture)
    if args.json is not None:
        with written_whole(args.json) as path:
            path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    run(main)
