"""The data sets: one row each. No other file asks which data set it is."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .any_files import AnyFiles, AnyText
from .byte_splits import Enwik8, Text8
from .config import DataConfig
from .foreign import Streams
from .pydoc_corpus import Pydoc
from .shards import Shards, read_vocabulary
from .texts import SPLITS, Texts
from .tokenizers.base import EOS, UNK, Numbering, Tokenizer
from .tokenizers.characters import CharacterNumbers, Characters
from .tokenizers.integers import Integers
from .tokenizers.lower import LowerVocab
from .tokenizers.sentences import SentenceVocab
from .tokenizers.subwords import DEFAULT_SIZE, Subwords
from .tokenizers.symbols import ALL_BYTES, ByteNumbers, Symbols, Text8Symbols
from .tokenizers.words import Vocab, WordNumbers


class DataSet(NamedTuple):
    """A data set.

    Attributes:
        texts: where its files are, of which split, and how they fall into documents.
        tokenizer: the kind of its tokenizer.
        counted: the splits that make the vocabulary.
        numbering: what counts their symbols; None: the vocabulary is not counted.
        known: the tokenizer, where no text has to be read for it.
        trained: the tokenizer that is trained on pieces of text.
        special: words that come first in the vocabulary.
        has_sentences: trained on shuffled sentences.
        is_tokenised: running text becomes words as WikiText's does, and back.
        as_in_2019: settings with which the 2019 code's models were trained.
    """

    texts: type[Texts]
    tokenizer: type[Tokenizer]
    counted: tuple[str, ...] = ()
    numbering: Callable[[], Numbering] | None = None
    known: Callable[[Any], Tokenizer | None] = lambda texts: None
    trained: Callable[[Iterator[bytes], DataConfig], Tokenizer] | None = None
    special: tuple[str, ...] = ()
    has_sentences: bool = False
    is_tokenised: bool = True
    as_in_2019: Mapping[str, str] = {}


def _given(texts: Texts) -> Tokenizer | None:
    """The tokenizer of --tokenizer."""
    path = texts.config.tokenizer
    return None if path is None else Subwords.read(Path(path))


def _trained(pieces: Iterator[bytes], config: DataConfig) -> Tokenizer:
    return Subwords.trained(pieces, config.vocab_size or DEFAULT_SIZE)


_WORDS = partial(DataSet, tokenizer=Vocab, numbering=partial(WordNumbers, Vocab))
_BYTES = partial(DataSet, counted=SPLITS, as_in_2019={"data_convention": "original"})
DATA_SETS = {
    "wt103": _WORDS(Texts, counted=("train",), special=(EOS,)),
    "wt2": _WORDS(Texts, counted=SPLITS, special=(EOS,)),
    "ptb": DataSet(Texts, LowerVocab, SPLITS, partial(WordNumbers, LowerVocab), special=(EOS,)),
    "enwik8": _BYTES(Enwik8, Symbols, numbering=partial(ByteNumbers, Symbols)),
    "text8": _BYTES(Text8, Text8Symbols, numbering=partial(ByteNumbers, Text8Symbols)),
    "lm1b": DataSet(Shards, SentenceVocab, known=lambda texts: read_vocabulary(texts.home), has_sentences=True),
    "text": _WORDS(AnyText, counted=("train",), special=(EOS, UNK), is_tokenised=False),
    "pydoc": _WORDS(Pydoc, counted=("train",), special=(EOS, UNK)),
    "characters": DataSet(AnyText, Characters, ("train",), CharacterNumbers),
    "bpe": DataSet(AnyText, Subwords, ("train",), known=_given, trained=_trained),
    "bytes": DataSet(AnyFiles, Symbols, known=lambda texts: Symbols(ALL_BYTES)),
    "ids": DataSet(Streams, Integers, ("train", "valid"), known=lambda texts: texts.vocabulary()),
}


def tokenizer_of(dataset: str, read: Callable[[str], str]) -> Tokenizer:
    """The tokenizer that a checkpoint keeps in files, whose contents `read` gives by name. Raises `ValueError` if it is
    damaged."""
    return kind_of_tokenizer(dataset).from_files(read)


def kind_of_tokenizer(dataset: str) -> type[Tokenizer]:
    """The kind of a data set's tokenizer; words, if there is no such data set: what is wrong is said elsewhere."""
    found = DATA_SETS.get(dataset)
    return found.tokenizer if found else Vocab


def is_tokenised(record: Mapping[str, Any]) -> bool:
    """True unless a checkpoint's record says that words of its text are separated by white space only."""
    found = DATA_SETS.get(record.get("data", {}).get("dataset"))
    return found is None or found.is_tokenised
