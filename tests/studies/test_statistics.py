"""What a study says of its differences."""

import itertools
import math
import random
from dataclasses import replace

import pytest

from txl.studies.picture import draw
from txl.studies.plan import Contrast, Study
from txl.studies.results import Row, RunFigures, compared
from txl.studies.statistics import Comparison, corrected, paired
from txl.studies.tables import Table, as_latex, as_markdown, comparisons_table

STUDY = Study("s", "S", (1, 2, 3), {"base": {}, "other": {}}, {}, "base")


def row(name: str, nats: dict[int, float], columns: tuple[str, ...] = ("a",), source: str = "") -> Row:
    def figures(seed: int, x: float) -> RunFigures:
        values = dict.fromkeys(columns, x)
        return RunFigures(seed, 1, 1, 1.0, None, values, dict(values), [(10, x + 1), (20, x)], source)

    return Row(name, name, source, [figures(seed, x) for seed, x in nats.items()])


def test_intervals_and_p_values_are_those_of_scipy() -> None:
    from scipy.stats import ttest_rel  # here: it takes a second to import

    dice = random.Random(3)
    ours, theirs = ([dice.gauss(5, 0.1) for _ in range(5)] for _ in range(2))
    found = paired("x", "a", [a - b for a, b in zip(ours, theirs, strict=True)])
    expected = ttest_rel(ours, theirs)
    interval = expected.confidence_interval(0.95)
    assert (found.p, found.low, found.high) == pytest.approx((expected.pvalue, interval.low, interval.high))


def test_p_values_are_corrected_by_holms_method() -> None:
    """Worked by hand: 4 * 0.01, max(0.04, 3 * 0.013), 2 * 0.03, max(0.06, 0.04)."""
    raw = [0.03, 0.01, None, 0.04, 0.013]
    found = corrected([Comparison("x", "a", 3, -1.0, p=p) for p in raw])
    assert [c.p_holm for c in found] == pytest.approx([0.06, 0.04, None, 0.06, 0.04])
    assert [c.verdict for c in found] == ["not shown", "better", "one seed", "not shown", "better"]


def test_only_seeds_and_sources_in_common_are_compared() -> None:
    rows = [row("base", {1: 5.0, 2: 5.1}, ("a", "b")), row("other", {2: 4.0, 3: 4.2}, ("a", "b"))]
    assert [(c.column, c.seeds, c.difference) for c in compared(STUDY, rows)] == [
        ("a", 1, pytest.approx(-1.1)),
        ("b", 1, pytest.approx(-1.1)),
    ]
    assert compared(STUDY, [rows[0], row("other", {1: 4.0}, source="text x")]) == []


def test_contrasts_are_compared_in_place_of_the_baseline() -> None:
    """A difference of differences; a seed or a source that lacks a side is left out."""
    gain = Contrast((("other", "a"), ("base", "b")), (("base", "a"), ("other", "b")))
    study = replace(STUDY, contrasts={"gain": gain})
    nats = {
        "base": {1: (5.0, 7.0), 2: (5.1, 7.3), 3: (5.2, 7.0)},
        "other": {1: (4.0, 6.9), 2: (4.3, 6.9), 4: (1.0, 1.0)},
    }
    rows = [row(name, dict.fromkeys(seeds, 0.0), ("a", "b")) for name, seeds in nats.items()]
    for one in rows:
        for run in one.runs:
            run.nats.update(zip("ab", nats[one.name][run.seed], strict=True))
    (found,) = compared(study, rows)
    differences = [4.0 + 7.0 - 5.0 - 6.9, 4.3 + 7.3 - 5.1 - 6.9]
    assert (found.run, found.seeds, found.difference) == ("gain", 2, pytest.approx(sum(differences) / 2))
    assert comparisons_table(study, [found]).rows[0][:3] == ["gain", "2", f"{found.difference:+.4f}"]
    for others in ([row("other", {1: 4.0}, ("a", "b"), source="text x")], []):  # nor one side, nor its column
        assert {(c.seeds, c.difference, c.verdict) for c in compared(study, [rows[0], *others])} == {
            (0, None, "no figures")
        }


@pytest.mark.parametrize(
    ("metric", "unit", "difference"),
    [("perplexity", "nats per token", -1.0), ("word_perplexity", "nats per word", -2.0), ("bits_per_byte", "", -0.5)],
)
def test_differences_are_those_of_the_metric(metric: str, unit: str, difference: float) -> None:
    """Nats per token of two vocabularies say nothing."""
    study, rows = replace(STUDY, metric=metric), [row("base", {1: 5.0}), row("other", {1: 4.0})]
    for one, value in zip(rows, (math.exp(9), math.exp(7)) if unit else (2.0, 1.5), strict=True):
        one.runs[0].values.clear()
        one.runs[0].values.update(a=value)
    (found,) = compared(study, rows)
    assert found.difference == pytest.approx(difference)
    assert f"{unit or 'bits per byte'} against base" in comparisons_table(study, [found]).header
    contrast = Contrast((("other", "a"),), (("base", "a"),))
    assert compared(replace(study, contrasts={"gain": contrast}), rows)[0].difference == found.difference


def test_the_picture_shows_every_mean_and_hides_none() -> None:
    from matplotlib.container import ErrorbarContainer

    rows = [row("base", {1: 5.0, 2: 5.2}, ("a", "b")), row("other", {1: 5.1, 2: 5.1}, ("a", "b"))]
    left, right = draw(STUDY, rows).axes
    bars = [one for one in right.containers if isinstance(one, ErrorbarContainer)]
    points = [(x, y) for bar in bars for x, y in zip(*bar.lines[0].get_data(), strict=True)]
    assert [y for _, y in points] == pytest.approx([5.1] * 4)
    places = sorted(x for x, _ in points)
    assert min(b - a for a, b in itertools.pairwise(places)) > 0.2
    assert [round(x) for x in places] == [0, 0, 1, 1]
    assert len(left.lines) == 2
    of_subwords = [replace(run, validated=(640, "bpe", 16000)) for run in rows[1].runs]
    assert len(draw(STUDY, [rows[0], replace(rows[1], runs=of_subwords)]).axes) == 1  # curves of other tokens


def test_signs_of_the_formats_are_escaped() -> None:
    table = Table(["a|b", "x_1"], [["50 % ^ ~", "\\"]])
    assert as_markdown(table).splitlines()[0] == r"| a\|b | x_1 |"
    assert r"50 \% \textasciicircum{} \textasciitilde{} & \textbackslash{} \\" in as_latex(table)
