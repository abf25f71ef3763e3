"""Pictures show the figures of the rows: read off what matplotlib was asked to draw."""

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from txl import Context
from txl.evaluation import plots
from txl.evaluation.measures.attention import AttentionByDistance
from txl.evaluation.rows import Row
from txl.evaluation.score import Score


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Draws a plot and returns its axes."""

    def panels(plot: Any, *arguments: Any) -> list[Any]:
        figures: list[Any] = []
        for module in (plots, importlib.import_module(plot.__module__)):
            monkeypatch.setattr(module, "save", lambda figure, path, **_: figures.append(figure))
        plot(Path("unused.png"), *arguments)
        return figures[0].axes

    return panels


def row(mem_len: int, **more: Any) -> Row:
    return Row(
        "test",
        Context(tgt_len=4, mem_len=mem_len),
        Score(100 * (6 - mem_len / 10), 100),
        1.0,
        **more,
    )


def test_perplexity_by_memory(panels: Any) -> None:
    (axes,) = panels(plots.plot_context, [row(0), row(10), row(20)])
    (line,) = axes.lines
    assert list(line.get_xdata()) == [0, 10, 20]
    assert list(line.get_ydata()) == pytest.approx([math.exp(n) for n in (6, 5, 4)])
    assert axes.get_title() == "memory 20 in place of 0: 86.5 % lower perplexity"


def test_a_difference_that_is_nothing_does_not_fill_the_picture(panels: Any) -> None:
    (axes,) = panels(plots.plot_context, [row(0), row(0.001)])
    bottom, top = axes.get_ylim()
    assert top - bottom >= 0.02 * math.exp(6) * 0.99


def test_an_older_picture_stays(tmp_path: Path) -> None:
    path = tmp_path / "context.png"
    assert plots.unused(path) == path
    path.touch()
    (tmp_path / "context-2.png").symlink_to("nowhere")
    assert plots.unused(path).name == "context-3.png"


def test_numbers_of_a_logarithmic_axis_are_plain(panels: Any) -> None:
    (axes,) = panels(plots.plot_curve, [(1000, math.log(300)), (2000, math.log(60))])
    axes.figure.canvas.draw()
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert {"60", "100", "300"} <= set(shown)


def test_attention_by_distance(panels: Any) -> None:
    """Heads below each other, with a line between layers."""
    mass_LNK = torch.arange(1.0, 13).view(2, 3, 2).double()
    attention = AttentionByDistance([0, 1, 2], mass_LNK, torch.tensor([4, 8]), 10)
    share, key, *_ = panels(plots.plot_attention, [row(0, attention=attention), row(0)])
    np.testing.assert_allclose(share.images[0].get_array(), mass_LNK.view(6, 2) / 10)
    np.testing.assert_allclose(
        key.images[0].get_array(), mass_LNK.view(6, 2) / torch.tensor([4, 8])
    )
    for axes in (share, key):
        assert [list(line.get_ydata()) for line in axes.lines] == [[2.5, 2.5]]
        assert axes.get_title().endswith(": within a segment")
    attention = AttentionByDistance([0, 1, 4, 6], torch.ones(1, 2, 3), torch.tensor([4, 8, 9]), 3)
    share, *_ = panels(plots.plot_attention, [row(0, attention=attention)])
    assert share.get_title().endswith(": 33% of it goes 4 tokens back or further")
