"""Evaluate a trained Transformer-XL as `txl eval` does, with its loss by position in the segment and
by distance from the start of the document: tables and position.png.

python -m lab.loss_by_position --work_dir RUN ...
"""

import dataclasses
import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from lab.measures.loss_by_position import losses_by_place
from lab.plots import PLACES, plot_losses
from txl.config import require
from txl.data_utils.corpus import DataConfig
from txl.evaluation.config import EVAL, EvalConfig
from txl.evaluation.rows import Row
from txl.programs.eval import MOST_USED
from txl.programs.run import run
from txl.runs.evaluation import Measure, evaluate
from txl.runs.scoring import Split
from txl.runtime.log import perplexity, print_line
from txl.settings.flags import read_flags


class LossByPosition(Measure):
    """The losses of the model alone, of the text as it is cut into segments, by place."""

    keeps_losses = True
    plots = MappingProxyType({"position.png": plot_losses})

    def of_split(self, split: Split, rows: list[Row], config: EvalConfig) -> list[Row]:
        """See `Measure.of_split`."""
        starts = split.starts_if_any()
        measured = []
        for row in rows:
            if row.tokens is not None and not row.added and row.borders == "cut":
                found = {}
                for name, losses in losses_by_place(row.tokens, starts).items():
                    found[f"loss_by_{name}"] = losses.as_dicts()
                row = dataclasses.replace(row, measured=found)
            measured.append(row)
        return measured

    def report(self, rows: Sequence[Row]) -> dict[str, Any]:
        """See `Measure.report`; the file of --json has the tables in its rows."""
        without = {}
        for row in rows:
            if row.measured:
                print_line(table_of(row))
                if "loss_by_distance" not in row.measured:
                    without[row.split] = None
        for split in without:
            print_line(
                f"{split}: no headings like '= Title =', so no loss by distance since the document"
                " began"
            )
        return {}


def main(argv: Sequence[str]) -> None:
    typed = read_flags(
        argv, *EVAL, DataConfig, description=__doc__ or "", first=MOST_USED, presets="eval"
    )
    measure = LossByPosition()
    require(
        typed.get("borders") != "aside",
        "--borders aside: losses by position are of tokens that stand anywhere in their segments;"
        " give --borders both, or leave --borders out",
    )
    evaluate(typed, measure)


def table_of(row: Row) -> str:
    """Nats per token by position and by distance, as text."""
    lines = []
    for name, bins in row.measured.items():
        lines.append(f"{row.label}: {PLACES[name]}")
        lines.append(f"{'from':>9} {'to':>9} {'tokens':>9} {'loss':>8} {'perplexity':>11}")
        for one in bins:
            lines.append(
                f"{one['from']:>9} {one['to']:>9} {one['tokens']:>9} {one['nats_per_token']:>8.4f} "
                f"{perplexity(one['nats_per_token']):>11.3f}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.argv[0] = "lab.loss_by_position"
    run(main)
