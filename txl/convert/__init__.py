"""Checkpoints of other programs, in and out. One file a source; here it is recognised whose a file
or a folder is.
"""

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txl.config import Context, UsageError, require
from txl.convert.huggingface import from_huggingface
from txl.convert.kimiyoung import from_kimiyoung, to_kimiyoung
from txl.convert.original import words_of_pickle
from txl.convert.source import Place, Source
from txl.files import content_of
from txl.model.transformer import TransformerXL
from txl.registry import SOURCES
from txl.runtime.records import read_json

__all__ = ["Converted", "convert", "from_huggingface", "from_kimiyoung", "to_kimiyoung"]


_LOG = logging.getLogger(__name__)
_VOCABULARIES = ("vocab.txt", "vocab.json", "vocab.bin", "vocab.pkl", "cache.pt", "tokenizer.json")


@dataclass(frozen=True)
class Converted:
    """A checkpoint of another program, as ours.

    Attributes:
        kind: whose it was.
        words: of its vocabulary, in the order of the ids; empty: none was found beside the weights.
        tensors: the names of its tensors.
        weights: the file that they are from.
        vocabulary: the file that the words are from; None: inside the weights, or nowhere.
        data: what an export by txl says of the text of the training, unchecked; None: nothing.
        dataset: the data set that the log beside a checkpoint of the 2019 code names, unchecked.
        has_tokenizer: see `Found`.
    """

    kind: str
    model: TransformerXL
    context: Context
    words: list[str]
    tensors: tuple[str, ...]
    weights: Path
    vocabulary: Path | None = None
    data: Any = None
    dataset: str | None = None
    has_tokenizer: bool = False


def convert(source: Path, vocabulary: Path | None = None) -> Converted:
    """Read a checkpoint of the 2019 code (`model.pt` or the folder it is in), of NVIDIA's
    (`checkpoint_*.pt`) or of Hugging Face's TransfoXL (its folder). The kind is recognised. No code
    of the file runs.

    Args:
        vocabulary: its words: vocab.txt (one a line), vocab.json, or a pickled one (cache.pt,
            vocab.bin, vocab.pkl); not given: the one inside or beside the weights.
    Raises:
        UsageError: if nothing is there, it is of no known kind or damaged, or weights and
            configuration do not agree.
    """
    place = Place(source)
    for kind in reversed([*SOURCES.values()]):  # those of files of your own first
        if kind.recognises(place):
            return _converted(kind, place, vocabulary)
    config = source / "config.json"
    if config.is_file():
        require(bool(place.settings), f"{config}: damaged; use another copy")
        families = [name for kind in SOURCES.values() for name in kind.families]
        raise UsageError(
            f"{config}: model_type {str(place.settings.get('model_type'))[:40]!r}: no such model is"
            f" read; there are {', '.join(families)}"
        )
    what = "neither a run's nor config.json, model.pt or checkpoint_*.pt"
    raise UsageError(f"{source}: holds no checkpoint, {what}; train first, or name another folder")


def vocabulary_in(data: Any, checkpoint: Path) -> str | None:
    """The cache.pt that the 2019 code has left in the folder of a text, if a checkpoint of it is
    asked for and no words are beside that.
    """
    place = Place(checkpoint)
    is_theirs = place.pickle is not None and place.pickle.name == "model.pt"
    if not is_theirs or _beside(place.folder) is not None or not isinstance(data, str):
        return None
    cache = Path(data) / "cache.pt"
    if cache.is_file():
        return str(cache)
    return None


def _beside(folder: Path) -> Path | None:
    """The file of words beside the weights."""
    for name in _VOCABULARIES:
        if (folder / name).is_file():
            return folder / name
    return None


def _converted(kind: type[Source], place: Place, vocabulary: Path | None) -> Converted:
    """A checkpoint of a kind, with the words of the vocabulary that is named, else of the one in it
    or beside it.
    """
    found = kind.read(place)
    beside = vocabulary
    if found.has_tokenizer:
        beside = None
    elif beside is None and not found.words:
        beside = _beside(place.folder)
    words = found.words
    if beside is not None:
        words = with_added(read_words(beside), place.folder, found.model.config.n_token)
    return Converted(
        kind.kind,
        found.model.eval(),
        found.context,
        words,
        found.tensors,
        found.weights,
        beside,
        found.data,
        found.dataset,
        found.has_tokenizer,
    )


def with_added(words: Sequence[str], folder: Path, n_token: int) -> list[str]:
    """The words with those that Hugging Face's `add_tokens` put after them, for which the model of
    `n_token` words has rows: in tokenizer_config.json, in tokenizer.json alone by transformers 5, in
    added_tokens.json by older versions. Raises `UsageError` if one of these is damaged.
    """
    by_id: dict[int, str] = {}
    for name, entries in (
        ("tokenizer.json", _in_tokenizer),
        ("tokenizer_config.json", _in_config),
        ("added_tokens.json", _in_list),
    ):
        path = folder / name
        if path.is_file():
            try:
                by_id |= entries(read_json(path))
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                raise UsageError(
                    f"{path}: names added tokens and is damaged; use another copy"
                ) from None
    added = [*itertools.takewhile(bool, (by_id.get(i, "") for i in itertools.count(len(words))))]
    n_row = max(0, n_token - len(words))
    if added[n_row:]:
        _LOG.warning("%s: added to the tokenizer, not to the model: %s", folder, added[n_row:])
    return [*words, *added[:n_row]]


def _in_tokenizer(content: Any) -> dict[int, str]:
    added = {}
    for token in content.get("added_tokens") or ():
        added[int(token["id"])] = str(token["content"])
    return added


def _in_config(content: Any) -> dict[int, str]:
    added = {}
    for i, token in content.get("added_tokens_decoder", {}).items():
        added[int(i)] = str(token["content"])
    return added


def _in_list(content: Any) -> dict[int, str]:
    return {int(i): str(word) for word, i in content.items()}


def read_words(path: Path) -> list[str]:
    """The words of a vocabulary file, in the order of the ids. Raises `UsageError` if it cannot be
    read or holds no vocabulary.
    """
    if path.suffix not in (".txt", ".json"):
        return words_of_pickle(path)
    wrong = UsageError(
        f"{path}: no vocabulary: give one word a line, or a JSON list or object of words and ids"
    )
    try:
        if path.suffix == ".txt":
            words = []
            for line in content_of(path).decode().splitlines():
                if line.strip():
                    words.append(line.split()[0])
            return words
        content = read_json(path)
    except (OSError, ValueError):
        raise wrong from None
    # a tokenizer.json of words
    if isinstance(content, dict) and isinstance(model := content.get("model"), dict):
        if model.get("type") == "WordLevel":
            content = model.get("vocab")
        else:
            content = None
    if isinstance(content, dict) and all(isinstance(i, int) for i in content.values()):
        by_id = {i: word for word, i in content.items()}
        content = [by_id.get(i) for i in range(len(content))]
    if not isinstance(content, list) or not all(isinstance(word, str) for word in content):
        raise wrong
    return [str(word) for word in content]
