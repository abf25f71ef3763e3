"""Read a text once, and keep what a trained Transformer-XL remembers of it:

txl read FILE --work_dir RUN --to book.memory

txl generate and txl score --memory_file book.memory go on from there, and so does txl read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from txl.config import LENGTH, SIZE, TextKind, build, option, require
from txl.programs.launch import ends_at_once
from txl.runtime.log import print_line
from txl.runtime.outputs import inputs_of, require_outputs
from txl.settings.flags import named, read_flags
from txl.usage import MemoryUse, ReadsOn

MOST_USED = ("text", "work_dir", "to", "memory_file", "mem_len", "tokenise")


@dataclass(frozen=True, kw_only=True)
class ReadConfig(ReadsOn):
    """Which text is read, and how."""

    dataset: TextKind | None = option(
        None,
        "kind of the text that a checkpoint of another program was trained on (not given: wt103)",
    )
    text: str = option("-", "the file that is read, from its first token on (-: standard input)")
    to: str | None = option(None, "the file in which the memory is kept, such as book.memory")
    tokenise: bool | None = option(
        None,
        "the file is running text; tokenise it as in WikiText, . like this . (not given: as"
        " prompts are)",
    )
    tgt_len: int | None = option(None, "tokens read per segment (default: as in training)", **SIZE)
    mem_len: int | None = option(None, "tokens of memory (default: as in training)", **LENGTH)


def main(argv: Sequence[str]) -> None:
    asked = read_flags(
        named(argv, "text"), ReadConfig, MemoryUse, description=__doc__ or "", first=MOST_USED
    )
    require("text" in asked, "name the file of the text: txl read FILE (-: standard input)")
    config: ReadConfig = build(ReadConfig, asked)
    require(config.to is not None, "--to: name the file for the memory, such as --to book.memory")
    with ends_at_once():  # PyTorch, which --help does without
        from txl.data_utils.free_text import read_text
        from txl.language.kept_memory import MEMORY
        from txl.runs.models import memory_in, open_one_model, require_words

    require_outputs({"--to": (config.to, MEMORY)}, inputs_of(asked, "to"))
    place = Path(config.to or "")
    lm = open_one_model(config, asked)
    require_words(lm, config.tokenise)
    lm = replace(lm, context=lm.context.as_asked(config))
    before = memory_in(lm, config.memory_file)
    text = read_text(config.text, lm.tokenizer)
    with lm.used_as(config):
        memory = lm.read(text, before, tokenise=config.tokenise, name=config.text)
    memory.save(place)
    size = place.stat().st_size / 2**20
    print_line(
        f"| {config.text}: {memory.n_token:,} tokens read in all, kept in {place}, {size:.1f} MiB"
    )
