"""The vocabulary: words and their ids."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

EOS, UNK = "<eos>", "<unk>"


class Vocab:
    """An ordered list of words; the id of a word is its index.

    Special words come first, then words by descending count, ties by first occurrence, as in kimiyoung/transformer-xl.
    The clusters of adaptive softmax are ranges of ids and rely on this order.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}
        if len(self.index) != len(self.words):
            raise ValueError("a word is in the vocabulary twice")

    @classmethod
    def build(
        cls, counts: Counter[str], *, special: Sequence[str] = (EOS,), min_freq: int = 0, max_size: int | None = None
    ) -> "Vocab":
        """The vocabulary of counted words: the special ones, then at most `max_size` others, none rarer than
        `min_freq`. The order of `counts` is that of first occurrence."""
        frequent = [word for word, n in counts.most_common(max_size) if n >= min_freq]
        return cls(list(dict.fromkeys([*special, *frequent])))

    @classmethod
    def from_text(cls, text: str) -> "Vocab":
        """Inverse of `to_text`. Raises `ValueError` if a line is blank or there twice."""
        words = text.removesuffix("\n").split("\n")
        if "" in words:
            raise ValueError(f"line {words.index('') + 1} is blank")
        return cls(words)

    @property
    def eos_id(self) -> int:
        """The token that ends a line, after which a text begins."""
        return self.index[EOS]

    def attachments(self) -> dict[str, str]:
        """What a checkpoint keeps of it: files of text by name."""
        return {"vocab.txt": self.to_text()}

    def to_text(self) -> str:
        """One word per line, in the order of the ids."""
        return "\n".join(self.words) + "\n"

    def fingerprint(self) -> str:
        """Hex digest, SHA-256."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.index

    def prompt(self, text: str) -> str:
        """What a text to be continued says: white space between words is no token. Empty: nothing."""
        return text.rstrip(" \t") if text.strip() else ""

    def encode(self, words: Iterable[str]) -> list[int]:
        """Ids of words; unknown words become `<unk>`. Raises `KeyError` with the word if there is no `<unk>`."""
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

    def encode(self, words: Iterable[str]) -> list[int]:
        return super().encode(word.lower() for word in words)


class SentenceVocab(Vocab):
    """The words of One Billion Word's vocabulary file: `<S>` stands between sentences, `<UNK>` for unknown words.

    They are encoded from `<eos>` and `<unk>`, and decoded to them.
    """

    _NAMES: ClassVar = {"<S>": EOS, "<UNK>": UNK}

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)
        for there, name in self._NAMES.items():
            if there not in self.index:
                raise ValueError(f"has no {there}")
            self.index.setdefault(name, self.index[there])

    def decode(self, ids: Iterable[int]) -> list[str]:
        return [self._NAMES.get(word, word) for word in super().decode(ids)]
