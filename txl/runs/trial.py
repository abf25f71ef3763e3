"""A trial: a small model is trained on a text for minutes, and what memory is worth to it is judged."""

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple

from txl.config import Context, ModelConfig, as_words, build, require
from txl.data_utils.corpus import LONG_WORD, Corpus, DataConfig
from txl.data_utils.remote import names_in
from txl.data_utils.texts import Survey, survey
from txl.evaluation.config import EvalConfig, ReportConfig
from txl.evaluation.gain import (
    Interval,
    Verdict,
    change_in_words,
    judge,
    saved_and_blocks,
    too_short,
)
from txl.evaluation.report import HEAD
from txl.evaluation.rows import Row
from txl.language.model import LanguageModel
from txl.registry import MEMORIES
from txl.report.page import PAGE, write_page
from txl.report.record import FIGURES, HTML, JSON, write_report
from txl.runs.reporting import measure_report
from txl.runs.resolve import with_batch_size
from txl.runs.scoring import Split, Way, rows_of, streams_by_default
from txl.runs.training import train
from txl.runtime.clock import Clock
from txl.runtime.distributed import Ranks, device_of
from txl.runtime.log import perplexity, print_line
from txl.runtime.outputs import json_kind, require_free, write_json
from txl.settings.flags import over_preset
from txl.settings.layers import Asked
from txl.training.config import TrainConfig
from txl.training.loop import Outcome

Borders = Literal["cut", "aside"]


class TextSize(NamedTuple):
    """What is trained on a text of a certain size.

    Attributes:
        most_characters: of the text.
        preset: the model, its training and its lengths; `on_gpu` where there is one.
        vocab_size: subwords, where the text has spaces.
        dropout: over that of the preset: a small text is read many times.
    """

    most_characters: float
    preset: str
    on_gpu: str
    vocab_size: int
    dropout: float


TEXT_SIZES = (
    TextSize(300_000, "tiny", "tiny", 512, 0.2),
    TextSize(900_000, "tiny", "tiny", 1024, 0.2),
    TextSize(2_000_000, "tiny", "tiny", 2048, 0.2),
    TextSize(4_000_000, "tiny", "small", 2048, 0.1),
    TextSize(inf, "tiny", "small", 4096, 0.1),
)
DRAW = 5
"""Updates between two draws of the length of the memory. A model that has always had one reads
badly without, on shuffled lines too: what it then gains by seeing further would be no gain of the
text.
"""
EPOCHS = 30
"""The rate has fallen when the text was read so often, if the minutes last longer."""
_LEAST_UPDATES = 200
MOST_TOKENS = 20_000
"""Of a split that is read."""
FEWEST_TOKENS = 6_000
"""Of the test split, however slow the machine: of fewer nothing can be told."""
_MOST_OF_TIME = 1 / 3
"""Of the minutes, for the readings of the test split; it is read in part where they take longer."""
_HELD_OUT_BYTES = 40_000
_LARGEST_SHARE = 0.15
"""What is held out for each of valid and test: as many bytes, of a small text no more than this
share.
"""
_READINGS = 17
_NEEDED = 8
_PAGE = 5
"""Of the test split when the training has ended, in evaluations of as many tokens: five lengths,
three of them four times, some of which are longer than in training; what the verdict needs, two
lengths four times; and the page, which reads attention.
"""
_LONGER = 2
"""How many times as long a reading may take as one with a shorter memory."""
CONFIGS = (DataConfig, TrainConfig, ModelConfig, Context)
RESULT = "try.json"
"""In the run folder: the verdict with its figures."""
_KIND = json_kind("txl try", ("minutes", "verdict", "against", "weights", "rows"))


class Trial(NamedTuple):
    """A model that was trained, and how the test split was read with it.

    Attributes:
        rows: each with the loss of each token.
        starts: where documents begin in the split; None: nowhere.
    """

    lm: LanguageModel
    corpus: Corpus
    split: Split
    rows: list[Row]

    @property
    def starts(self) -> Any:
        return self.split.starts_if_any()


READING = ("dataset", "documents", "text_field", "tokenizer")
"""Flags that say how a text is read."""
_OF_ONE_TRIAL = ("data", "minutes", "work_dir", "overwrite", "resume")
"""What the command for another trial of the same model names otherwise, or not."""


