"""What is read of a trained model, and where it was read from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from txl.config import Context
from txl.data_utils.tokenizer import Tokenizer
from txl.model.transformer import TransformerXL


class Origin(NamedTuple):
    """Where a model was read from.

    Attributes:
        kind: whose it was.
        path: the checkpoint.
        run: the run folder, or a checkpoint of it, that was asked for; None: it is another
            program's.
        tensors: the names of the tensors that were read.
        dtype: of the weights in the file, if it is another program's.
        fingerprint: gives the hex digest of the weights.
    """

    kind: str
    path: Path
    run: Path | None
    tensors: tuple[str, ...]
    dtype: torch.dtype
    fingerprint: Callable[[], str]


class Contents(NamedTuple):
    """What a source holds, the first fields of `LanguageModel`, which says what they are."""

    model: TransformerXL
    context: Context
    tokenizer: Tokenizer
    record: dict[str, Any]
    origin: Origin
