"""One Billion Word's files: sentences in many files and a vocabulary file, laid out as getdata.sh of the 2019 code
does."""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .free_text import read_text
from .raw_text import DataError
from .store import Store
from .texts import Texts
from .tokenizers.base import Tokenizer
from .tokenizers.sentences import SentenceVocab

VOCABULARY = "1b_word_vocab.txt"
SHARDS = (
    "1-billion-word-language-modeling-benchmark-r13output/training-monolingual.tokenized.shuffled/news.en-*",
    "training-monolingual.tokenized.shuffled/news.en-*",
    "news.en-*",
)
_MOST_SHARDS = 256


class Shards(Texts):
    """A folder with the training text in train.txt or in many files, in the order of their names; valid.txt, test.txt.
    Each line is a document."""

    rule = "file"  # sentences are found by their ends

    def files(self, split: str) -> list[Path]:
        if split == "train":
            for pattern in SHARDS:
                if found := sorted(self.home.glob(pattern)):
                    if len(found) > _MOST_SHARDS:
                        raise DataError(f"{found[0].parent}: {len(found)} files; at most {_MOST_SHARDS} can be read")
                    return found
        return super().files(split)

    def fingerprint(self, split: str) -> str | None:
        digests = list(map(self.checks.digest, self.files(split)))
        return hashlib.sha256("".join(digests).encode()).hexdigest() if len(digests) > 1 else digests[0]

    def defines_vocabulary(self, counted: Sequence[str]) -> bool:
        return (self.home / VOCABULARY).is_file()

    def document_starts(self, split: str, store: Store, tokenizer: Tokenizer) -> np.ndarray:
        return np.flatnonzero(store.ids[:-1] == tokenizer.eos_id) + 1  # after each <S>


def read_vocabulary(folder: Path) -> SentenceVocab:
    """The first word of each line of the vocabulary file; a word that comes again is left out, as in the 2019 code.
    Raises `DataError` if the file is missing, has a blank line, or lacks <S> or <UNK>."""
    path, words = folder / VOCABULARY, {}
    if not path.is_file():
        raise DataError(f"{path}: no such file; load it with: python -m data_utils.download lm1b")
    for n, line in enumerate(io.StringIO(read_text(str(path)), newline=""), 1):
        if not line.strip():
            raise DataError(f"{path}, line {n}: is blank; each line needs a word")
        words[line.split()[0]] = None
    try:
        return SentenceVocab(list(words))
    except ValueError as error:
        raise DataError(f"{path}: {error}; bring the file of the data set again") from None