def try_memory(asked: Asked, against: Sequence[str] = ()) -> int:
    """Train, evaluate, sample and judge; returns the exit status of the training if that is not 0.

    Args:
        asked: settings of a training, with `data` and `minutes`, over what is chosen for the text.
        against: memories of second models.
    Raises:
        UsageError: if nothing could be judged, or something else stands in the way.
    """
    clock = Clock()
    require_memory(asked)
    plan = plan_of(asked)
    require_outputs(plan)
    status, trial = trained_and_read(plan, clock, asked)
    if trial is None:
        return status
    verdict = verdict_of(trial)
    say(trial, verdict, plan.run, asked)
    record: dict[str, Any] = {
        "minutes": asked["minutes"],
        "verdict": verdict.as_dict(),
        "against": {},
    }
    write_result(plan.run, trial, record)
    print_line(f"| page: {draw_page(plan.run, trial)}")
    for memory in against:
        status, other = trained_and_read(plan.against(memory, len(trial.split.ids)), Clock(), asked)
        if other is None:
            return status
        record["against"][memory] = compared(trial, other, memory)
        write_result(plan.run, trial, record)
    answers = []
    for found in record["against"].values():
        answers.append(found["sentence"])
    print_line("; ".join([f"| {verdict.sentence()}", *(answers or [advice(asked)])]))
    return 0


# what is trained


def require_memory(typed: Asked) -> None:
    """Raise `UsageError` if the model has no memory whose length can be chosen: a verdict compares
    lengths.
    """
    memory = typed.get("memory", ModelConfig.memory)
    allowed = MEMORIES[memory].traits.works_with.get("mem_len")
    advice = "leave it out, or train with train.py; --against compares with others"
    require(allowed != (0,), f"--memory {memory}: has no length that a verdict compares; {advice}")
    require(typed.get("mem_len") != 0, f"--mem_len 0: no memory to judge; {advice}")
    require(
        not typed.get("same_length"),
        "--same_length: shows each token as many others as the memory is long, and a verdict"
        " compares with none; leave it out",
    )


class Plan(NamedTuple):
    """What is done with a text.

    Attributes:
        asked: the settings of the training.
        n_valid, n_test: tokens that an evaluation of the training reads, and of a reading of the
        test split.
        n_least: tokens of the test split that are read however long it takes.
        is_other: the model is one that another is compared with, which needs the fewest readings.
    """

    asked: Asked
    n_valid: int
    n_test: int
    n_least: int = FEWEST_TOKENS
    is_other: bool = False

    @property
    def run(self) -> Path:
        """The run folder."""
        return Path(self.asked["work_dir"])

    @property
    def seconds(self) -> float:
        """Of the minutes."""
        return 60 * self.asked["minutes"]

    def n_to_read(self, evaluation_s: float) -> int:
        """Tokens of the test split that can be read in the time for it, given the seconds of an
        evaluation of the training.
        """
        in_time = int(_MOST_OF_TIME * self.seconds * self.n_valid / (_READINGS * evaluation_s))
        return min(self.n_test, max(self.n_least, in_time))

    def after_s(self, evaluation_s: float) -> float:
        """Seconds to leave for the readings of the test split and the page, given those of an
        evaluation of the training: for all readings if they have the time, else for those that the
        verdict needs.
        """
        one_s = evaluation_s * self.n_to_read(evaluation_s) / self.n_valid
        read_s = max(_NEEDED * one_s, min(_READINGS * one_s, _MOST_OF_TIME * self.seconds))
        return read_s + _PAGE * one_s

    def against(self, memory: str, n_read: int) -> "Plan":
        """The same with another memory, in a folder beside; the same tokens are read of the test
        split.
        """
        folder = f"{self.run}-against-{memory}"
        if not self.asked.get("overwrite"):
            folder = free_folder(folder)
        asked = {**self.asked, "memory": memory, "work_dir": folder}
        if memory == "none":
            asked |= {"mem_len": 0, "draw_mem_len": 0}
        return self._replace(asked=asked, n_test=n_read, n_least=n_read, is_other=True)


