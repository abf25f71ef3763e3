"""What is generated, as a dataclass whose fields are the flags of generate.py."""

from dataclasses import dataclass

from txl.config import LENGTH, SEED, TINY, ModelUse, option, require


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(ModelUse):
    """What is written, and how freely.

    Raises:
        UsageError: on values outside their range, and on an empty prompt.
    """

    prompt: str | None = option(None, "text to go on from (-: standard input; not given: the beginning of a line)")
    length: int = option(200, "tokens to generate", minimum=1)
    finish_line: bool = option(False, "go on to the end of the paragraph, by at most --length tokens more")
    temperature: float = option(1.0, "below 1 makes likely words likelier; 0 always takes the likeliest", minimum=0)
    top_k: int = option(0, "draw from the k likeliest words only (0: off)", minimum=0)
    top_p: float = option(
        1.0, "draw from the likeliest words that together hold this probability", minimum=TINY, maximum=1
    )
    no_unk: bool = option(False, "never generate <unk>")
    seed: int = option(1111, "random seed", **SEED)
    mem_len: int | None = option(None, "tokens of memory (not given: as in training)", **LENGTH)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.temperature == 0 or self.temperature >= TINY,
            f"--temperature {self.temperature}: must be 0 or at least {TINY:g}",
        )
        require(
            self.prompt is None or bool(self.prompt.strip()),
            "--prompt is empty: give some text, or leave the flag out to begin a new line",
        )
