"""What a study says of its differences."""

import itertools
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from lab.studies.plan import Contrast, Study
from lab.studies.report import Findings, draw, in_words
from lab.studies.results import Row, RunFigures, compared
from lab.studies.statistics import Comparison, comparison, corrected, detectable, estimate
from lab.studies.tables import as_markdown, table_of

STUDY = Study("s", "S", (1, 2, 3), {"base": {}, "other": {}}, {}, "base")


def row(
    name: str, nats: dict[int, float], columns: tuple[str, ...] = ("a",), source: str = ""
) -> Row:
    def figures(seed: int, x: float) -> RunFigures:
        values = dict.fromkeys(columns, x)
        return RunFigures(
            seed, 1, 1, 1.0, None, values, dict(values), [(10, x + 1), (20, x)], source
        )

    return Row(name, name, source, [figures(seed, x) for seed, x in nats.items()])


BLOCKS = {
    "a": [9.3, 9.4, 9.6, 10.0],
    "b": [9.4, 9.3, 9.8, 9.9],
    "c": [9.2, 9.4, 9.5, 9.7],
    "d": [9.7, 9.6, 10.0, 10.2],
}
"""Hardness by four tips (arms) on four metal coupons, randomised blocks of Montgomery, Design and Analysis of
Experiments: the mean square of the error is 0.0089 with 9 degrees of freedom."""


def cells(losses: Mapping[str, Sequence[float]]) -> dict[tuple[str, int], list[float]]:
    return {
        (arm, seed): [loss] for arm, values in losses.items() for seed, loss in enumerate(values)
    }


def asking(**contrasts: Contrast) -> Study:
    return replace(STUDY, contrasts=contrasts)


def test_two_arms_are_students_paired_test() -> None:
    from scipy.stats import ttest_rel  # here: it takes a second to import

    dice = random.Random(3)
    ours, theirs = ([dice.gauss(5, 0.1) for _ in range(5)] for _ in range(2))
    found = comparison(
        "x", "a", 5, estimate(cells({"ours": ours, "theirs": theirs}), {"ours": 1, "theirs": -1})
    )
    expected = ttest_rel(ours, theirs)
    interval = expected.confidence_interval(0.95)
    assert (found.p, found.low, found.high) == pytest.approx(
        (expected.pvalue, interval.low, interval.high)
    )
    assert found.freedom == 4


def test_the_spread_is_pooled_as_in_a_textbook() -> None:
    found = estimate(cells(BLOCKS), {"d": 1, "b": -1})
    assert found is not None
    assert (found.difference, found.freedom) == (pytest.approx(9.875 - 9.6), 9)
    assert found.spread**2 == pytest.approx(0.0089, abs=5e-5)
    assert found.error == pytest.approx(found.spread * math.sqrt(2 / 4))


def test_the_spread_is_that_of_a_plain_loop() -> None:
    """Of the residuals around means of arm and of seed, in full tables."""
    dice = random.Random(5)
    losses = {arm: [dice.gauss(0, 1) + 3 * seed for seed in range(4)] for arm in "abcde"}
    total = statistics.fmean(loss for values in losses.values() for loss in values)
    squares = 0.0
    for values in losses.values():
        for seed, loss in enumerate(values):
            of_seed = statistics.fmean(other[seed] for other in losses.values())
            squares += (loss - statistics.fmean(values) - of_seed + total) ** 2
    found = estimate(cells(losses), {"a": 1, "b": -0.5, "c": -0.5})
    assert found is not None
    assert found.spread == pytest.approx(math.sqrt(squares / (4 * 3)))
    assert found.error == pytest.approx(found.spread * math.sqrt((1 + 0.25 + 0.25) / 4))


def test_a_difference_within_trainings_is_not_paired_by_seed() -> None:
    """Weights that do not sum to 0: what seeds have in common is chance too."""
    losses = {"a": [1.0, 1.2, 0.9], "b": [0.4, 0.7, 0.3]}
    found = estimate(cells(losses), {"a": 1})
    assert found is not None
    squares = sum(
        (loss - statistics.fmean(values)) ** 2 for values in losses.values() for loss in values
    )
    assert (found.difference, found.freedom) == (pytest.approx(statistics.fmean(losses["a"])), 4)
    assert found.error == pytest.approx(math.sqrt(squares / 4 / 3))


def test_arms_may_lack_seeds() -> None:
    """A seed of one arm alone says nothing of a difference; arms without a connection are not compared."""
    full = cells({"a": [1.0, 1.2], "b": [0.4, 0.7]})
    one, more = (
        estimate({**full, **extra}, {"a": 1, "b": -1}) for extra in ({}, {("a", 7): [5.0]})
    )
    assert one is not None
    assert more is not None
    assert (more.difference, more.error) == (
        pytest.approx(one.difference),
        pytest.approx(one.error),
    )
    assert estimate({("a", 1): [1.0], ("b", 2): [2.0]}, {"a": 1, "b": -1}) is None
    assert estimate(full, {"a": 1, "c": -1}) is None
    alone = estimate({("a", 1): [1.0], ("b", 1): [2.0]}, {"a": 1, "b": -1})
    assert comparison("x", "", 1, alone).verdict == "one seed"