def plan_of(typed: Asked) -> Plan:
    """What is chosen by the size and kind of a text, over which what is typed wins.

    Reads the text.
    """
    of_text = ("data", "documents", "text_field", "cache_dir")
    found = survey(
        DataConfig(**{name: typed[name] for name in of_text if name in typed}, dataset="bpe")
    )
    size = next(size for size in TEXT_SIZES if found.n_char <= size.most_characters)
    preset = size.preset
    device = device_of(typed.get("device", "auto"))
    if device.type == "cuda":
        preset = size.on_gpu
    typed = with_batch_size(typed, Ranks(0, 1, device))
    everything = {**chosen_for(found, size, typed), **typed}
    print_line(
        f"| {in_words(found)}; read as {everything['dataset']}, trained with --preset {preset}"
    )
    asked = over_preset(everything, preset, "train", *CONFIGS)
    corpus = Corpus(build(DataConfig, everything), needed=("train", "valid"))
    n_valid = min(MOST_TOKENS, len(corpus.split("valid")))
    n_test = min(MOST_TOKENS, len(corpus.split(split_to_read(corpus))))
    tgt_len = asked["tgt_len"]
    if "max_step" not in typed:
        n_to_read = EPOCHS * len(corpus.split("train"))
        asked["max_step"] = max(_LEAST_UPDATES, n_to_read // (asked["batch_size"] * tgt_len))
    if "max_eval_steps" not in typed:
        asked["max_eval_steps"] = -(-n_valid // (EvalConfig.batch_size * tgt_len))
    return Plan(asked, n_valid, n_test)


def chosen_for(found: Survey, size: TextSize, typed: Asked) -> dict[str, Any]:
    """The settings that depend on the text."""
    chosen: dict[str, Any] = {"dataset": "characters", "dropout": size.dropout}
    if found.has_spaces:
        chosen["dataset"] = "bpe"
    if typed.get("dataset", chosen["dataset"]) == "bpe" and "tokenizer" not in typed:
        chosen["vocab_size"] = size.vocab_size
    if found.is_held_out:
        chosen["held_out"] = round(min(_LARGEST_SHARE, _HELD_OUT_BYTES / max(1, found.n_byte)), 6)
    if typed.get("mem_len") != 0 and typed.get("memory") != "none":
        chosen["draw_mem_len"] = DRAW
    chosen["work_dir"] = f"runs/try-{name_of(typed['data'])}"
    if "resume" not in typed:
        chosen["work_dir"] = free_folder(chosen["work_dir"])
    return chosen


def free_folder(name: str) -> str:
    """This folder, or with a number the first one that is not there: a trial may have been trained
    on for hours since.
    """
    folder = name
    for number in itertools.count(2):
        if not Path(folder).exists():
            break
        folder = f"{name}-{number}"
    return folder


def split_to_read(corpus: Corpus) -> str:
    """The split that is read: test, if it is there."""
    return corpus.held_out()[-1]


def in_words(found: Survey) -> str:
    """A text in a few words."""
    files = "1 file"
    if found.n_file > 1:
        files = f"{found.n_file:,} files"
    kind = "words between spaces"
    if not found.has_spaces:
        kind = "hardly any spaces"
    return f"about {found.n_char:,} characters in {files}, {kind}"


def name_of(data: tuple[str, ...] | str) -> str:
    """A name for the run folder of a text."""
    first = Path(names_in(data)[0]).resolve()
    stem = first.name.removesuffix(".txt")
    if stem in ("input", "train", "text", "data"):
        stem = f"{first.parent.name}-{stem}"
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem)[:60].strip("-") or "text"


def require_outputs(plan: Plan) -> None:
    """Raise `UsageError` if something else stands where a trial writes."""
    for name, kind in ((RESULT, _KIND), (JSON, FIGURES), (HTML, PAGE)):
        if (plan.run / name).exists():
            require_free(plan.run / name, kind)


# training, reading


def trained_and_read(plan: Plan, clock: Clock, typed: Asked) -> tuple[int, Trial | None]:
    """Train, and read the test split with the best checkpoint, all within the minutes; the exit
    status, and no trial if the training was stopped.
    """
    evaluations_s: list[float] = []
    ends: list[Outcome] = []

    def after_s(evaluation_s: float) -> float:
        evaluations_s.append(evaluation_s)
        return plan.after_s(evaluation_s)

    status = train(plan.asked, clock, after_s, ends.append)
    if status or any(end.reason for end in ends):
        return status, None
    lm = LanguageModel.open(plan.run, device=typed.get("device", "auto"))
    corpus = lm.corpus()
    n_token = plan.n_test
    if evaluations_s:
        n_token = plan.n_to_read(evaluations_s[-1])
    split = Split.of(corpus, split_to_read(corpus)).beginning(n_token)
    ranks = Ranks(0, 1, lm.model.device)
    begin_s = clock.seconds()
    most_s = _MOST_OF_TIME * plan.seconds
    needed, more = ways_to_read(lm, ranks)
    if plan.is_other:
        more = []
    ways = in_time(needed, more, clock, begin_s + most_s)
    with lm.computing():
        print_line(HEAD)
        rows = rows_of(lm.model, split, ways, ranks, keeps_losses=True)
    read_s = clock.seconds() - begin_s
    if read_s > 1.1 * most_s:
        print_line(
            f"| reading took {read_s:.0f} s of {plan.seconds:.0f}, which were not there to train:"
            " give more --minutes"
        )
    rows.sort(key=lambda row: (row.borders == "aside", row.context.mem_len))
    return 0, Trial(lm, corpus, split, rows)


def ways_to_read(lm: LanguageModel, ranks: Ranks) -> tuple[list[Way], list[list[Way]]]:
    """How the test split is read: what the verdict needs, and what is read if there is time, the
    first before the second: a longer memory, and shorter ones as the text is cut.
    """
    reset = lm.reading["reset"]
    n_stream = streams_by_default(lm.model_config, reset, ranks)
    trained = lm.context.mem_len

    def ways(borders: Borders, *lengths: int) -> list[Way]:
        config = EvalConfig(borders=borders, batch_size=n_stream, reset=reset)
        return [(config, replace(lm.context, mem_len=length)) for length in lengths]

    if not trained:
        return [*ways("cut", 0), *ways("aside", 0)], []
    needed = [*ways("cut", 0, trained), *ways("aside", 0, trained)]
    longer = [*ways("cut", 2 * trained), *ways("aside", 2 * trained)]
    between = sorted({trained // 4, trained // 2} - {0, trained})
    return needed, [longer, ways("cut", *between)]


def in_time(
    needed: Sequence[Way], more: Sequence[Sequence[Way]], clock: Clock, until_s: float
) -> Iterator[Way]:
    """Ways to read a text, each after the one before it was read: those that are needed, and more
    as long as there is time, by what those that are needed take.

    Args:
        until_s: of the clock.
    """
    longest_s = {"cut": 0.0, "aside": 0.0}
    for way in needed:
        begin_s = clock.seconds()
        yield way
        borders = way[0].borders
        longest_s[borders] = max(longest_s[borders], clock.seconds() - begin_s)
    for ways in more:
        takes_s = _LONGER * sum(longest_s[config.borders] for config, _ in ways)
        if clock.seconds() + takes_s <= until_s:
            yield from ways


# what is said


def verdict_of(trial: Trial) -> Verdict:
    """What the memory is worth to the model."""
    return judge(
        trial.rows,
        trial.split.sizes,
        starts=trial.starts,
        trained=trial.lm.context,
        reset=trial.lm.reading["reset"],
        train_ids=trial.corpus.split("train"),
    )


def say(trial: Trial, verdict: Verdict, run: Path, typed: Asked) -> None:
    """Print a sample, the figures and how to train longer."""
    print_line("")
    print_line(trial.lm.generate("", length=150, seed=1, top_p=0.9).strip())
    print_line("")
    row = row_of(trial, "cut", trial.lm.context.mem_len)
    bits = row.score.bits_per_character
    if bits is None:
        per_character = ""
    else:
        per_character = f", {bits:.3f} bits a character"
    per_word = ""
    has_words = row.score.word_perplexity is not None
    if has_words and row.score.characters <= LONG_WORD * row.score.words:
        per_word = f", {row.score.word_perplexity:.2f} a word and line end"
    print_line(
        f"| {row.split}: {row.score.tokens:,} tokens, perplexity {row.score.perplexity:.2f} a token"
        f"{per_word}{per_character}"
    )
    if verdict.beyond is not None:
        print_line(f"| beyond the memory of the training: {verdict.beyond.claim()}")
    text = text_as_typed(typed)
    minutes = 6 * typed["minutes"]
    longer = f"txl train --work_dir {shlex.quote(str(run))} --resume --minutes {minutes:g}"
    print_line(
        f"| to train it longer: {longer}; a larger one: txl try {text} --preset small --minutes 60"
    )


def advice(typed: Asked) -> str:
    """What one model does not say, and the command that answers it."""
    minutes = typed["minutes"]
    after = f"this is of one model after {minutes:g} minutes"
    if minutes == 1:
        after = "this is of one model after 1 minute"
    same = {name: value for name, value in typed.items() if name not in _OF_ONE_TRIAL}
    words = shlex.join([*names_in(typed["data"]), *as_words(same)])
    command = f"txl try {words} --minutes {minutes:g} --against none"
    return f"{after}; a second one without memory says what it is worth: {command}"


def text_as_typed(typed: Asked) -> str:
    """The words of a command line that name the text, and the flags that say how it is read."""
    reading = {name: typed[name] for name in READING if name in typed}
    return shlex.join([*names_in(typed["data"]), *as_words(reading)])


def row_of(trial: Trial, borders: str, mem_len: int) -> Row:
    """The reading of a trial with these borders and this memory."""
    return next(
        row for row in trial.rows if (row.borders, row.context.mem_len) == (borders, mem_len)
    )


def compared(trial: Trial, other: Trial, memory: str) -> dict[str, Any]:
    """Say how much lower the perplexity is than that of a model with another memory, or that the
    text is too short to tell, and return it for JSON.
    """
    shares: dict[str, Interval] = {}
    lengths = (trial.lm.context.mem_len, other.lm.context.mem_len)
    how: dict[str, Any] = {"starts": trial.starts, "reset": trial.lm.reading["reset"]}
    short = ""
    for borders in ("cut", "aside"):
        one = row_of(trial, borders, lengths[0])
        two = row_of(other, borders, lengths[1])
        saved, blocks = saved_and_blocks(two, one, max(lengths), **how)
        if blocks.are_enough:
            shares[borders] = saved.as_share()
        else:
            short = too_short(blocks.what)
    if memory == "none":
        name = "no memory"
    else:
        name = f"--memory {memory}"
    theirs = perplexity(row_of(other, "cut", lengths[1]).score.nats_per_token)
    ours = perplexity(row_of(trial, "cut", lengths[0]).score.nats_per_token)
    if short:
        found_in_words = short
    else:
        in_all = change_in_words(shares["cut"], "token")
        aside = change_in_words(shares["aside"], "token")
        found_in_words = f"{in_all}; with borders aside {aside}"
    sentence = (
        f"against a model of {name}, trained for the same minutes (perplexity a token {theirs:.2f},"
        f" here {ours:.2f}): {found_in_words}"
    )
    found = {borders: [share.mean, share.low, share.high] for borders, share in shares.items()}
    return {"sentence": sentence, "perplexity": theirs, "share": found}


def draw_page(run: Path, trial: Trial) -> Path:
    """Write report.json and report.html into the run folder, from the rows that were read.

    Those of the lengths that were read both ways.
    """
    lengths = {row.context.mem_len for row in trial.rows if row.borders == "aside"}
    rows = [row for row in trial.rows if row.context.mem_len in lengths]
    report = measure_report(trial.lm, build(ReportConfig, {}), rows=rows)
    write_report(run / JSON, report)
    write_page(run / HTML, [report])
    return run / HTML


def write_result(run: Path, trial: Trial, record: dict[str, Any]) -> None:
    """Write what was found into the run folder."""
    rows = [row.as_dict() for row in trial.rows]
    found = {**record, "weights": trial.lm.fingerprint(), "rows": rows}
    write_json(run / RESULT, found, _KIND)
