"""Words in lower case."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from .words import Vocab


class LowerVocab(Vocab):
    """Words in lower case, as in the 2019 code's Penn Treebank."""

    @classmethod
    def build(cls, counts: Counter[str], **limits: Any) -> "Vocab":
        lower: Counter[str] = Counter()
        for word, n in counts.items():
            lower[word.lower()] += n
        return super().build(lower, **limits)

    def __contains__(self, word: str) -> bool:
        return word.lower() in self.index

    def ids_of(self, words: Iterable[str]) -> list[int]:
        return super().ids_of(word.lower() for word in words)
