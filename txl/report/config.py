"""Settings of a report: a dataclass whose fields are the flags of `txl report`."""

from dataclasses import dataclass
from typing import Literal

from txl.config import LENGTH, option, require
from txl.evaluation.config import Lengths

MOST_RUNS = 6
"""On one page: so many colours are told apart."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig(Lengths):
    """What is drawn, and what is read for it. Lengths default to those of the training."""

    runs: tuple[str, ...] = option(
        (), "runs, checkpoints, or files report.json, that are shown on one page"
    )
    out: str | None = option(
        None,
        "file of the page (default: report.html in the run folder; of several runs in the current"
        " one)",
    )
    measure: bool = option(
        False, "read the text again although the run has a report.json of this checkpoint"
    )
    split: Literal["auto", "valid", "test"] = option(
        "auto",
        "split that is read; auto: test, or valid where there is no test",
        section="What is measured",
    )
    mem_len: tuple[int, ...] = option(
        (),
        "lengths of memory (default: none, a sixteenth, a quarter, once and twice that of the"
        " training); the page compares that of the training with the shortest",
        **LENGTH,
    )
    tokens: int = option(4000, "tokens of the split that are shown", minimum=1, maximum=50_000)
    first: int | None = option(
        None,
        "number of the first of them (default: a part in which memory saves as much as on average)",
        minimum=1,
    )
    attended: int = option(
        1000,
        "tokens of them for which it is kept what they looked at (0: none)",
        minimum=0,
        maximum=5000,
    )
    distances: bool = option(
        True, "attention of each head by distance, in another pass over the text"
    )
    sample_length: int = option(120, "tokens of the sample (0: none)", minimum=0, maximum=5000)
    json: str | None = option(None, "file of the figures (default: report.json in the run folder)")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = " ".join(map(str, self.tgt_len))
        require(
            len(self.tgt_len) < 2,
            f"--tgt_len {given}: a report is of one segment length; give one value",
        )
        n_run = len(self.runs)
        require(
            n_run <= MOST_RUNS,
            f"--runs: {n_run} are too many for one page; give {MOST_RUNS} at most",
        )
