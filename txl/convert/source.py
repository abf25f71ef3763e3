"""What a source of checkpoints is: whose they are, how one is recognised, how it is read."""

from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from txl.config import Context
from txl.convert.pickles import read_pickle
from txl.model.transformer import TransformerXL
from txl.runtime.records import read_json

PICKLES = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt")
"""Files in a folder that may hold a pickled checkpoint."""
DATA = "txl_data"
"""Where an export by txl says what text the model was trained on: in config.json, and in the
`model.pt` of `--to original` beside the arguments. The other programs do not look there.
"""


class Place:
    """A file or a folder that may be a checkpoint; its content is read once, and runs no code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def folder(self) -> Path:
        """The folder, or that of the file."""
        if self.path.is_file():
            return self.path.parent
        return self.path

    @property
    def pickle(self) -> Path | None:
        """The file, or the first of `PICKLES` in the folder; None: there is none."""
        if self.path.is_file():
            return self.path
        for name in PICKLES:
            if (self.path / name).is_file():
                return self.path / name
        return None

    @cached_property
    def content(self) -> Any:
        """What `pickle` holds, see `read_pickle`; None: there is none."""
        if self.pickle is None:
            return None
        return read_pickle(self.pickle)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The object in config.json; empty: there is none, or it is damaged."""
        try:
            settings = read_json(self.path / "config.json")
        except (OSError, ValueError):
            return {}
        if isinstance(settings, dict):
            return settings
        return {}


class Found(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        tensors: the names of its tensors.
        weights: the file that they are from.
        words: of a vocabulary inside it, in the order of the ids; empty: it holds none.
        data: what an export by txl says of the text of the training, unchecked; None: nothing.
        dataset: the data set that something beside it names, unchecked; None: nothing does.
        has_tokenizer: its folder has a tokenizer.json, with which any text is read as it stands;
            else it has words.
    """

    model: TransformerXL
    context: Context
    tensors: tuple[str, ...]
    weights: Path
    words: list[str]
    data: Any = None
    dataset: str | None = None
    has_tokenizer: bool = False


class Source:
    """A kind of checkpoint. To add one, see docs/importing.md."""

    name: ClassVar[str]
    """In the registry."""
    kind: ClassVar[str]
    """Whose they are, in words."""
    families: ClassVar[tuple[str, ...]] = ()
    """The `model_type`s of a config.json that are of this kind."""

    @classmethod
    def recognises(cls, place: Place) -> bool:
        """True if a checkpoint of this kind is there, whole or damaged."""
        return place.settings.get("model_type") in cls.families

    @classmethod
    def read(cls, place: Place) -> Found:
        """What it holds. Raises `UsageError` if it is damaged."""
        raise NotImplementedError
