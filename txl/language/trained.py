"""What a trained model consists of."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from txl.config import Context, ModelConfig
from txl.data_utils.datasets import is_tokenised
from txl.data_utils.tokenizer import Tokenizer
from txl.model.transformer import TransformerXL


class Origin(NamedTuple):
    """Where a model was read from.

    Attributes:
        kind: whose it was.
        path: the checkpoint.
        run: the run folder, or a checkpoint of it, that was asked for; None: it is another program's.
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


@dataclass(frozen=True)
class TrainedModel:
    """A model, how far it looks back, its tokens, and what is known of it.

    Attributes:
        context: of the training.
        record: what is known besides, as in a checkpoint's config.json; `data` has the fields of `DataConfig` that
            are known of the text of the training.
        origin: None: it was not read.
        dtype: of the matrix products; of 16 bits: of the weights too, which take no gradient and are not written.
    """

    model: TransformerXL
    context: Context
    tokenizer: Tokenizer
    record: dict[str, Any] = field(default_factory=dict)
    origin: Origin | None = None
    dtype: torch.dtype = torch.float32

    @property
    def model_config(self) -> ModelConfig:
        """The shape of the model."""
        return self.model.config

    @property
    def is_tokenised(self) -> bool:
        """Running text is split as WikiText is; else at white space only."""
        return is_tokenised(self.record)

    @property
    def folder(self) -> Path:
        """The checkpoint that it was read from."""
        assert self.origin is not None, "made, not read"
        return self.origin.path

    @property
    def run(self) -> Path | None:
        """The run folder that was asked for, or a checkpoint of it; None: it is another program's."""
        return None if self.origin is None else self.origin.run

    def fingerprint(self) -> str:
        """Hex digest of the weights as they were read."""
        assert self.origin is not None, "made, not read"
        return self.origin.fingerprint()

    @property
    def reading(self) -> dict[str, Any]:
        """What of the training its text is read by: `reset`, as in `TrainConfig`, and `has_other_words`: the vocabulary
        is not that of the text, but of the model that the training began with."""
        train = self.record.get("train", {})
        as_trained = {"reset": train.get("reset", "never"), "has_other_words": bool(train.get("init_from"))}
        return self.record.get("reading", as_trained)

    @property
    def known_data(self) -> dict[str, Any]:
        """The fields of `DataConfig` that are known of the text of the training."""
        assumed = self.record.get("converted_from", {}).get("assumed", [])  # by version 0.2
        return {name: value for name, value in self.record.get("data", {}).items() if name not in assumed}
