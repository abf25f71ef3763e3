"""What is generated, as a dataclass whose fields are the flags of generate.py."""

from dataclasses import dataclass

from txl.config import LENGTH, SEED, TINY, ModelUse, option, require


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(ModelUse):
    """What to generate and how to sample."""

    prompt: str | None = option(None, "text to continue (-: standard input; default: start a new line)")
    length: int = option(200, "tokens to generate", minimum=1)
    finish_line: bool = option(False, "end with a whole paragraph: up to --length tokens more, or fewer")
    temperature: float = option(1.0, "sampling temperature; 0: greedy", minimum=0)
    top_k: int = option(0, "sample from the k most likely words only (0: off)", minimum=0)
    top_p: float = option(
        1.0, "sample from the most likely words with this total probability (nucleus)", minimum=TINY, maximum=1
    )
    no_unk: bool = option(False, "never generate <unk>")
    seed: int = option(1111, "random seed", **SEED)
    mem_len: int | None = option(None, "tokens of memory (default: as in training)", **LENGTH)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.temperature == 0 or self.temperature >= TINY,
            f"--temperature {self.temperature}: must be 0 or at least {TINY:g}",
        )
        require(
            self.prompt is None or bool(self.prompt.strip()),
            "--prompt is empty: give some text, or leave the flag out to start a new line",
        )
