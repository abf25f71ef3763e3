"""What is generated, as a dataclass whose fields are the flags of generate.py."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from txl.config import LENGTH, SEED, TextKind, option, require
from txl.generation.ending import Ending
from txl.generation.rule import Rule
from txl.runtime.records import parse_json
from txl.usage import MemoryUse, ReadsOn

LONGEST_SESSION = 2**16
"""Memory for tokens that may come; a text of known length needs no more than itself."""
LARGEST_PENALTY = 20
"""Either way, of beams: length^it stays a number."""


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(Rule, ReadsOn):
    """What to generate and how to sample."""

    dataset: TextKind | None = option(
        None,
        "kind of the text that a checkpoint of another program was trained on (not given: wt103)",
    )
    prompt: str | None = option(
        None, "text to continue (-: standard input; default: start a new line)", section="text"
    )
    prompt_file: str | None = option(None, "file of the text to continue")
    prompts: str | None = option(
        None, "file of texts to continue, one a line, each as it would be alone"
    )
    interactive: bool = option(
        False,
        "read prompts from standard input, line by line, and continue each; all earlier text stays"
        " in memory",
    )
    system: str | None = option(
        None,
        "what the model is told first in a chat (default: what its chat template says)",
        when=("interactive",),
    )
    no_chat: bool = option(
        False,
        "continue lines as they are, although the tokenizer has a chat template",
        when=("interactive",),
    )
    chat_template_args: str | None = option(
        None,
        "arguments of the chat template, an object of JSON: '{\"enable_thinking\": false}'",
        when=("interactive",),
    )
    length: int = option(200, "tokens to generate", minimum=1)
    finish_line: bool = option(
        False, "end with a whole paragraph: up to --length tokens more, or fewer"
    )
    lines: int = option(
        0, "stop after so many lines that are not blank; 1: at <eos> (0: off)", minimum=0
    )
    stop: tuple[str, ...] = option((), "stop at these strings, which are not printed")
    num_samples: int = option(1, "texts for each prompt", minimum=1)
    num_beams: int = option(
        1,
        "beam search: the most likely text found with so many candidates at a time (1: sample)",
        minimum=1,
    )
    length_penalty: float = option(
        1.0,
        "beam search compares log-probabilities divided by length^this, where texts end at"
        " different lengths",
        minimum=-LARGEST_PENALTY,
        maximum=LARGEST_PENALTY,
    )
    no_repeat_ngram_size: int = option(
        0,
        "so many tokens in a row occur only once, prompt included (Paulus et al. 2018); 0: as often"
        " as they come",
        minimum=0,
    )
    batch_size: int = option(16, "texts that are generated side by side", minimum=1)
    allow_unk: bool = option(False, "<unk> may be generated")
    no_unk: bool = option(False, "no effect: <unk> is generated with --allow_unk only")
    raw: bool = option(
        False, "print tokens with spaces between them instead of text in natural spelling"
    )
    seed: int = option(
        1111, "random seed; further prompts and samples have the following numbers", **SEED
    )
    mem_len: int | None = option(None, "tokens of memory (default: as in training)", **LENGTH)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = []
        for name in ("prompt", "prompt_file", "prompts"):
            if getattr(self, name) is not None:
                given.append(f"--{name}")
        require(
            len(given) < 2,
            f"{' and '.join(given)}: there is one source of prompts; leave out the others",
        )
        self.ending()
        self.template_arguments()
        self._check_beams()
        require(
            not (self.allow_unk and self.no_unk), "--allow_unk and --no_unk: leave one of them out"
        )
        if self.interactive:
            one_text = self.prompts is None and self.num_samples == 1
            require(
                one_text, "--interactive: is about one text; leave out --prompts and --num_samples"
            )
            fits = (self.mem_len or 0) <= LONGEST_SESSION
            require(
                fits,
                f"--interactive: keeps up to {LONGEST_SESSION} tokens; give a smaller --mem_len",
            )
            require(
                self.prompt != "-",
                "--interactive: reads its turns from standard input; leave out --prompt -",
            )

    def _check_beams(self) -> None:
        if self.num_beams == 1:
            require(
                self.length_penalty == 1,
                f"--length_penalty {self.length_penalty}: only with --num_beams above 1",
            )
            return
        names = []
        for f in fields(Rule):
            if getattr(self, f.name) != f.default:
                names.append(f.name)
        self.refuse_with_beams(
            names + ["num_samples"] * (self.num_samples > 1) + ["interactive"] * self.interactive
        )

    def refuse_with_beams(self, names: Iterable[str]) -> None:
        """Raise `UsageError` if these flags, which have no effect on beam search, are there with
        it.
        """
        if self.num_beams > 1:
            others = ", ".join(f"--{name}" for name in names)
        else:
            others = ""
        require(
            not others,
            f"--num_beams {self.num_beams}: finds one text and draws none; leave out {others}",
        )

    def template_arguments(self) -> dict[str, Any]:
        """Those of the chat template."""
        given: Any = {}
        if self.chat_template_args is not None:
            try:
                given = parse_json(self.chat_template_args.encode())
            except ValueError:
                given = None
        require(
            isinstance(given, dict),
            f"--chat_template_args {self.chat_template_args}: no object of JSON; give one as"
            " '{\"enable_thinking\": false}'",
        )
        return given

    def ending(self) -> Ending:
        """Where the texts end."""
        return Ending(**{f.name: getattr(self, f.name) for f in fields(Ending)})


GENERATE = (GenerateConfig, MemoryUse)
"""Whose fields are the flags of generate.py."""