def test_a_rerun_is_no_further_seed() -> None:
    """Of drawn studies that train two of three seeds twice with the same losses, 95 % of the intervals hold
    the difference: the second training tells nothing of the other seeds."""
    dice = np.random.default_rng(0)
    n_held = 0
    n_study = 1000
    for a_S, b_S in dice.normal(size=(n_study, 2, 3)):
        losses = cells({"a": a_S.tolist(), "b": b_S.tolist()})
        again = {
            key: values * (1 + (key in (("a", 0), ("b", 1)))) for key, values in losses.items()
        }
        found = comparison("x", "", 3, estimate(again, {"a": 1, "b": -1}))
        assert found.low is not None
        assert found.high is not None
        assert found.freedom == 2
        n_held += found.low <= 0 <= found.high
    assert n_held / n_study == pytest.approx(0.95, abs=0.02)
    noisy = estimate({("a", 0): [1.0, 1.6], ("b", 0): [0.5]}, {"a": 1, "b": -1})
    assert noisy is not None
    assert noisy.difference == pytest.approx(0.8)


def test_the_detectable_difference_is_that_of_power_tables() -> None:
    """The paired t-test at 5 % with power 0.8: R's pwr.t.test gives 0.6604 deviations for 20 pairs."""
    assert detectable(1 / math.sqrt(20), 19, level=0.05) == pytest.approx(0.6604413, rel=1e-5)


def test_so_many_studies_show_a_detectable_difference() -> None:
    """Drawn, with three seeds and a correction for ten."""
    from scipy.stats import t

    dice = np.random.default_rng(0)
    level, n_seed, n_study = 0.005, 3, 200_000
    size = detectable(1 / math.sqrt(n_seed), n_seed - 1, level=level)
    drawn = dice.normal(size, 1, (n_study, n_seed))
    scores = drawn.mean(1) / (drawn.std(1, ddof=1) / math.sqrt(n_seed))
    shown = np.abs(scores) > t.ppf(1 - level / 2, n_seed - 1)
    assert shown.mean() == pytest.approx(0.8, abs=0.005)


def test_p_values_are_corrected_by_holms_method() -> None:
    """Worked by hand: 4 * 0.01, max(0.04, 3 * 0.013), 2 * 0.03, max(0.06, 0.04)."""
    raw = [0.03, 0.01, None, 0.04, 0.013]
    given = [Comparison("x", "a", 3, -1.0, p=p, error=1.0, freedom=9) for p in raw]
    explored = Comparison("x", "a", 3, -1.0, p=1e-9, error=1.0, freedom=9, is_fixed=False)
    *found, other = corrected([*given, explored])
    assert [c.p_holm for c in found] == pytest.approx([0.06, 0.04, None, 0.06, 0.04])
    assert [c.verdict for c in found] == ["not shown", "better", "one seed", "not shown", "better"]
    assert found[0].detectable == pytest.approx(detectable(1.0, 9, level=0.05 / 4))
    assert (other.p_holm, other.detectable, other.verdict) == (None, None, "exploratory")


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
    study = asking(gain=gain)
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
    assert (found.run, found.seeds, found.difference) == (
        "gain",
        2,
        pytest.approx(sum(differences) / 2),
    )
    said = in_words(study, Findings(rows, [found]))
    assert f"| gain | 2 | {found.difference:+.4f} |" in said
    # nor one side, nor its column
    for others in ([row("other", {1: 4.0}, ("a", "b"), source="text x")], []):
        assert {
            (c.seeds, c.difference, c.verdict) for c in compared(study, [rows[0], *others])
        } == {(0, None, "no figures")}


def test_a_reading_beside_two_others_is_compared_in_the_model_of_all_arms() -> None:
    """Twice one arm less two others, whichever side is first: as its weights in one model of losses, whose
    spread is that of one loss, without what all arms of a seed have in common."""
    dice = random.Random(4)
    losses = {name: [dice.gauss(0, 1) + 9 * seed for seed in range(3)] for name in "abcdefg"}
    rows = [row(name, dict(enumerate(values))) for name, values in losses.items()]
    twice, others = (("a", "a"), ("a", "a")), (("b", "a"), ("c", "a"))
    study = asking(more=Contrast(twice, others), less=Contrast(others, twice))
    expected = estimate(cells(losses), {"a": 2, "b": -1, "c": -1})
    assert expected is not None
    for found, sign in zip(compared(study, rows), (1, -1), strict=True):
        assert found.difference == pytest.approx(sign * expected.difference)
        assert (found.error, found.freedom) == (pytest.approx(expected.error), 12)


@pytest.mark.parametrize(
    ("metric", "unit", "difference"),
    [
        ("perplexity", "nats per token", -1.0),
        ("word_perplexity", "nats per word", -2.0),
        ("bits_per_byte", "", -0.5),
    ],
)
def test_differences_are_those_of_the_metric(metric: str, unit: str, difference: float) -> None:
    """Nats per token of two vocabularies say nothing."""
    study, rows = replace(STUDY, metric=metric), [row("base", {1: 5.0}), row("other", {1: 4.0})]
    for one, value in zip(rows, (math.exp(9), math.exp(7)) if unit else (2.0, 1.5), strict=True):
        one.runs[0].values.clear()
        one.runs[0].values.update(a=value)
    (found,) = compared(study, rows)
    assert found.difference == pytest.approx(difference)
    said = in_words(study, Findings(rows, [found]))
    assert f"| a, against base | seeds | {unit or 'bits per byte'} |" in said
    contrast = Contrast((("other", "a"),), (("base", "a"),))
    asked = replace(study, contrasts={"gain": contrast})
    assert compared(asked, rows)[0].difference == found.difference


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
    # curves of other tokens
    assert len(draw(STUDY, [rows[0], replace(rows[1], runs=of_subwords)]).axes) == 1


def test_signs_of_markdown_are_escaped() -> None:
    assert as_markdown(table_of(["a|b", "x_1"], [])).splitlines()[0] == r"| a\|b | x_1 |"
