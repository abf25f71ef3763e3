"""Words and their ids."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

EOS, UNK = "<eos>", "<unk>"


class Vocab:
    """An ordered list of words; the id of a word is its place in the list.

    Order: special words first, then by count, descending, ties by first occurrence in the text. Adaptive softmax relies
    on it: its clusters are ranges of ids. The order and the specials are those of kimiyoung/transformer-xl.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}
        if len(self.index) != len(self.words):
            raise ValueError("a word stands in the vocabulary twice")

    @classmethod
    def build(
        cls, counts: Counter[str], *, special: Sequence[str] = (EOS,), min_freq: int = 0, max_size: int | None = None
    ) -> "Vocab":
        """The vocabulary of counted words.

        Args:
            counts: how often each word occurs; its insertion order is the order of first occurrence.
            special: words that come first, counted or not.
            min_freq: rarer words are left out.
            max_size: at most so many words besides the special ones.
        """
        frequent = [word for word, n in counts.most_common(max_size) if n >= min_freq]
        return cls(list(dict.fromkeys([*special, *frequent])))

    @classmethod
    def from_text(cls, text: str) -> "Vocab":
        """The inverse of `to_text`."""
        return cls(text.removesuffix("\n").split("\n"))

    def to_text(self) -> str:
        """One word a line, in the order of the ids."""
        return "\n".join(self.words) + "\n"

    def fingerprint(self) -> str:
        """Hex digest; equal for equal vocabularies only."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.index

    def encode(self, words: Iterable[str]) -> list[int]:
        """Ids of words; a word that is not in the vocabulary becomes `<unk>`.

        Raises:
            KeyError: with the word, if it is unknown and the vocabulary has no `<unk>`.
        """
        ids = list(map(self.index.get, words := list(words)))
        if None not in ids:
            return ids  # type: ignore[return-value]
        unk = self.index.get(UNK)
        if unk is None:
            raise KeyError(words[ids.index(None)])
        return [unk if i is None else i for i in ids]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words of ids."""
        return [self.words[i] for i in ids]


def count_words(lines: Iterable[str]) -> Counter[str]:
    """How often each word occurs. Words are what white space separates, in Python's sense of it (NBSP too)."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split())
    return counts
