"""How the vocabulary of each data set is made, and how it comes back from a checkpoint."""

from collections.abc import Callable
from typing import NamedTuple

from .documents import SPLITS
from .running import Characters, Integers
from .subwords import Subwords
from .symbols import Symbols, Text8Symbols
from .vocabulary import EOS, UNK, LowerVocab, SentenceVocab, Vocab


class Recipe(NamedTuple):
    """How the vocabulary of a data set is made."""

    counted: tuple[str, ...]  # the splits whose words make the vocabulary
    special: tuple[str, ...]
    vocab: type[Vocab] = Vocab


RECIPES = {
    "wt103": Recipe(counted=("train",), special=(EOS,)),
    "wt2": Recipe(counted=SPLITS, special=(EOS,)),
    "ptb": Recipe(counted=SPLITS, special=(EOS,), vocab=LowerVocab),
    "enwik8": Recipe(counted=SPLITS, special=(), vocab=Symbols),
    "text8": Recipe(counted=SPLITS, special=(), vocab=Text8Symbols),
    "lm1b": Recipe(counted=(), special=(), vocab=SentenceVocab),
    "text": Recipe(counted=("train",), special=(EOS, UNK)),
    "pydoc": Recipe(counted=("train",), special=(EOS, UNK)),
    "characters": Recipe(counted=("train",), special=(), vocab=Characters),
    "bpe": Recipe(counted=("train",), special=(), vocab=Subwords),
    "bytes": Recipe(counted=(), special=(), vocab=Symbols),
    "ids": Recipe(counted=("train", "valid"), special=(), vocab=Integers),
}


def vocabulary_of(dataset: str, attachment: Callable[[str], str]) -> Vocab:
    """The vocabulary that a checkpoint keeps in files, whose contents `attachment` gives by name. Raises `ValueError`
    if it is damaged."""
    if dataset == "bpe":
        return Subwords(attachment("tokenizer.json"))
    kind = RECIPES[dataset].vocab if dataset in RECIPES else Vocab  # what is wrong with the name is said elsewhere
    return kind.from_text(attachment("vocab.txt"))
