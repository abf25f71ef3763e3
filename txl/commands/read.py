"""Read a text once, and keep what a trained Transformer-XL remembers of it:

txl read FILE --work_dir RUN --to book.memory

txl generate and txl score --memory_file book.memory go on from there, and so does txl read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from txl.checkpoint import MemoryUse, ReadsOn
from txl.cli.flags import named, read_flags, refuse_idle_flags
from txl.config import LENGTH, SIZE, TextKind, build, option, require
from txl.data_utils.free_text import read_text
from txl.inference.kept import Begun
from txl.language.kept_memory import KeptMemory, load_memory, require_place
from txl.language.model import LanguageModel
from txl.runtime.log import print_line

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
    argv = named(argv, "text")
    typed = read_flags(argv, ReadConfig, MemoryUse, description=__doc__ or "", first=MOST_USED)
    require("text" in typed, "name the file of the text: txl read FILE (-: standard input)")
    config = build(ReadConfig, typed)
    require(config.to is not None, "--to: name the file for the memory, such as --to book.memory")
    place = Path(config.to or "")
    require_place(place)
    sources = {"vocabulary": config.vocabulary, "dataset": config.dataset}
    how = {"device": config.device, "dtype": config.dtype, **MemoryUse.asked(typed)}
    lm = LanguageModel.open(config.work_dir, **sources, **how)
    own = (
        f"--dataset {config.dataset}: {config.work_dir} is a run of txl and has its own; leave the"
        " flag out"
    )
    require(config.dataset is None or lm.run is None, own)
    refuse_idle_flags(typed, config, lm.model_config)
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


def memory_in(lm: LanguageModel, file: str | None) -> KeptMemory | None:
    """The memory in a file, if one is named. Raises `UsageError` if it is none of this model."""
    if file is None:
        return None
    memory = load_memory(file)
    lm.begun(memory)
    return memory


def begun_in(lm: LanguageModel, file: str | None) -> Begun | None:
    """What was read of the text whose memory is in a file, if one is named. Raises `UsageError` if it
    is none of this model."""
    return lm.begun(memory_in(lm, file))
