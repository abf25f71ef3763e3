"""Does a memory help on a text of your own? Trains a small model on it for minutes and says so:

txl try TEXT [--minutes 5]                  ./run_wt103.sh try TEXT

TEXT is what --data takes: a file, a folder, a glob, an address. The run folder is one like any
other. Flags of train.py override what is chosen by the size of the text.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl.config import Checked, as_words, build, option, require
from txl.data_utils.corpus import LONG_WORD
from txl.data_utils.transfer import names_in
from txl.evaluation.gain import Verdict
from txl.registry import MEMORIES
from txl.runs.trial import (
    CONFIGS,
    Trial,
    compared,
    draw_page,
    plan_of,
    require_memory,
    require_outputs,
    row_of,
    trained_and_read,
    verdict_of,
    write_result,
)
from txl.runtime.clock import Clock
from txl.runtime.log import print_line
from txl.settings.flags import named, read_flags
from txl.settings.layers import Asked

MINUTES = 5.0
MOST_USED = (
    "data",
    "minutes",
    "against",
    "work_dir",
    "overwrite",
    "dataset",
    "text_field",
    "seed",
    "preset",
)
READING = ("dataset", "documents", "text_field", "tokenizer")
"""Flags that say how a text is read."""
_OF_ONE_TRIAL = ("data", "minutes", "work_dir", "overwrite", "resume")
"""What the command for another trial of the same model names otherwise, or not."""


@dataclass(frozen=True, kw_only=True)
class TryConfig(Checked):
    """What the model is compared with."""

    against: tuple[str, ...] = option(
        (),
        "train a second model on the same text for the same minutes, without memory (none) or with"
        " another one, by its name in --memory, and compare: what memory is worth, where the"
        " first model alone says what it is worth to this one",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.against:
            choices = ", ".join(MEMORIES)
            require(
                name in list(MEMORIES), f"--against {name}: no such memory; there are {choices}"
            )


def main(argv: Sequence[str]) -> int:
    """Train, evaluate, sample and judge; returns the exit status of the
    training if that is not 0.
    """
    clock = Clock()
    configs = (TryConfig, *CONFIGS)
    words = ["--minutes", f"{MINUTES:g}", *named(argv, "data")]
    typed = read_flags(words, *configs, description=__doc__ or "", first=MOST_USED, presets="train")
    require("data" in typed, "TEXT: nothing to train on; name a file or a folder: txl try TEXT")
    config = build(TryConfig, typed)
    require_memory(typed)
    flags = {}
    for name, value in typed.items():
        if name not in ("against", "config"):
            flags[name] = value
    plan = plan_of(flags)
    require_outputs(plan)
    status, trial = trained_and_read(plan, clock, flags)
    if trial is None:
        return status
    verdict = verdict_of(trial)
    say(trial, verdict, plan.run, flags)
    record: dict[str, Any] = {
        "minutes": flags["minutes"],
        "verdict": verdict.as_dict(),
        "against": {},
    }
    write_result(plan.run, trial, record)
    print_line(f"| page: {draw_page(plan.run, trial)}")
    for memory in config.against:
        status, other = trained_and_read(plan.against(memory, len(trial.split.ids)), Clock(), flags)
        if other is None:
            return status
        record["against"][memory] = compared(trial, other, memory)
        write_result(plan.run, trial, record)
    answers = []
    for found in record["against"].values():
        answers.append(found["sentence"])
    print_line("; ".join([f"| {verdict.sentence()}", *(answers or [advice(flags)])]))
    return 0


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
