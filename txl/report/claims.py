"""Titles of the page: what the figures of a report say, in words."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from txl.evaluation.gain import MOST_TOKENS_PER_WORD
from txl.report.record import Curve, Distances, Figures, Report, Said, Shown
from txl.runtime.log import perplexity

TIMES = (1.5, 2.5, 5.0)
"""How much likelier a token must be to get a colour, and a stronger one."""
STILL_FALLING = 0.97
"""Of the perplexity of the validation before, below which the last one says that training longer
helps.
"""


LEAST_NATS = 0.0005
"""A token, below which what is saved is printed as nothing."""


class Headline(NamedTuple):
    """What memory is worth to a run.

    Attributes:
        what: which memories are compared.
        in_all, further: what is gained, as `txl eval --borders both` says it; empty: nothing can be
        said.
        how: how the intervals were made.
    """

    what: str
    in_all: str
    further: str
    how: str


def headline(report: Report) -> Headline:
    """The answer to "does memory help?", with both figures."""
    gain = report.gain()
    if gain is None:
        what = f"Read with {memory(report.compared[0])} only, so that there is nothing to compare"
        return Headline(what, "", "", "")
    how = f"Intervals: 95 %, of a paired bootstrap over {gain.blocks}, of this one model."
    if gain.longer > report.trained_mem_len:
        how += f" Memory {gain.longer} is more than the {report.trained_mem_len} of the training."
    what = f"Memory {gain.longer} in place of {gain.shorter or 'none'}"
    return Headline(what, gain.in_all_in_words(), gain.seeing_further_in_words(), how)


def memory(length: int) -> str:
    """A length of memory in words."""
    if length:
        return f"memory {length}"
    return "no memory"


def number(value: float) -> str:
    """A perplexity as titles and charts show it."""
    if value >= 10_000:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def numbers(values: Sequence[float]) -> list[str]:
    """Values with as many decimals as tell the lowest from the highest, up to 4."""
    found = [number(value) for value in values]
    for n_decimal in (2, 3, 4):
        lowest = found[values.index(min(values))]
        if min(values) == max(values) or lowest != found[values.index(max(values))]:
            break
        found = [f"{value:,.{n_decimal}f}" for value in values]
    return found


class Measure(NamedTuple):
    """What the charts of levels show.

    Attributes:
        name: with its unit.
        unit: word, token or character.
    """

    name: str
    unit: str

    def of(self, row: Figures) -> float:
        """The value of a row."""
        if self.unit == "character":
            return row.bits_per_character or 0.0
        if self.unit == "word":
            return row.word_perplexity or 0.0
        return row.perplexity

    def changed(self, row: Figures, share: float, unit: str) -> float:
        """The value of a row if its perplexity a unit were lower by this share."""
        if self.unit != "character":
            return self.of(row) * (1 - share)
        per_unit = row.perplexity
        if unit == "word":
            per_unit = row.word_perplexity or 0.0
        return self.of(row) * (1 + math.log1p(-share) / math.log(per_unit))


def unit_of(report: Report) -> str:
    """What the perplexity of a run is of: a word (or line end), or a token
    where words have many.
    """
    if report.gains:
        return report.gains[0].unit
    row = report.rows[0]
    if row.word_perplexity is None:
        return "token"
    if math.log(row.word_perplexity) <= MOST_TOKENS_PER_WORD * row.nats_per_token:
        return "word"
    return "token"


def measure_of(reports: Sequence[Report]) -> Measure:
    """What runs are compared by: perplexity where their tokens are the same, else bits per
    character.
    """
    rows = []
    for report in reports:
        for row in report.rows:
            rows.append(row)
    same = len({report.tokenizer for report in reports}) == 1
    if not same and all(row.bits_per_character is not None for row in rows):
        return Measure("bits per character", "character")
    if unit_of(reports[0]) == "word" and all(row.word_perplexity is not None for row in rows):
        return Measure("perplexity a word", "word")
    return Measure("perplexity a token", "token")


def levels(report: Report, measure: Measure, borders: str) -> str:
    """The title of a chart of levels, as cut or with borders aside."""
    name = measure.name.capitalize()
    if borders == "aside":
        name = f"Borders aside, {measure.name}"
    near = measure.of(report.row(borders, report.compared[0]))
    far = measure.of(report.row(borders, report.compared[-1]))
    gain = report.gain()
    if gain is None:
        return f"{name}: {number(near)} with {memory(report.compared[0])}"
    share = gain.in_all
    if borders == "aside":
        share = gain.by_seeing_further
    ends = " to ".join(numbers([near, far]))
    if share is None:
        return f"{name}: {ends}, of a text that is too short to tell"
    if not share.is_printed:
        return f"{name}: {ends} with memory {gain.longer}, no difference that is shown"
    direction = "falls"
    if share.mean < 0:
        direction = "rises"
    return f"{name} {direction} from {ends} with memory {gain.longer}"


def lowest(reports: Sequence[Report], measure: Measure, borders: str) -> str:
    """The title of a chart of the levels of several runs."""
    if have_other_texts(reports):
        aside = ", borders aside" * (borders == "aside")
        return f"{measure.name.capitalize()} of each run on its own text{aside}"
    levels = []
    for report in reports:
        for row in report.rows_of(borders):
            levels.append((measure.of(row), row.mem_len, report.name))
    best = min(levels)
    value, mem_len, name = best
    what = f"lowest {measure.name} is that of {name}: {number(value)} with {memory(mem_len)}"
    if borders == "aside":
        return f"Borders aside, the {what}"
    return f"The {what}"


def have_other_texts(reports: Sequence[Report]) -> bool:
    """Whether runs were read on different texts, so that their levels do not compare."""
    return len({report.text for report in reports}) > 1


def about_text(reports: Sequence[Report]) -> list[str]:
    """What is to be known of the texts, each once."""
    notes: dict[str, None] = {}
    for report in reports:
        for note in report.notes:
            if have_other_texts(reports):
                note = f"{report.name}: {note}"
            notes[note] = None
    return list(notes)


def beyond(report: Report) -> str:
    """What a memory beyond that of the training does, in a sentence; empty: none was read."""
    unit = unit_of(report)
    if unit == "word":
        measure = Measure("", "word")
    else:
        measure = Measure("", "token")
    here = measure.of(report.row("cut", report.compared[-1]))
    sentences = []
    for row in report.rows_of("cut"):
        if row.mem_len > max(report.trained_mem_len, report.compared[-1]):
            change = 100 * (measure.of(row) / here - 1)
            how = (
                f"is {abs(change):.1f} % {'worse' if change > 0 else 'better'} than"
                f" {report.compared[-1]}"
            )
            if abs(change) < 0.05:
                how = f"is as good as {report.compared[-1]}"
            sentences.append(f"Memory {row.mem_len}, longer than that of the training, {how}.")
    return " ".join(sentences)


def when_said(said: Said) -> str:
    """How long ago a word was said, in words."""
    if said.first == 0:
        return "never before"
    if said.last is None:
        return f"more than {said.first - 1} tokens ago"
    if said.first == 1:
        return f"up to {said.last} tokens ago"
    return f"{said.first} to {said.last} tokens ago"


def which_words(report: Report) -> str:
    """The title of the card of words."""
    shown = [one for one in report.said if one.saved is not None and one.saved.is_shown]
    shown = [one for one in shown if one.saved is not None and one.saved.mean >= LEAST_NATS]
    if not shown:
        return "No kind of word is shown to gain by seeing further"
    most = max(shown, key=lambda one: one.saved.mean if one.saved else 0.0)
    assert most.saved is not None
    return (
        f"It helps most with words that were said {when_said(most)}: {most.saved.mean:+.3f} nats a"
        " token"
    )


def times(shown: Shown, compared: Sequence[int]) -> tuple[int, int]:
    """How many shown tokens are likelier, and how many less likely, by the least of `TIMES`."""
    near_N, far_N = (np.array(shown.nats_MN[shown.mem_len_M.index(m)]) for m in compared)
    least = math.log(TIMES[0])
    return int((near_N - far_N >= least).sum()), int((far_N - near_N >= least).sum())


def where(report: Report) -> str:
    """The title of the text."""
    shown = report.shown
    assert shown is not None
    n_token = len(shown.pieces)
    if len(report.compared) < 2:
        return f"{n_token:,} tokens, and the loss of each"
    n_likelier, n_unlikelier = times(shown, report.compared)
    what = f"Of {n_token:,} tokens, memory makes {n_likelier:,} at least {TIMES[0]} times likelier"
    return f"{what}, {n_unlikelier:,} less likely"


class Reach(NamedTuple):
    """How far attention goes.

    Attributes:
        beyond: the share of it further back than a segment.
        layer: that which looks back furthest, from 1, and its share `of_layer`.
    """

    beyond: float
    layer: int
    of_layer: float


def reach_of(distances: Distances, tgt_len: int) -> Reach:
    """How much of the attention goes further back than a segment.

    A bin that lies across its length counts in part.
    """
    first_K = np.array(distances.first_K)
    after_K = np.array(distances.last_K) + 1
    n_far_K = np.maximum(0, after_K - np.maximum(first_K, tgt_len))
    share_LNK = np.array(distances.share_LNK)
    of_layer_L = (share_LNK * n_far_K / (after_K - first_K)).sum(-1).mean(-1)
    furthest = int(of_layer_L.argmax())
    return Reach(float(of_layer_L.mean()), furthest + 1, float(of_layer_L[furthest]))


def how_far(report: Report) -> str:
    """The title of the card of attention."""
    assert report.distances is not None
    reach = reach_of(report.distances, report.tgt_len)
    what = f"{100 * reach.beyond:.0f} % of the attention goes further back than a segment"
    if len(report.distances.share_LNK) == 1:
        return what
    return f"{what}; layer {reach.layer} looks furthest, with {100 * reach.of_layer:.0f} %"


def how_trained(curve: Curve) -> str:
    """The title of the curve."""
    if not curve.valid:
        return "Training: no validation is recorded"
    values = [perplexity(nats) for _, nats in curve.valid]
    what = f"Training ends at perplexity {number(values[-1])} of a token on the valid text"
    if len(values) > 1 and values[-1] < STILL_FALLING * values[-2]:
        what += ", still falling"
    return what


def how_made(reports: Sequence[Report]) -> str:
    """The title of the card of settings."""
    if len(reports) > 1:
        n_other = sum(len(set(values)) > 1 for _, values in settings(reports))
        return (
            f"How they were made: {n_other} setting{'s' * (n_other != 1)}"
            f" differ{'s' * (n_other == 1)}"
        )
    return f"How it was made: {reports[0].origin.parameters:,} parameters"


def settings(reports: Sequence[Report]) -> list[tuple[str, list[str]]]:
    """The settings of all runs, name and a value of each; those that differ stand first."""
    names: dict[str, None] = {}
    for report in reports:
        names |= dict.fromkeys(report.origin.settings)
    rows = []
    for name in names:
        rows.append((name, [report.origin.settings.get(name, "-") for report in reports]))
    return sorted(rows, key=lambda row: len(set(row[1])) == 1)
