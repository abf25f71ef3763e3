"""Pictures show the figures of the rows: read off what matplotlib was asked to draw."""

import math
from typing import Any

import numpy as np
import pytest

from lab import plots
from lab.measures.loss_by_position import BinnedLoss
from lab.measures.recl import recl
from tests.evaluation.test_plots import panels, row

__all__ = ["panels"]
NAME = "loss_by_position"


def test_losses_by_position(panels: Any) -> None:
    """A point is as large as its bin has tokens."""
    from matplotlib.colors import to_hex

    binned = BinnedLoss([0, 1, 2, 4], [30.0, 8.0, 5.0], [10, 2, 1])
    (axes,) = panels(plots.plot_losses, [row(0, measured={NAME: binned.as_dicts()})])
    (line,), (points,) = axes.lines, axes.collections
    assert list(line.get_xdata()) == pytest.approx([0, 1, math.sqrt(12) - 1])
    assert list(line.get_ydata()) == [3, 4, 5]
    assert points.get_offsets()[:, 1].tolist() == [3, 4, 5]
    sizes = points.get_sizes()
    assert (sizes / sizes[0]).tolist() == pytest.approx([1, 0.2, 0.1])
    assert to_hex(points.get_facecolor()[0]) == to_hex(line.get_color())


def test_of_many_memories_the_ends_are_drawn_and_the_title_says_what_they_show(panels: Any) -> None:
    rows = []
    for i, mem_len in enumerate((0, 5, 20, 10)):
        binned = BinnedLoss([0, 1, 2], [5.0 - i, 3.0 - i / 10], [1, 1])
        rows.append(row(mem_len, measured={NAME: binned.as_dicts()}))
    (axes,) = panels(plots.plot_losses, rows)
    assert [line.get_ydata()[0] for line in axes.lines] == [5, 3]
    title = "Memory 20 in place of 0: -2.00 nats at the first token, -0.20 at the last"
    assert axes.get_title() == title


def test_effective_context_lengths(panels: Any) -> None:
    """Gains in percent with the threshold of 1 %."""
    nats_MCP = np.array([[[3.0, 4.0], [2.9, 3.9], [2.9, 3.9]]])
    result = recl(nats_MCP, [10, 20, 30], shares=(1.0,))
    gain, level = panels(plots.plot_recl, result, ["runs/a"])
    curve, threshold = gain.lines
    assert list(curve.get_xdata()) == [10, 20]
    assert list(curve.get_ydata()) == pytest.approx([100 * (1 - math.exp(-0.1)), 0])
    assert list(threshold.get_ydata()) == [1.0, 1.0]
    assert list(level.lines[0].get_ydata()) == pytest.approx([math.exp(n) for n in (3.5, 3.4, 3.4)])
