"""What a model is converted to, as a dataclass whose fields are flags."""

from dataclasses import dataclass
from typing import Literal

from txl.config import Checked, TextKind, option


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(Checked):
    """What is converted, and what is known of it besides."""

    to: Literal["txl", "huggingface", "original"] = option(
        "txl",
        "what is written; txl: a run folder; huggingface: what transformers 4 and txl.hf load;"
        " original: what the 2019 code's classes load",
    )
    vocab: str | None = option(
        None, "file of its words (not given: the one inside or beside the weights)"
    )
    data: str | None = option(
        None,
        "folder of the text it was trained on, which eval.py reads by default (not given:"
        " data/wikitext-103)",
    )
    dataset: TextKind | None = option(None, "kind of that text (not given: wt103)")
    dtype: Literal["kept", "float32", "bfloat16", "float16"] = option(
        "kept", "number type of the weights in the files; txl uses those in 16 bits as float32"
    )
    licence: str | None = option(
        None, "licence of the model, for its card, as the hub names it: mit, cc-by-sa-4.0"
    )
    about: str | None = option(
        None, "file of Markdown for its card: the data and its licence, what the model is for"
    )
    evaluations: tuple[str, ...] = option(
        (), "files that eval.py --json wrote for this checkpoint, whose figures the card shows"
    )
    samples: str | None = option(None, "file of text that the model wrote, for its card")
    explain: bool = option(False, "print the model, and each tensor that was read")
