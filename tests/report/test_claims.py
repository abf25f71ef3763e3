"""Titles say what the figures say, and nothing that is not shown."""

import dataclasses
import math

import pytest

from tests.report.made import LENGTHS, gain_of, report_of, shown_of
from txl.evaluation.gain import Interval
from txl.report import claims
from txl.report.record import Curve, Figures, Report, Said


def with_gain(in_all: float | None, further: float | None, **how: float) -> Report:
    return report_of(gains=[gain_of(128, in_all, further, **how)])


def test_the_headline_is_the_sentence_of_eval() -> None:
    for in_all, further in (
        (0.154, 0.025),
        (0.154, 0.001),
        (0.001, 0.001),
        (-0.05, -0.03),
        (None, None),
    ):
        report = with_gain(in_all, further)
        said = claims.headline(report)
        whole = f"test, segments of 32: {said.what.replace('M', 'm', 1)}: {said.in_all}"
        if said.further:
            whole += f"; {said.further}"
        assert whole == report.gains[0].sentence()


def test_the_headline_says_what_was_not_trained_for() -> None:
    assert "more than the 64 of the training" in claims.headline(report_of(trained_mem_len=64)).how
    assert "more than" not in claims.headline(report_of()).how


def test_with_one_length_there_is_nothing_to_compare() -> None:
    report = report_of(compared=[0], gains=[])
    assert claims.headline(report).in_all == ""
    assert "nothing to compare" in claims.headline(report).what
    assert claims.levels(report, claims.measure_of([report]), "cut").endswith("with no memory")


@pytest.mark.parametrize(
    ("further", "said"),
    [
        (0.05, " falls from "),
        (-0.05, " rises from "),
        (0.001, "no difference that is shown"),
        (None, "too short"),
    ],
)
def test_a_level_falls_or_rises_only_where_that_is_shown(further: float | None, said: str) -> None:
    report = with_gain(further, further)
    measure = claims.measure_of([report])
    for borders in ("cut", "aside"):
        assert said in claims.levels(report, measure, borders)
    near = measure.of(report.row("cut", 0))
    far = measure.of(report.row("cut", 128))
    assert f"{near:.1f} to {far:.1f}" in claims.levels(report, measure, "cut")


def test_numbers_that_differ_are_not_printed_alike() -> None:
    assert claims.numbers([59.7, 50.5]) == ["59.7", "50.5"]
    assert claims.numbers([10.708, 10.7, 10.6996]) == ["10.71", "10.70", "10.70"]
    assert claims.numbers([10.70701, 10.70702]) == ["10.7070", "10.7070"]
    assert claims.numbers([3.0, 3.0]) == ["3.00", "3.00"]


def test_levels_on_different_texts_are_not_compared() -> None:
    reports = [report_of(), report_of(text="c" * 64, name="other", notes=["split by name"])]
    measure = claims.measure_of(reports)
    assert claims.lowest(reports, measure, "cut") == "Perplexity a word of each run on its own text"
    assert claims.about_text(reports) == [
        "demo: 5.10% of the tokens are <unk>",
        "other: split by name",
    ]
    same = [report_of(), report_of(name="other")]
    assert claims.about_text(same) == report_of().notes
    assert "is that of demo" in claims.lowest(same, measure, "aside")


def test_each_reading_has_its_own_title() -> None:
    report = with_gain(0.15, 0.001)
    measure = claims.measure_of([report])
    assert "falls" in claims.levels(report, measure, "cut")
    assert "no difference" in claims.levels(report, measure, "aside")


def test_words_that_gain_are_named_only_where_it_is_shown() -> None:
    assert "33 to 160 tokens ago: +0.110 nats" in claims.which_words(report_of())
    for saved in (Interval(0.5, -0.1, 1.1), Interval(-0.5, -0.6, -0.4), Interval(2e-4, 1e-4, 3e-4)):
        none = [Said(first=0, last=0, share=1.0, saved=saved)]
        assert (
            claims.which_words(report_of(said=none))
            == "No kind of word is shown to gain by seeing further"
        )


def test_tokens_are_counted_that_have_a_colour() -> None:
    shown = shown_of([" a", " b", " c", " d"])
    nats_MN = [[1.0] * 4 for _ in LENGTHS]
    nats_MN[3] = [1 - math.log(1.5), 1 - math.log(1.49), 1 + math.log(1.51), 1.0]
    shown = dataclasses.replace(shown, nats_MN=nats_MN)
    assert claims.times(shown, [0, 128]) == (1, 1)


def test_attention_beyond_a_segment_counts_bins_in_part() -> None:
    """The bin of 16 to 63 lies on both sides of 32, two thirds of it beyond."""
    report = report_of()
    assert report.distances is not None
    reach = claims.reach_of(report.distances, 32)
    assert reach.of_layer == pytest.approx(0.2 + 0.2 * 32 / 48)
    assert reach.layer == 1
    assert reach.beyond == pytest.approx(0.5 * (0.3 + 0.3 * 32 / 48))


def test_a_memory_beyond_that_of_the_training_is_judged() -> None:
    report = report_of(compared=[0, 32], trained_mem_len=32, gains=[gain_of(32, 0.1, 0.1)])
    said = claims.beyond(report)
    change = 100 * (report.row("cut", 128).perplexity / report.row("cut", 32).perplexity - 1)
    assert change < 0
    assert (
        f"Memory 128, longer than that of the training, is {-change:.1f} % better than 32." in said
    )
    assert "Memory 256" in said


def test_the_curve_says_whether_it_still_falls() -> None:
    falling = Curve(train=[], valid=[[1.0, 4.2], [2.0, 4.1]])
    flat = Curve(train=[], valid=[[1.0, 4.12], [2.0, 4.1]])
    assert claims.how_trained(falling).endswith("still falling")
    assert (
        claims.how_trained(flat) == "Training ends at perplexity 60.3 of a token on the valid text"
    )


def test_unlike_tokens_are_compared_by_characters() -> None:
    same = [report_of(), report_of(name="other")]
    assert claims.measure_of(same).name == "perplexity a word"
    unlike = [report_of(), report_of(tokenizer="c" * 64)]
    measure = claims.measure_of(unlike)
    assert measure.name == "bits per character"
    row = unlike[0].rows[0]
    assert measure.of(row) == row.bits_per_character
    by_character = claims.Measure("", "character").changed(row, 0.1, "word")
    expected = (math.log(row.word_perplexity or 0) + math.log(0.9)) / 3
    assert by_character == pytest.approx(expected)


def test_of_many_tokens_a_word_perplexity_is_of_a_token() -> None:
    row = Figures(
        mem_len=0,
        borders="cut",
        nats_per_token=1.5,
        perplexity=math.exp(1.5),
        word_perplexity=math.exp(9.0),
        bits_per_character=2.1,
    )
    report = report_of(
        gains=[], compared=[0], rows=[row, dataclasses.replace(row, borders="aside")]
    )
    assert claims.unit_of(report) == "token"


def test_settings_that_differ_stand_first() -> None:
    first = report_of()
    origin = dataclasses.replace(
        first.origin, settings={"model n_layer": "2", "train lr": "0.5", "x": "y"}
    )
    rows = claims.settings([first, report_of(origin=origin)])
    assert rows[0] == ("train lr", ["0.001", "0.5"])
    assert ("x", ["-", "y"]) in rows[:2]
    assert rows[-1] == ("model n_layer", ["2", "2"])
    assert "2 settings differ" in claims.how_made([first, report_of(origin=origin)])
