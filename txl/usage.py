"""How programs use a trained model: settings that they share."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from txl.config import (
    ATTN_IMPL_HELP,
    CLAMP_LEN_HELP,
    COMPRESSED_LEN_HELP,
    DEVICE_HELP,
    LENGTH,
    LOOKUP,
    LOOKUP_LEN_HELP,
    OWN,
    SAME_LENGTH_HELP,
    AttnImpl,
    Checked,
    Context,
    Dtype,
    NamesParts,
    option,
    require,
)
from txl.registry import MEMORIES, names_of_settings


@dataclass(frozen=True, kw_only=True)
class ModelUse(Checked):
    """How a trained model is loaded and run. Shared by the programs that use one."""

    vocabulary: str | None = option(
        None,
        "file of the words of another program's checkpoint (not given: the one inside or beside the"
        " weights)",
    )
    same_length: bool | None = option(None, SAME_LENGTH_HELP)
    clamp_len: int | None = option(None, CLAMP_LEN_HELP, minimum=-1, below=2**31)
    compressed_len: int | None = option(None, COMPRESSED_LEN_HELP, **LENGTH)
    lookup_len: int | None = option(None, LOOKUP_LEN_HELP, **LOOKUP)
    device: str = option("auto", DEVICE_HELP)
    attn_impl: AttnImpl = option("auto", ATTN_IMPL_HELP)
    dtype: Dtype = option(
        "float32",
        "dtype of the weights and of their products; sums stay in float32; bfloat16 takes half the"
        " memory, is less exact, and faster on a GPU or CPU that is made for it; auto: bfloat16"
        " there",
    )


@dataclass(frozen=True, kw_only=True, init=False)
class MemoryUse(NamesParts):
    """With which memory a trained model reads. Its settings are flags beside it."""

    parts = (MEMORIES,)
    memory: str | None = option(
        None,
        "read with this memory, see docs/memory.md, in place of that of the training; one with"
        " weights of its own must have been trained",
        section="memory",
    )
    own: dict[str, Any] = field(default_factory=dict, metadata=OWN)

    @staticmethod
    def asked(typed: Mapping[str, Any]) -> dict[str, Any]:
        """Of typed flags those of a memory: arguments of `LanguageModel.open`."""
        names = {"memory", *names_of_settings((MEMORIES,))}
        return {name: value for name, value in typed.items() if name in names}


@dataclass(frozen=True, kw_only=True)
class OneModel(ModelUse):
    """The use of one model, which is named."""

    work_dir: str = option(
        "runs/txl",
        "run directory, for its best checkpoint; or one checkpoint in it, a checkpoint of another"
        " program, or the name of a model on the Hugging Face hub, see docs/importing.md",
    )


@dataclass(frozen=True, kw_only=True)
class ReadsOn(OneModel):
    """The use of one model, which may go on with a text that it has read before."""

    memory_file: str | None = option(
        None,
        "go on with the text that txl read has kept in this file, which brings the lengths that it"
        " was read with",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = []
        for f in fields(Context):
            value = getattr(self, f.name, None)
            if value is False:
                given.append(f"--no_{f.name}")
            elif value not in (None, ()):
                given.append(f"--{f.name}")
        require(
            self.memory_file is None or not given,
            f"{', '.join(given)}: the memory of --memory_file brings its own; leave it out, or give"
            " it to txl read",
        )
