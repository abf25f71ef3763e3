"""Does a memory help on a text of your own? Trains a small model on it for minutes and says so:

    txl try TEXT [--minutes 5]
    ./run_wt103.sh try TEXT

TEXT is what --data takes: a file, a folder, a glob, an address. The run folder is one like any
other. Flags of train.py override what is chosen by the size of the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from txl.config import Checked, build, option, require
from txl.programs.launch import ends_at_once
from txl.programs.train import CONFIGS
from txl.registry import MEMORIES
from txl.settings.flags import named, read_flags

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
    words = ["--minutes", f"{MINUTES:g}", *named(argv, "data")]
    asked = read_flags(
        words,
        *(TryConfig, *CONFIGS),
        description=__doc__ or "",
        first=MOST_USED,
        presets="train",
    )
    require("data" in asked, "TEXT: nothing to train on; name a file or a folder: txl try TEXT")
    config: TryConfig = build(TryConfig, asked)
    for name in ("against", "config"):
        asked.pop(name, None)
    with ends_at_once():
        from txl.runs.trial import try_memory  # PyTorch, which --help does without

    return try_memory(asked, config.against)
