"""The pictures of lab/docs/results.md are drawn from the files that the page quotes."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from lab.result_pictures import (
    DRAWN,
    RESULTS,
    draw,
    memory_use,
    reading_beyond,
    recurrence_pays,
)
from lab.studies.figures import Figures
from tests.forks import ROOT


def test_each_picture_is_small_and_on_the_page(tmp_path: Path) -> None:
    page = (ROOT / "lab" / "docs" / "results.md").read_text(encoding="utf-8")
    paths = draw(tmp_path)
    assert [path.stem for path in paths] == list(DRAWN)
    for path in paths:
        assert 5_000 < path.stat().st_size < 60_000
        assert f"(pictures/{path.name})" in page
        assert (ROOT / "lab" / "docs" / "pictures" / path.name).is_file()


def test_a_cost_is_that_of_960_beside_192() -> None:
    axes = Figure().subplots()
    reading_beyond(axes)
    study = Figures(RESULTS / "reading_beyond_small.json")
    row = "muon with r_net, pre-norm"
    expected = study.nats(row, "test, mem_len 960") - study.nats(row, "test, mem_len 192")
    values = list(axes.lines[0].get_xdata())
    assert sum(values) / len(values) == pytest.approx(expected)
    assert axes.lines[0].get_label() == "960"


def test_a_point_is_what_recurrence_changes() -> None:
    axes = Figure().subplots()
    recurrence_pays(axes)
    study = Figures(RESULTS / "recurrence_pays.json")
    drawn = {one.get_label(): one for one in axes.containers}
    line, _, (bars,) = drawn["as trained"]
    name = "recurrence at 6M, as trained"
    expected = study.nats("with, 6M", "memories, test, mem_len 192") - study.nats(
        "without, 6M", "memories, test, mem_len 0"
    )
    assert line.get_ydata()[1] == pytest.approx(expected)
    low, high = bars.get_segments()[1][:, 1]
    interval = study.comparison(name)
    assert (low, high) == pytest.approx((interval["low"], interval["high"]))
    point = drawn["at half the rate"][0]
    name = "recurrence at 2M and half the rate, as trained"
    halved = Figures(RESULTS / "recurrence_rates.json")
    assert point.get_ydata()[0] == pytest.approx(halved.comparison(name)["difference"])


def test_a_bar_is_a_gain() -> None:
    axes = Figure().subplots()
    memory_use(axes)
    groups = {
        group.place: group
        for group in Figures(RESULTS / "memory_use_aside.csv").groups
        if group.frequency == "all"
    }
    group = groups["memory"]
    assert axes.patches[1].get_height() == pytest.approx(group.against - group.of)
    assert axes.patches[1].get_height() > 0
