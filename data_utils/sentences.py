"""One Billion Word: sentences in many files and a vocabulary file, laid out as getdata.sh of the 2019 code does."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .files import DataError, read_lines
from .vocabulary import SentenceVocab
from .words import Block, encoded

VOCABULARY = "1b_word_vocab.txt"
SHARDS = (
    "1-billion-word-language-modeling-benchmark-r13output/training-monolingual.tokenized.shuffled/news.en-*",
    "training-monolingual.tokenized.shuffled/news.en-*",
    "news.en-*",
)
_MOST_SHARDS = 256


def shards_of(folder: Path, split: str) -> list[Path]:
    """The files of a split, in the order of their names: train.txt or many, valid.txt, test.txt."""
    if split == "train":
        for pattern in SHARDS:
            if found := sorted(folder.glob(pattern)):
                if len(found) > _MOST_SHARDS:
                    raise DataError(f"{found[0].parent}: {len(found)} files; at most {_MOST_SHARDS} can be read")
                return found
    return [folder / f"{split}.txt"]


def read_vocabulary(folder: Path) -> SentenceVocab:
    """The first word of each line of the vocabulary file; a word that comes again is left out, as in the 2019 code.
    Raises `DataError` if the file is missing, has a blank line, or lacks <S> or <UNK>."""
    path, words = folder / VOCABULARY, {}
    if not path.is_file():
        raise DataError(f"{path}: no such file; load it with: python -m data_utils.download lm1b")
    for n, line in enumerate(read_lines(path, task="reading"), 1):
        if not line.strip():
            raise DataError(f"{path}, line {n}: is blank; each line needs a word")
        words[line.split()[0]] = None
    try:
        return SentenceVocab(list(words))
    except ValueError as error:
        raise DataError(f"{path}: {error}; bring the file of the data set again") from None


def encoded_shards(paths: list[Path], vocab: SentenceVocab, starts: list[int]) -> Iterator[Block]:
    """The ids of several files: of each `<S>`, and every sentence followed by `<S>`. Where each file begins is appended
    to `starts`."""
    n_token = 0
    for path in paths:
        starts.append(n_token)
        yield Block(np.array([vocab.eos_id], dtype=np.uint32))
        n_token += 1
        for block in encoded(path, vocab):
            yield block
            n_token += len(block.ids)
