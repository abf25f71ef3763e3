"""What the programs that read with one model have in common: the model, and a text that it has begun."""

from typing import Any

from txl.config import require
from txl.inference.kept import Begun
from txl.language.kept_memory import KeptMemory, load_memory
from txl.language.model import LanguageModel
from txl.settings.flags import refuse_idle_flags
from txl.settings.layers import Asked
from txl.usage import MemoryUse, OneModel


def open_model(config: OneModel, asked: Asked, **how: Any) -> LanguageModel:
    """The model that settings name, with the memory that they ask for. Raises `UsageError` if it is
    none.

    Args:
        config: of a program, with the fields of `OneModel`.
        how: arguments of `LanguageModel.open`, which override those of `config`.
    """
    by_default = {
        "vocabulary": config.vocabulary,
        "dataset": asked.get("dataset"),
        "device": config.device,
        "dtype": config.dtype,
    }
    return LanguageModel.open(config.work_dir, **{**by_default, **how}, **MemoryUse.asked(asked))


def open_one_model(config: OneModel, asked: Asked) -> LanguageModel:
    """The same for a program that reads no text of a training. Raises `UsageError`, too, if a
    setting has no effect with it.
    """
    lm = open_model(config, asked)
    require(
        "dataset" not in asked or lm.run is None,
        f"--dataset {asked.get('dataset')}: {config.work_dir} is a run of txl and has its own; leave"
        " the flag out",
    )
    refuse_idle_flags(asked, config, lm.model_config)
    return lm


def require_words(lm: LanguageModel, tokenise: bool | None) -> None:
    """Raise `UsageError` if running text is to be split into words for a model that reads none."""
    require(
        not tokenise or lm.tokenizer.is_of_words,
        "--tokenise: the model's vocabulary is not of words, and reads running text as it is;"
        " leave the flag out",
    )


def memory_in(lm: LanguageModel, file: str | None) -> KeptMemory | None:
    """The memory in a file, if one is named. Raises `UsageError` if it is none of this model."""
    if file is None:
        return None
    memory = load_memory(file)
    lm.begun(memory)
    return memory


def begun_in(lm: LanguageModel, file: str | None) -> Begun | None:
    """What was read of the text whose memory is in a file, as `memory_in`."""
    memory = memory_in(lm, file)
    if memory is None:
        return None
    return memory.begun
